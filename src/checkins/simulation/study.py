"""A study: one or more campaigns with their baselines, each run from several seeds.

``Study.prepared`` loads the data and calibrates the baselines. ``PreparedStudy.run`` runs the jobs.
``PreparedStudy.result`` combines the outcomes of the jobs.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from checkins import validate
from checkins.accounting import Adjacency, Certificate, Protocol
from checkins.campaign import Campaign, PartialRun, Spending, certify_runs
from checkins.errors import InvalidValue, WrongPopulation
from checkins.simulation import result as results
from checkins.simulation import workers
from checkins.simulation.baselines import Baseline, CalibratedBaseline, calibrate_baseline
from checkins.simulation.engine.evaluation import Evaluation, Metrics, check_loss
from checkins.simulation.engine.loop import server_of
from checkins.simulation.engine.mechanism import Mechanism
from checkins.simulation.engine.outcome import Outcome, task_of
from checkins.simulation.engine.training import Scenario
from checkins.simulation.population import MOST_CLIENTS, Always, Availability
from checkins.simulation.result import BaselineResult, SimulationResult, SweepResult
from checkins.simulation.sweep import label
from checkins.simulation.workers import Job, load_task

Setting = dict[str, object]
"""Keys of a campaign file that a sweep replaced, with their new values; empty without a sweep."""

MOST_SLOTS = 50_000_000
"""Largest number of slots of a run. Each slot takes about fifty bytes of memory."""

FIXED_BEFOREHAND = "the last slot was fixed beforehand and does not depend on the releases"

_POINTS = 10
"""Number of points at which the curve of epsilon over slots is computed."""


@dataclass(frozen=True, slots=True)
class ScenarioOptions:
    """Assumptions about the clients that are not in a campaign file.

    If ``clients`` is None, there are as many clients as in the data. More clients than in the data
    are allowed only with ``reuse``, because several of them then hold the same rows.
    """

    clients: int | None = None
    reuse: bool = False
    availability: Availability = field(default_factory=Always)
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.clients is not None:
            validate.count(most=MOST_CLIENTS, clients=self.clients)
        validate.probability(dropout=self.dropout)

    def scenario(self, campaign: Campaign, in_data: int) -> Scenario:
        """Return the scenario for data with ``in_data`` clients.

        Raises WrongPopulation if the number of clients contradicts the data or the campaign file.
        """
        declared = campaign.design.population
        clients = in_data if self.clients is None else self.clients
        remedy = "use --reuse-clients to let several"
        if declared and not declared.fewest <= clients <= declared.most:
            ends = [declared.fewest, declared.most]
            if self.clients is not None:
                why = f"the file's population is {ends[0]:,} to {ends[1]:,}"
                raise WrongPopulation(
                    "clients", clients, f"{why}: change or remove [budget] population"
                )
            if not self.reuse:
                why = f"the data has {in_data:,} clients: change it, or {remedy} clients"
                raise WrongPopulation("population", ends, f"{why} hold the same rows")
            clients = ends[0] if in_data < ends[0] else ends[1]
        if clients > in_data and not self.reuse:
            why = f"the data has {in_data:,}: {remedy} hold the same rows"
            raise WrongPopulation("clients", clients, why)
        return Scenario(clients, self.availability, self.dropout)


@dataclass(frozen=True, slots=True)
class _JobGroup:
    """The jobs of one mechanism, one job per seed.

    ``baseline`` is None if the mechanism is the campaign's own.
    """

    label: str
    jobs: tuple[Job, ...]
    baseline: CalibratedBaseline | None = None


@dataclass(frozen=True, slots=True)
class _Entry:
    """One campaign of the study. ``groups`` starts with the campaign; its baselines follow."""

    setting: Setting
    campaign: Campaign
    accounting: BackgroundAccounting
    groups: tuple[_JobGroup, ...]


@dataclass(frozen=True, slots=True)
class Study:
    """Campaigns with their settings, seeds and baselines. Every result contains ``notes``."""

    campaigns: tuple[tuple[Setting, Campaign], ...]
    folder: str = "."
    scenario_options: ScenarioOptions = field(default_factory=ScenarioOptions)
    seeds: tuple[int, ...] = (1,)
    baselines: tuple[Baseline, ...] = ()
    evaluations: int = 50
    notes: tuple[str, ...] = ()

    def check(self, campaign: Campaign) -> None:
        """Load the campaign's data, and raise an error if the campaign cannot be simulated."""
        task = task_of(campaign)
        loaded = load_task(task, self.folder)
        check_loss(loaded, task.model)
        self.scenario_options.scenario(campaign, loaded.data.clients)
        if campaign.design.slots > MOST_SLOTS:
            why = f"must be at most {MOST_SLOTS:,} to be simulated"
            raise InvalidValue("slots", campaign.design.slots, why)
        Mechanism.of(campaign, loaded.model.dimension)
        server_of(task.optimizer)
        if not (variation := PartialRun.whole(campaign).variation) < campaign.budget.delta:
            raise InvalidValue("variation", variation, "must be less than delta: use a finer grid")

    def prepared(self) -> PreparedStudy:
        """Load the data, start the accounting, calibrate the baselines and list the jobs."""
        pool = ThreadPoolExecutor(1, thread_name_prefix="accounting")
        try:
            entries = tuple(self._entry(*both, pool) for both in self.campaigns)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        for entry in entries:
            entry.accounting.begin_curve()
        return PreparedStudy(self, entries, pool)

    def _entry(self, setting: Setting, campaign: Campaign, pool: Executor) -> _Entry:
        task = task_of(campaign)
        loaded = load_task(task, self.folder)
        scenario = self.scenario_options.scenario(campaign, loaded.data.clients)
        own = Mechanism.of(campaign, loaded.model.dimension)
        reports = [_reports(own, scenario, seed) for seed in self.seeds] if own.averaged else []
        accounting = BackgroundAccounting(campaign, pool, reports)

        def jobs(mechanism: Mechanism | None, *, allow_divergence: bool) -> tuple[Job, ...]:
            options = (self.evaluations, allow_divergence)
            return tuple(
                Job(task, self.folder, mechanism, scenario, seed, *options) for seed in self.seeds
            )

        name, sweep = label(setting), len(self.campaigns) > 1
        groups = [_JobGroup(name or "campaign", jobs(own, allow_divergence=sweep))]
        sizes = {"clients": scenario.clients, "dimension": loaded.model.dimension}
        for kind in self.baselines:
            baseline = calibrate_baseline(kind, own, accounting.whole, **sizes)
            run = jobs(baseline.mechanism, allow_divergence=True)
            group_label = f"{name}, {kind}" if name else str(kind)
            groups.append(_JobGroup(group_label, () if baseline.unavailable else run, baseline))
        return _Entry(setting, campaign, accounting, tuple(groups))


