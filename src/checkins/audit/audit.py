"""Audit a campaign: run every attack that fits it, and compare the results with its certificates.

An attack runs the protocol many times with and without one client, the canary, and guesses from the
releases whether the canary took part. There are two engines. The compiled engine simulates only
what depends on the canary, with seeded randomness. The machines are the protocol's real state
machines and device samplers, which run a smaller campaign.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from checkins import validate
from checkins.accounting import Certificate
from checkins.audit import bounds
from checkins.audit.canaries import Canary, worst_case
from checkins.audit.one_run import OneRun
from checkins.audit.report import AttackResult, Audit, CertificateCheck, certificate_at
from checkins.audit.runner import Clock, OutOfTime, RunBudget, run_attack
from checkins.audit.statistics import TradeOffCurve, epsilon_of, exact_rates
from checkins.campaign import Campaign, RandomizerKind
from checkins.errors import CheckinsError, InvalidValue

CONFIDENCE = 0.9999
"""Default confidence of an audit."""
SECONDS = 30.0
"""Default time limit of all runs together, in seconds."""
MORE_DELTAS = (1e-3, 1e-2)
"""Deltas audited in addition to the campaign's, because bounds are easier to measure at them."""
MOST_RUNS = 1_000_000_000
"""Largest number of runs that a user can request."""
MACHINES_DELTA = 1e-3
"""Smallest delta at which the state machines are audited.

Smaller deltas need millions of runs, and the state machines manage only thousands.
"""

AttackProgress = Callable[[str, float], None]
"""A callback that receives the name of the running attack and the completed share of it."""


class Attacks(StrEnum):
    """Which canaries are used: worst-case updates, updates from the task's data, or both."""

    WORST_CASE = "worst-case"
    DATA = "data"
    ALL = "all"


class Engine(StrEnum):
    """Which engine executes the runs. See the module docstring."""

    COMPILED = "compiled"
    MACHINES = "machines"
    BOTH = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of an audit.

    The report is mainly about the first of ``deltas``. If ``deltas`` is empty, the campaign's delta
    and ``MORE_DELTAS`` are audited. If ``runs`` is None, as many runs are made as ``seconds``
    allow. If ``threads`` is 0, there is one thread for each processor.
    """

    deltas: tuple[float, ...] = ()
    confidence: float = CONFIDENCE
    seconds: float = SECONDS
    runs: int | None = None
    attacks: Attacks = Attacks.ALL
    engine: Engine = Engine.COMPILED
    one_run: bool = False
    seed: int = 1
    threads: int = 0
    folder: str = field(default=".")
    """Folder of the campaign's data file."""

    def __post_init__(self) -> None:
        validate.open_unit(confidence=self.confidence)
        validate.positive(seconds=self.seconds)
        if self.runs is not None:
            validate.count(most=MOST_RUNS, trials=self.runs)
        validate.non_negative(seed=self.seed)
        for delta in self.deltas:
            validate.open_unit(delta=delta)

    def deltas_for(self, campaign: Campaign) -> tuple[float, ...]:
        """Return the requested deltas, or the default deltas if none were requested."""
        own = campaign.budget.delta
        usual = (own,) if self.one_run else (own, *MORE_DELTAS)
        return tuple(dict.fromkeys(self.deltas or usual))


def audit_campaign(
    campaign: Campaign,
    settings: Settings | None = None,
    *,
    progress: AttackProgress | None = None,
    clock: Clock = time.perf_counter,
) -> Audit:
    """Attack a campaign in simulation and compare the measured bounds with its certificates.

    All bounds hold simultaneously with ``settings.confidence``. So if the certificates are true,
    the verdict is "contradicted" with probability at most 1 − confidence. ``settings.seconds``
    limits the time of the runs. An attack for which no time is left is skipped, and a note says so.
    Raises InvalidValue if there was no time for any attack. If ``progress`` is None, no progress is
    reported.
    """
    settings = settings or Settings()
    started = clock()
    deltas = settings.deltas_for(campaign)
    attacks = _AttackRunner(campaign, settings, deltas, progress, clock)
    certificates = {delta: certificate_at(campaign, delta) for delta in deltas}
    if settings.one_run:
        results = attacks.one_run()
    elif settings.engine is Engine.MACHINES:
        results = ()
    else:
        results = attacks.compiled(certificates)
    machines = None if settings.engine is Engine.COMPILED else attacks.machines()
    results += attacks.slow_start()
    if not results and machines is None:
        why = f"is too short for any attack: {'; '.join(attacks.skipped)}"
        raise InvalidValue("seconds", settings.seconds, why)
    return Audit(
        campaign=campaign,
        check=CertificateCheck(certificates, results),
        machines=machines,
        confidence=settings.confidence,
        seed=settings.seed,
        one_run=settings.one_run,
        notes=tuple(attacks.notes),
        seconds=clock() - started,
    )


