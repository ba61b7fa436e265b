"""Empirical privacy auditing: measured lower bounds on epsilon, compared with certificates.

``audit_campaign`` runs every attack that fits a campaign and returns an ``Audit``. If you simulate
the protocol with your own code, put the scores into ``Trials`` and call ``lower_bounds``.

An attack runs the protocol many times with one client, the canary, and many times without it, and
guesses from the releases whether the canary took part. There are two engines. The engine "compiled"
simulates only what depends on the canary, with seeded randomness. The engine "machines" runs a
smaller campaign with the protocol's real state machines and device samplers.
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
from checkins.audit.bounds import Direction, MeasuredBound, Trials, lower_bounds
from checkins.audit.canaries import Canary, worst_case_canaries
from checkins.audit.one_run import OneRunAudit
from checkins.audit.report import AttackResult, Audit, CertificateCheck, Verdict, certificate_at
from checkins.audit.runner import Clock, OutOfTime, RunBudget, run_attack
from checkins.audit.statistics import TradeOffCurve, exact_epsilon, exact_rates
from checkins.campaign import Campaign, RandomizerKind
from checkins.errors import CheckinsError, InvalidValue
from checkins.optional_imports import missing_package

__all__ = [
    "AttackResult",
    "Attacks",
    "Audit",
    "CertificateCheck",
    "Direction",
    "Engine",
    "MeasuredBound",
    "Settings",
    "Trials",
    "Verdict",
    "audit_campaign",
    "lower_bounds",
]


DEFAULT_CONFIDENCE = 0.9999
"""Default confidence of an audit."""
DEFAULT_SECONDS = 30.0
"""Default time limit of all attacks together, in seconds."""
ADDITIONAL_DELTAS = (1e-3, 1e-2)
"""Deltas audited by default besides the campaign's delta. Larger deltas need fewer runs."""
MAX_RUNS = 1_000_000_000
"""Largest number of runs that a user can request."""
MIN_MACHINES_DELTA = 1e-3
"""Smallest delta at which the state machines are audited.

Smaller deltas need millions of runs, but the state machines make only thousands per minute.
"""