def _reports(mechanism: Mechanism, scenario: Scenario, seed: int) -> list[int]:
    """Return the number of reports in each run of a seed."""
    population = scenario.population(mechanism, seed)
    return [int(population.run(run).reports.sum()) for run in range(1, mechanism.runs + 1)]


@dataclass(frozen=True, slots=True)
class PreparedStudy:
    """A study with loaded data, calibrated baselines and a list of jobs."""

    study: Study
    entries: tuple[_Entry, ...]
    pool: Executor

    @property
    def jobs(self) -> list[Job]:
        return [job for entry in self.entries for group in entry.groups for job in group.jobs]

    @property
    def labels(self) -> list[str]:
        """The name of each job, for progress bars."""
        several = len(self.study.seeds) > 1
        return [
            f"{group.label}, seed {job.seed}" if several else group.label
            for entry in self.entries
            for group in entry.groups
            for job in group.jobs
        ]

    def epsilon_so_far(self, number: int, slots: int) -> float | None:
        """Return an upper bound on epsilon after the first ``slots`` slots of job ``number``.

        Return None if the job is a baseline or if the bound is not computed yet.
        """
        for entry in self.entries:
            for group in entry.groups:
                if number < len(group.jobs):
                    return None if group.baseline else entry.accounting.epsilon_so_far(slots)
                number -= len(group.jobs)
        return None

    def run(
        self,
        *,
        processes: int = 1,
        ray: bool = False,
        cache: Path | None = None,
        watch: Callable[[int, int, Metrics], None] | None = None,
    ) -> list[Outcome | None]:
        """Run the jobs. Outcomes that are in the folder ``cache`` are not computed again."""
        return workers.run_jobs(self.jobs, workers=processes, ray=ray, cache=cache, watch=watch)

    def result(self, outcomes: Sequence[Outcome | None]) -> SimulationResult | SweepResult | None:
        """Combine the outcomes. Return None if no job of any campaign was started."""
        left = iter(outcomes)
        by_entry = []
        for entry in self.entries:
            done = [[next(left) for _ in group.jobs] for group in entry.groups]
            if (result := self._entry_result(entry, done)) is not None:
                by_entry.append(result)
        if not by_entry:
            return None
        if len(self.entries) == 1 and not self.entries[0].setting:
            return by_entry[0]
        return SweepResult(tuple(by_entry))

    def _entry_result(
        self, entry: _Entry, done: Sequence[Sequence[Outcome | None]]
    ) -> SimulationResult | None:
        """Combine ``done``, the outcomes of each group of jobs, which begin with the campaign's.

        Return None if no job of the campaign itself was started.
        """
        pairs = zip(entry.groups[0].jobs, done[0], strict=True)
        started = [(job, outcome) for job, outcome in pairs if outcome is not None]
        if not started:
            return None
        job, outcomes = started[0][0], [outcome for _, outcome in started]
        slots = max(outcome.slots for outcome in outcomes)
        certificate = entry.accounting.whole
        if not any(outcome.diverged for outcome in outcomes):
            contributors = [outcome.contributors for outcome in outcomes]
            certificate = entry.accounting.certificate(slots, contributors)
        notes = self.study.notes
        averaged = entry.campaign.design.protocol is Protocol.AVERAGED
        if averaged and certificate.adjacency is Adjacency.REPLACE_ONE:
            fewest = "the fewest reports of any run of any seed"
            notes = (*notes, f"the certificate of averaged updates is for {fewest}")
        complete = [outcome is not None and outcome.complete for own in done for outcome in own]
        own_complete, accounted = all(complete[: len(done[0])]), entry.accounting
        loaded = load_task(job.task, job.folder)
        occupancy, dummies_expected = results.against_theory(job, outcomes[0])
        return SimulationResult(
            campaign=entry.campaign,
            certificate=certificate,
            complete=all(complete),
            seeds=tuple(outcomes),
            scenario=job.scenario,
            data=results.DataSummary.of(loaded.data),
            model=job.task.model,
            dimension=loaded.model.dimension,
            noise="none" if job.mechanism is None else job.mechanism.noise_description,
            on_holdout=Evaluation(loaded).on_holdout,
            epsilon_by_slot=tuple(accounted.curve() if own_complete else accounted.known(slots)),
            occupancy=occupancy,
            dummies_expected=dummies_expected,
            baselines=tuple(
                BaselineResult(group.baseline, tuple(one for one in own if one is not None))
                for group, own in zip(entry.groups[1:], done[1:], strict=True)
                if group.baseline is not None
            ),
            notes=notes,
            settings=entry.setting,
        )

    def close(self) -> None:
        """Stop the accounting and its thread."""
        for entry in self.entries:
            entry.accounting.close()
        self.pool.shutdown(wait=False, cancel_futures=True)


