"""A whole audit: every attack that fits a campaign, one confidence for all of them together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache

import numpy as np

from checkins import validate
from checkins.accounting import Certificate
from checkins.audit import bounds
from checkins.audit.batching import Clock, Effort, OutOfTime
from checkins.audit.canaries.canary import Canary
from checkins.audit.canaries.worst_case import worst_case
from checkins.audit.one_run import OneRun
from checkins.audit.power import epsilon_of, exact_rates
from checkins.audit.report import Audit
from checkins.audit.runner import play
from checkins.audit.trade_off_curve import Curve
from checkins.audit.verdict import Finding, Promise
from checkins.campaign import Campaign, PartialRun, RandomizerKind, price
from checkins.errors import CheckinsError, InvalidValue

CONFIDENCE = 0.9999
SECONDS = 30.0
MORE_DELTAS = (1e-3, 1e-2)
"""Audited besides the campaign's own: where a bound is easier to measure."""
MOST_RUNS = 1_000_000_000
MACHINES_DELTA = 1e-3
"""The machines run thousands of times, not millions: they are held to nothing smaller."""

Told = Callable[[str, float], None]
"""Hears which attack is under way, and what share of it is done."""


class Attacks(StrEnum):
    """Which canaries are tried."""

    WORST_CASE = "worst-case"
    DATA = "data"
    ALL = "all"


class Engine(StrEnum):
    """What plays the runs."""

    COMPILED = "compiled"
    MACHINES = "machines"
    BOTH = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a campaign is audited; the first of ``deltas`` is the headline's."""

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
    """Where a campaign's data file lies."""

    def __post_init__(self) -> None:
        validate.open_unit(confidence=self.confidence)
        validate.positive(seconds=self.seconds)
        if self.runs is not None:
            validate.count(most=MOST_RUNS, trials=self.runs)
        validate.non_negative(seed=self.seed)
        for delta in self.deltas:
            validate.open_unit(delta=delta)

    def deltas_for(self, campaign: Campaign) -> tuple[float, ...]:
        """Those asked for; else the campaign's own and two that are easier to measure at."""
        own = campaign.budget.delta
        usual = (own,) if self.one_run else (own, *MORE_DELTAS)  # one run bounds small deltas only
        return tuple(dict.fromkeys(self.deltas or usual))


def audit_campaign(
    campaign: Campaign,
    settings: Settings | None = None,
    *,
    told: Told | None = None,
    clock: Clock = time.perf_counter,
) -> Audit:
    """Attack a campaign in simulation and hold what is measured against its certificates.

    Everything that the audit says holds together with ``settings.confidence``: if the campaign is
    as private as certified, the verdict is "contradicted" with at most the rest of that.
    ``settings.seconds`` are those of the runs: what has no time left is left out, and a note says
    so. If nothing could be played in them, they are refused.
    """
    settings = settings or Settings()
    started = clock()
    deltas = settings.deltas_for(campaign)
    parts = _Parts(campaign, settings, deltas, told, clock)
    certificates = {delta: certificate_at(campaign, delta) for delta in deltas}
    if settings.one_run:
        findings = parts.one_run()
    elif settings.engine is Engine.MACHINES:
        findings = ()
    else:
        findings = parts.compiled(certificates)
    machines = None if settings.engine is Engine.COMPILED else parts.machines()
    findings += parts.unready()
    if not findings and machines is None:
        raise InvalidValue(
            "seconds", settings.seconds, f"is too short for any attack: {'; '.join(parts.late)}"
        )
    return Audit(
        campaign=campaign,
        promise=Promise(certificates, findings),
        machines=machines,
        confidence=settings.confidence,
        seed=settings.seed,
        one_run=settings.one_run,
        notes=tuple(parts.notes),
        seconds=clock() - started,
    )


@lru_cache(maxsize=64)
def certificate_at(campaign: Campaign, delta: float) -> Certificate:
    """The campaign's certificate at another delta, remembered; refuses where none is proved."""
    budget = replace(campaign.budget, delta=delta)
    return price((PartialRun.whole(replace(campaign, budget=budget)),))