AttackProgress = Callable[[str, float], None]
"""A callback that receives the name of the running attack and its completed share, 0 to 1."""


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

    The headline of the report is about the first of ``deltas``. If ``deltas`` is empty, the
    campaign's delta and ``ADDITIONAL_DELTAS`` are audited. If ``runs`` is None, as many runs are
    made as ``seconds`` allow. If ``one_run`` is True, a single run with many canaries is made
    instead. If ``threads`` is 0, there is one thread for each processor.
    """

    deltas: tuple[float, ...] = ()
    confidence: float = DEFAULT_CONFIDENCE
    seconds: float = DEFAULT_SECONDS
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
            validate.count(most=MAX_RUNS, trials=self.runs)
        validate.non_negative(seed=self.seed)
        for delta in self.deltas:
            validate.open_unit(delta=delta)

    def deltas_for(self, campaign: Campaign) -> tuple[float, ...]:
        """Return the requested deltas, or the default deltas if none were requested."""
        campaign_delta = campaign.budget.delta
        additional_deltas = () if self.one_run else ADDITIONAL_DELTAS
        return tuple(dict.fromkeys(self.deltas or (campaign_delta, *additional_deltas)))


def audit_campaign(
    campaign: Campaign,
    settings: Settings | None = None,
    *,
    progress: AttackProgress | None = None,
    clock: Clock = time.perf_counter,
) -> Audit:
    """Attack a campaign in simulation and compare the measured bounds with its certificates.

    All bounds hold simultaneously with ``settings.confidence``. So if the certificates are true,
    the verdict is "contradicted" with probability at most 1 − confidence. If ``settings`` is None,
    the defaults are used. ``settings.seconds`` limits the time of the runs. If no time is left for
    an attack, it is skipped, and a note says so. Raises InvalidValue if there was no time for any
    attack. If ``progress`` is None, no progress is reported.
    """
    settings = settings or Settings()
    started = clock()
    deltas = settings.deltas_for(campaign)
    attacks = _AttackRunner(campaign, settings, deltas, progress, clock)
    certificates = {delta: certificate_at(campaign, delta) for delta in deltas}
    if settings.one_run:
        results = attacks.run_one_run_attack()
    elif settings.engine is Engine.MACHINES:
        results = ()
    else:
        results = attacks.run_compiled_attacks(certificates)
    machines = None if settings.engine is Engine.COMPILED else attacks.run_state_machines()
    results += attacks.run_attacks_with_warmup()
    if not results and machines is None:
        problem = f"is too short for any attack: {'; '.join(attacks.skipped_attacks)}"
        raise InvalidValue("seconds", settings.seconds, problem)
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
    """Runs the attacks of one audit, which share its time and its failure probability equally.

    Before each attack, the remaining time is divided by the number of remaining attacks. Attacks
    that need a warm-up come last, because the length of a warm-up is not known exactly.
    """

    campaign: Campaign
    settings: Settings
    deltas: tuple[float, ...]
    progress: AttackProgress | None
    clock: Clock
    notes: list[str] = field(default_factory=list)
    skipped_attacks: list[str] = field(default_factory=list)
    """For each attack that was skipped for lack of time, a sentence that says so."""
    _attacks_with_warmup: list[tuple[int, Canary]] = field(default_factory=list)
    _attack_count: int = 0
    _remaining_attacks: int = 0
    _deadline: float = 0.0

    def _start_time_limit(self, attacks: int) -> None:
        """Start the time limit of ``attacks`` attacks and, if used, of the state machines."""
        self._attack_count = self._remaining_attacks = attacks + (
            self.settings.engine is not Engine.COMPILED
        )
        self._deadline = self.clock() + self.settings.seconds

    def _next_time_limit_s(self) -> float:
        """Return the time limit of the next attack in seconds, and count that attack as begun."""
        self._remaining_attacks -= 1
        return max(0.0, self._deadline - self.clock()) / (self._remaining_attacks + 1)

    @property
    def _failure_per_attack(self) -> float:
        """The probability with which the bounds of one attack may be false."""
        return (1.0 - self.settings.confidence) / self._attack_count

    def _skip(self, attack: str, error: OutOfTime) -> None:
        self.skipped_attacks.append(f"{attack} was not run: {error}")
        self.notes.append(f"{self.skipped_attacks[-1]}; a larger --seconds gives it more time")

    # ---- many simulated runs -----------------------------------------------------------------

    def run_compiled_attacks(
        self, certificates: dict[float, Certificate]
    ) -> tuple[AttackResult, ...]:
        canaries: list[Canary] = []
        if self.settings.attacks is not Attacks.DATA:
            methods = [certificate.method for certificate in certificates.values()]
            canaries += worst_case_canaries(
                self.campaign,
                uses_population="exact-population" in methods,
                dimension=self._dimension(),
            )
        if (data_canary := self._data_canary()) is not None:
            canaries.append(data_canary)
        self._start_time_limit(len(canaries))
        numbered_canaries = list(enumerate(canaries))
        self._attacks_with_warmup = [pair for pair in numbered_canaries if pair[1].warmup_s > 0.0]
        return self._run_in_order(pair for pair in numbered_canaries if pair[1].warmup_s == 0.0)

    def run_attacks_with_warmup(self) -> tuple[AttackResult, ...]:
        """Run the attacks that need a warm-up."""
        return self._run_in_order(self._attacks_with_warmup)

    def _run_in_order(self, canaries: Iterable[tuple[int, Canary]]) -> tuple[AttackResult, ...]:
        results = [self._run(canary, number) for number, canary in canaries]
        return tuple(result for result in results if result is not None)

    def _run(self, canary: Canary, number: int) -> AttackResult | None:
        """Run the attack with this number. Return None, and add a note, if no time is left."""
        budget = RunBudget(
            seconds=self._next_time_limit_s(),
            runs=self.settings.runs,
            seed=(self.settings.seed, number),
            threads=self.settings.threads,
            clock=self.clock,
        )
        progress = self.progress
        try:
            measurement = run_attack(
                canary,
                deltas=self.deltas,
                failure=self._failure_per_attack,
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
            runs=measurement.runs,
            bounds=measurement.bounds,
            seconds=measurement.seconds,
            exact={} if exact is None else {d: exact_epsilon(exact, d) for d in self.deltas},
            rates=exact or measurement.rates,
            failure=self._failure_per_attack / measurement.event_count,
            curve=measurement.curve,
            note=canary.note,
        )

    def _data_canary(self) -> Canary | None:
        """Return a canary from the task's data, or None if it is not requested or not possible.

        If it is not possible, add a note. If only canaries from the data were requested, raise an
        error instead.
        """
        if self.settings.attacks is Attacks.WORST_CASE:
            return None
        is_required = self.settings.attacks is Attacks.DATA
        task = self.campaign.task
        if task is None:
            if is_required:
                raise InvalidValue("task", None, "canaries from the data need a [task]")
            return None
        if task.features is not None and not is_required:
            self.notes.append(
                "canaries from the data are skipped, because computing their features takes long;"
                " --canary data includes them"
            )
            return None
        try:
            from checkins.audit.training_canary import TrainingCanary
            from checkins.simulation.workers import load_task

            return TrainingCanary(self.campaign, load_task(task, self.settings.folder))
        except (CheckinsError, ImportError, OSError) as error:
            if is_required:
                raise
            reason = missing_package("this attack", error) or error
            self.notes.append(f"canaries from the data are skipped: {reason}")
            return None

    def _dimension(self) -> int | None:
        """Return the model's dimension if the randomizer is PrivUnit, else None.

        Also return None, and add a note, if the model cannot be loaded.
        """
        task = self.campaign.task
        if task is None or self.campaign.randomizer.kind is not RandomizerKind.PRIVUNIT:
            return None
        try:
            from checkins.tasks.loaded_task import LoadedTask

            dimension = LoadedTask.of(task, folder=self.settings.folder).model.dimension
        except (CheckinsError, ImportError, OSError) as error:
            self.notes.append(f"the model's dimension is not known: {error}")
            return None
        self.campaign.randomizer.check_dimension(dimension)
        return dimension

    # ---- one run -----------------------------------------------------------------------------

    def run_one_run_attack(self) -> tuple[AttackResult, ...]:
        self._start_time_limit(1)
        self._next_time_limit_s()
        started = self.clock()
        attack = OneRunAudit.of(self.campaign)
        seeds = np.random.SeedSequence(self.settings.seed)
        generator = np.random.Generator(np.random.SFC64(seeds))
        result = AttackResult(
            canary=attack.name,
            explained=attack.explained,
            engine=str(Engine.COMPILED),
            statistic="one score for each canary; the attack guesses where the score is extreme",
            runs=1,
            bounds=attack.bounds(
                deltas=self.deltas, failure=self._failure_per_attack, generator=generator
            ),
            seconds=self.clock() - started,
            note="these canaries are not the worst case, so the lower bound of one run is weaker",
        )
        return (result,)

    # ---- the real state machines ---------------------------------------------------------------

    def run_state_machines(self) -> CertificateCheck | None:
        """Audit a smaller campaign with the real state machines.

        Return None, and add a note, if the campaign cannot be run or no time is left.
        """
        from checkins.audit.machine_audit import DEFAULT_RUNS, run_trials, shrunk_campaign

        delta = max(self.deltas[0], MIN_MACHINES_DELTA)
        try:
            small = shrunk_campaign(self.campaign, delta=delta)
        except InvalidValue as error:
            if self.settings.engine is Engine.MACHINES:
                raise
            self.notes.append(f"the state machines are skipped: {error}")
            self._remaining_attacks -= 1
            return None
        if self.settings.engine is Engine.MACHINES:
            self._start_time_limit(0)
        if self.progress is not None:
            self.progress("machines", 0.0)
        started = self.clock()
        try:
            trials = run_trials(
                small,
                runs=self.settings.runs or DEFAULT_RUNS,
                seconds=None if self.settings.runs else self._next_time_limit_s(),
                clock=self.clock,
            )
        except OutOfTime as error:
            self._skip("the smaller campaign", error)
            return None
        self.notes.append(
            f"the state machines run a smaller campaign, at delta {delta:g}, with randomness of the"
            f" operating system. {min(part.fewest_runs for part in trials):,} runs are enough to"
            " find a missing step of the protocol, but not to measure epsilon closely"
        )
        failure = self._failure_per_attack / len(trials)
        results = tuple(
            AttackResult(
                canary=part.canary,
                explained="the smaller campaign, with crashes and repeated messages",
                engine=part.engine,
                statistic=part.statistic,
                runs=part.fewest_runs,
                bounds=tuple(bounds.lower_bounds(part, deltas=[delta], confidence=1.0 - failure)),
                seconds=(self.clock() - started) / len(trials),
                rates=TradeOffCurve.rates(part),
                failure=failure / 2,
            )
            for part in trials
        )
        delta = small.budget.delta
        return CertificateCheck({delta: certificate_at(small, delta)}, results)