class BackgroundAccounting:
    """Compute the certificate of a campaign, and epsilon over its slots, in a thread.

    ``contributors[i][j]`` is the number of reports in run j of seed i. The certificate of averaged
    updates depends on it.
    """

    def __init__(
        self, campaign: Campaign, pool: Executor, contributors: Sequence[Sequence[int]] = ()
    ) -> None:
        """Start to compute the certificate. The curve over slots waits for ``begin_curve``."""
        self._campaign = campaign
        self._pool = pool
        self._spending = Spending(campaign)
        self._known: list[tuple[int, float]] = []
        self._stopping = False
        runs: Sequence[PartialRun] = (PartialRun.whole(campaign),)
        if self._averaged:
            runs = self._worst_runs(contributors)
        self._certificate = pool.submit(certify_runs, runs, compare=True)
        self._curve: Future[None] | None = None

    def begin_curve(self) -> Future[None]:
        """Queue the computation of the curve of epsilon over slots, if it is not queued yet."""
        if self._curve is None:
            self._curve = self._pool.submit(self._compute_curve)
        return self._curve

    @property
    def _averaged(self) -> bool:
        return self._campaign.design.protocol is Protocol.AVERAGED

    def _worst_runs(self, contributors: Sequence[Sequence[int]]) -> list[PartialRun]:
        """Return runs whose epsilon is at least that of every seed.

        They have the fewest reports of any run, because epsilon grows if there are fewer reports.
        Runs without reports are not counted, because they release nothing.
        """
        slots = self._campaign.design.slots
        times = max((sum(count > 0 for count in runs) for runs in contributors), default=0)
        if not times:
            return [PartialRun(self._campaign, slots, contributors=0)]
        fewest = min(count for runs in contributors for count in runs if count)
        return [PartialRun(self._campaign, slots, contributors=fewest, times=times)]

    def _compute_curve(self) -> None:
        slots = self._spending.slots
        if self._averaged:  # epsilon does not depend on the number of slots
            self._known.append((slots, self.whole.epsilon))
            return
        for count in sorted({max(1, slots * part // _POINTS) for part in range(1, _POINTS + 1)}):
            if self._stopping:
                return
            [point] = self._spending.curve([count])
            self._known.append(point)

    def epsilon_so_far(self, slots: int) -> float | None:
        """Return an upper bound on epsilon after ``slots`` slots; None if not computed yet."""
        place = bisect.bisect_left(self._known, (slots, 0.0))
        return self._known[place][1] if place < len(self._known) else None

    @property
    def whole(self) -> Certificate:
        """The certificate of all runs, up to their last slots. Waits until it is computed."""
        return self._certificate.result()

    def curve(self) -> list[tuple[int, float]]:
        """Return pairs (slots, epsilon) up to the last slot. Waits until they are computed."""
        self.begin_curve().result()
        return list(self._known)

    def known(self, slots: int) -> list[tuple[int, float]]:
        """Return those points of the curve up to ``slots`` that are already computed."""
        return [point for point in self._known if point[0] <= slots]

    def certificate(self, slots: int, contributors: Sequence[Sequence[int]]) -> Certificate:
        """Return the certificate of the first ``slots`` slots, counted over all runs.

        With averaged updates, the certificate is for the fewest reports of any run.
        """
        if slots >= self._spending.slots:
            return self.whole
        if self._averaged:
            certificate = certify_runs(self._worst_runs(contributors))
        else:
            run, slot = divmod(max(slots - 1, 0), self._campaign.design.slots)
            certificate = self._spending.after(slot + (slots > 0), run=run + 1)
        return replace(certificate, assumptions=(*certificate.assumptions, FIXED_BEFOREHAND))

    def close(self) -> None:
        """Stop computing the curve, after the current point."""
        self._stopping = True