@dataclass(slots=True)
class _Parts:
    """The attacks of one audit; time and confidence are shared equally by them.

    An attack that took more or less than its share leaves less or more to those after it: so what
    must be made ready, and nobody knows how long that takes, comes last.
    """

    campaign: Campaign
    settings: Settings
    deltas: tuple[float, ...]
    told: Told | None
    clock: Clock
    notes: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    """What was left out for want of time, and why."""
    _unready: list[tuple[int, Canary]] = field(default_factory=list)
    _count: int = 0
    _left: int = 0
    _end: float = 0.0

    def _begin(self, attacks: int) -> None:
        """So many attacks are played from now on; and the machines, where they are asked for."""
        self._count = self._left = attacks + (self.settings.engine is not Engine.COMPILED)
        self._end = self.clock() + self.settings.seconds

    def _share_s(self) -> float:
        """The time of the attack that is next."""
        self._left -= 1
        return max(0.0, self._end - self.clock()) / (self._left + 1)

    @property
    def _failure(self) -> float:
        return (1.0 - self.settings.confidence) / self._count

    def _left_out(self, what: str, error: OutOfTime) -> None:
        self.late.append(f"{what} was not run: {error}")
        self.notes.append(f"{self.late[-1]}; --seconds gives more")

    # ---- many runs, compiled -----------------------------------------------------------------

    def compiled(self, certificates: dict[float, Certificate]) -> tuple[Finding, ...]:
        canaries: list[Canary] = []
        if self.settings.attacks is not Attacks.DATA:
            counts_on_population = any(
                certificate.method == "exact-population" for certificate in certificates.values()
            )
            canaries += worst_case(
                self.campaign,
                counts_on_population=counts_on_population,
                dimension=self._dimension(),
            )
        data = self._data_canary()
        canaries += [] if data is None else [data]
        self._begin(len(canaries))
        numbered = list(enumerate(canaries))
        self._unready = [one for one in numbered if one[1].ready_s > 0.0]
        return self._all_played(one for one in numbered if one[1].ready_s == 0.0)

    def unready(self) -> tuple[Finding, ...]:
        """The attacks that must be made ready before they can be played."""
        return self._all_played(self._unready)

    def _all_played(self, canaries: Iterable[tuple[int, Canary]]) -> tuple[Finding, ...]:
        found = [self._played(canary, number) for number, canary in canaries]
        return tuple(finding for finding in found if finding is not None)

    def _played(self, canary: Canary, number: int) -> Finding | None:
        effort = Effort(
            seconds=self._share_s(),
            runs=self.settings.runs,
            seed=(self.settings.seed, number),
            threads=self.settings.threads,
            clock=self.clock,
        )
        told = self.told
        try:
            played = play(
                canary,
                deltas=self.deltas,
                failure=self._failure,
                effort=effort,
                told=None if told is None else lambda share: told(canary.name, share),
            )
        except OutOfTime as error:
            self._left_out(canary.name, error)
            return None
        exact = exact_rates(canary)
        return Finding(
            canary=canary.name,
            explained=canary.explained,
            engine=str(Engine.COMPILED),
            statistic=canary.statistic,
            runs=played.runs,
            bounds=played.bounds,
            seconds=played.seconds,
            exact={} if exact is None else {d: epsilon_of(exact, d) for d in self.deltas},
            rates=exact or played.rates,
            failure=self._failure / played.events,
            curve=played.curve,
            note=canary.note,
        )

    def _data_canary(self) -> Canary | None:
        """A canary of the task's data; what is wrong with them is an error only if asked for."""
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
                "canaries from the data are left out: features take long; ask for"
                " them with --canary data"
            )
            return None
        try:
            from checkins.audit.canaries.training import TrainingCanary
            from checkins.simulation.job import load_task

            canary = TrainingCanary(self.campaign, load_task(task, self.settings.folder))
        except (CheckinsError, ImportError, OSError) as error:
            if asked:
                raise
            self.notes.append(f"canaries from the data are left out: {error}")
            return None
        return canary

    def _dimension(self) -> int | None:
        """The model's, where its data are at hand and the randomizer depends on it."""
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

    def one_run(self) -> tuple[Finding, ...]:
        self._begin(1)
        self._share_s()
        started = self.clock()
        attack = OneRun.of(self.campaign, dimension=None)
        seeds = np.random.SeedSequence(self.settings.seed)
        bounds = attack.bounds(
            deltas=self.deltas,
            failure=self._failure,
            generator=np.random.Generator(np.random.SFC64(seeds)),
        )
        return (
            Finding(
                canary=attack.name,
                explained=attack.explained,
                engine=str(Engine.COMPILED),
                statistic="one score for each canary, the extreme ones guessed",
                runs=1,
                bounds=bounds,
                seconds=self.clock() - started,
                note="one run bounds epsilon by how many canaries it can tell, not by a worst case",
            ),
        )

    # ---- the real machines ---------------------------------------------------------------------

    def machines(self) -> Promise | None:
        """The campaign made small, run by what a coordinator and its devices run."""
        from checkins.audit.machines import made_small, run_trials
        from checkins.audit.machines.stage import RUNS

        delta = max(self.deltas[0], MACHINES_DELTA)
        try:
            small = made_small(self.campaign, delta=delta)
        except InvalidValue as error:
            if self.settings.engine is Engine.MACHINES:
                raise
            self.notes.append(f"the machines are left out: {error}")
            self._left -= 1
            return None
        if self.settings.engine is Engine.MACHINES:
            self._begin(0)
        if self.told is not None:
            self.told("machines", 0.0)
        started = self.clock()
        try:
            trials = run_trials(
                self.campaign,
                runs=self.settings.runs or RUNS,
                delta=delta,
                seconds=None if self.settings.runs else self._share_s(),
                clock=self.clock,
            )
        except OutOfTime as error:
            self._left_out("the campaign made small", error)
            return None
        self.notes.append(
            f"the machines run the campaign made small, at delta {delta:g}, with randomness of the"
            f" operating system; {min(one.fewest for one in trials):,} runs find what is missing or"
            " skipped, and measure no certificate closely"
        )
        failure = self._failure / len(trials)
        findings = tuple(
            Finding(
                canary=one.canary,
                explained="the campaign made small, with crashes and repeated messages",
                engine=one.engine,
                statistic=one.statistic,
                runs=one.fewest,
                bounds=tuple(bounds.lower_bounds(one, deltas=[delta], confidence=1.0 - failure)),
                seconds=(self.clock() - started) / len(trials),
                rates=Curve.rates(one),
                failure=failure / 2,
            )
            for one in trials
        )
        return Promise({small.certificate.delta: small.certificate}, findings)