@dataclass(slots=True)
class _AttackRunner:
    """The attacks of one audit, which share its time and its failure probability equally.

    Before each attack, the remaining time is divided again by the number of remaining attacks.
    Attacks that need a warm-up come last, because its length is not known exactly.
    """

    campaign: Campaign
    settings: Settings
    deltas: tuple[float, ...]
    progress: AttackProgress | None
    clock: Clock
    notes: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """One sentence for each attack that was skipped for lack of time."""
    _slow_start: list[tuple[int, Canary]] = field(default_factory=list)
    _count: int = 0
    _left: int = 0
    _end: float = 0.0

    def _begin(self, attacks: int) -> None:
        """Start the time limit of ``attacks`` attacks, plus one if the state machines are used."""
        self._count = self._left = attacks + (self.settings.engine is not Engine.COMPILED)
        self._end = self.clock() + self.settings.seconds

    def _share_s(self) -> float:
        """Return the time limit of the next attack."""
        self._left -= 1
        return max(0.0, self._end - self.clock()) / (self._left + 1)

    @property
    def _failure(self) -> float:
        return (1.0 - self.settings.confidence) / self._count

    def _skip(self, what: str, error: OutOfTime) -> None:
        self.skipped.append(f"{what} was not run: {error}")
        self.notes.append(f"{self.skipped[-1]}; a larger --seconds gives it more time")

    # ---- many runs, compiled -----------------------------------------------------------------

    def compiled(self, certificates: dict[float, Certificate]) -> tuple[AttackResult, ...]:
        canaries: list[Canary] = []
        if self.settings.attacks is not Attacks.DATA:
            known = any(one.method == "exact-population" for one in certificates.values())
            dimension = self._dimension()
            canaries += worst_case(self.campaign, uses_population=known, dimension=dimension)
        if (data := self._data_canary()) is not None:
            canaries.append(data)
        self._begin(len(canaries))
        numbered = list(enumerate(canaries))
        self._slow_start = [one for one in numbered if one[1].warmup_s > 0.0]
        return self._run_all(one for one in numbered if one[1].warmup_s == 0.0)

    def slow_start(self) -> tuple[AttackResult, ...]:
        """Run the attacks that need a warm-up."""
        return self._run_all(self._slow_start)

    def _run_all(self, canaries: Iterable[tuple[int, Canary]]) -> tuple[AttackResult, ...]:
        found = [self._run(canary, number) for number, canary in canaries]
        return tuple(result for result in found if result is not None)

    def _run(self, canary: Canary, number: int) -> AttackResult | None:
        budget = RunBudget(
            seconds=self._share_s(),
            runs=self.settings.runs,
            seed=(self.settings.seed, number),
            threads=self.settings.threads,
            clock=self.clock,
        )
        progress = self.progress
        try:
            measured = run_attack(
                canary,
                deltas=self.deltas,
                failure=self._failure,
                budget=budget,
                progress=None if progress is None else lambda share: progress(canary.name, share),
            )
        except OutOfTime as error:
            self._skip(canary.name, error)
            return None
        exact = exact_rates(canary)
        return AttackResult(
            canary=canary.name,
            explained=canary.explained,
            engine=str(Engine.COMPILED),
            statistic=canary.statistic,
            runs=measured.runs,
            bounds=measured.bounds,
            seconds=measured.seconds,
            exact={} if exact is None else {d: epsilon_of(exact, d) for d in self.deltas},
            rates=exact or measured.rates,
            failure=self._failure / measured.event_count,
            curve=measured.curve,
            note=canary.note,
        )

    def _data_canary(self) -> Canary | None:
        """Return a canary from the task's data, or None if it is not wanted or not possible.

        If it is not possible, add a note. If only canaries from the data were requested, raise an
        error instead.
        """
        wanted = self.settings.attacks
        if wanted is Attacks.WORST_CASE:
            return None
        asked = wanted is Attacks.DATA
        task = self.campaign.task
        if task is None:
            if asked:
                raise InvalidValue("task", None, "canaries from the data need a [task]")
            return None
        if task.features is not None and not asked:
            self.notes.append(
                "canaries from the data are skipped, because computing features takes long;"
                " --canary data includes them"
            )
            return None
        try:
            from checkins.audit.training_canary import TrainingCanary
            from checkins.simulation.workers import load_task

            return TrainingCanary(self.campaign, load_task(task, self.settings.folder))
        except (CheckinsError, ImportError, OSError) as error:
            if asked:
                raise
            self.notes.append(f"canaries from the data are skipped: {error}")
            return None

    def _dimension(self) -> int | None:
        """Return the model's dimension if the randomizer is PrivUnit, else None.

        Also return None, and add a note, if the dimension cannot be found.
        """
        task = self.campaign.task
        if task is None or self.campaign.randomizer.kind is not RandomizerKind.PRIVUNIT:
            return None
        try:
            from checkins.tasks.loaded_task import LoadedTask

            return LoadedTask.of(task, folder=self.settings.folder).model.dimension
        except (CheckinsError, ImportError, OSError) as error:
            self.notes.append(f"the model's dimension is not known: {error}")
            return None

    # ---- one run -----------------------------------------------------------------------------

    def one_run(self) -> tuple[AttackResult, ...]:
        self._begin(1)
        self._share_s()
        started = self.clock()
        attack = OneRun.of(self.campaign)
        seeds = np.random.SeedSequence(self.settings.seed)
        generator = np.random.Generator(np.random.SFC64(seeds))
        result = AttackResult(
            canary=attack.name,
            explained=attack.explained,
            engine=str(Engine.COMPILED),
            statistic="one score for each canary; the attack guesses where the score is extreme",
            runs=1,
            bounds=attack.bounds(deltas=self.deltas, failure=self._failure, generator=generator),
            seconds=self.clock() - started,
            note="one run measures these canaries, not a worst case, so its bound is weaker",
        )
        return (result,)

    # ---- the real machines ---------------------------------------------------------------------

    def machines(self) -> CertificateCheck | None:
        """Audit a smaller campaign with the real state machines.

        Return None, and add a note, if that is not possible or no time is left.
        """
        from checkins.audit.machine_audit import RUNS, made_small, run_trials

        delta = max(self.deltas[0], MACHINES_DELTA)
        try:
            small = made_small(self.campaign, delta=delta)
        except InvalidValue as error:
            if self.settings.engine is Engine.MACHINES:
                raise
            self.notes.append(f"the state machines are skipped: {error}")
            self._left -= 1
            return None
        if self.settings.engine is Engine.MACHINES:
            self._begin(0)
        if self.progress is not None:
            self.progress("machines", 0.0)
        started = self.clock()
        try:
            trials = run_trials(
                small,
                runs=self.settings.runs or RUNS,
                seconds=None if self.settings.runs else self._share_s(),
                clock=self.clock,
            )
        except OutOfTime as error:
            self._skip("the smaller campaign", error)
            return None
        self.notes.append(
            f"the state machines run a smaller campaign, at delta {delta:g}, with randomness of the"
            f" operating system. {min(one.fewest for one in trials):,} runs are enough to find a"
            " missing step of the protocol, but not to measure epsilon closely"
        )
        failure = self._failure / len(trials)
        results = tuple(
            AttackResult(
                canary=one.canary,
                explained="the smaller campaign, with crashes and repeated messages",
                engine=one.engine,
                statistic=one.statistic,
                runs=one.fewest,
                bounds=tuple(bounds.lower_bounds(one, deltas=[delta], confidence=1.0 - failure)),
                seconds=(self.clock() - started) / len(trials),
                rates=TradeOffCurve.rates(one),
                failure=failure / 2,
            )
            for one in trials
        )
        delta = small.budget.delta
        return CertificateCheck({delta: certificate_at(small, delta)}, results)
