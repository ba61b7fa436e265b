"""A study: one or more campaigns with their baselines, each run from several seeds.

``Study.prepare`` loads the data and calibrates the baselines. ``PreparedStudy.run`` runs the jobs.
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
from checkins.simulation.population import MAX_CLIENTS, AlwaysAvailable, Availability
from checkins.simulation.result import BaselineResult, SimulationResult, SweepResult
from checkins.simulation.sweep import setting_label
from checkins.simulation.workers import Job, load_task

Setting = dict[str, object]
"""Keys of a campaign file that a sweep replaced, with their new values; empty without a sweep."""

MAX_SLOTS = 50_000_000
"""Largest number of slots of a run. Each slot takes about fifty bytes of memory."""

FIXED_BEFOREHAND = "the last slot was fixed beforehand and does not depend on the releases"
"""Assumption in the certificate of a simulation that was stopped before its last slot."""

_CURVE_POINTS = 10
"""Number of points of the curve of epsilon over slots."""


@dataclass(frozen=True, slots=True)
class ScenarioOptions:
    """Assumptions about the clients that are not in a campaign file.

    If ``clients`` is None, there are as many clients as in the data. More clients than in the data
    are allowed only with ``reuse_clients``, because several of them then hold the same rows.
    """

    clients: int | None = None
    reuse_clients: bool = False
    availability: Availability = field(default_factory=AlwaysAvailable)
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.clients is not None:
            validate.count(most=MAX_CLIENTS, clients=self.clients)
        validate.probability(dropout=self.dropout)

    def scenario(self, campaign: Campaign, clients_in_data: int) -> Scenario:
        """Return the scenario of a campaign whose data has ``clients_in_data`` clients.

        Raises WrongPopulation if the number of clients contradicts the data or the campaign file.
        """
        declared = campaign.design.population
        clients = clients_in_data if self.clients is None else self.clients
        remedy = "use --reuse-clients to let several clients hold the same rows"
        if declared and not declared.fewest <= clients <= declared.most:
            limits = [declared.fewest, declared.most]
            if self.clients is not None:
                why = f"the file's population is {limits[0]:,} to {limits[1]:,}"
                raise WrongPopulation(
                    "clients", clients, f"{why}: change or remove [budget] population"
                )
            if not self.reuse_clients:
                why = f"the data has {clients_in_data:,} clients: change this, or {remedy}"
                raise WrongPopulation("population", limits, why)
            clients = limits[0] if clients_in_data < limits[0] else limits[1]
        if clients > clients_in_data and not self.reuse_clients:
            why = f"the data has {clients_in_data:,}: {remedy}"
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
class _PreparedCampaign:
    """One campaign of the study. The first group has its own jobs; groups of baselines follow."""

    setting: Setting
    campaign: Campaign
    accounting: BackgroundAccounting
    groups: tuple[_JobGroup, ...]


@dataclass(frozen=True, slots=True)
class Study:
    """Campaigns with their settings, seeds and baselines. Every result contains ``notes``.

    ``evaluations`` is the number of evaluations of the model during a job.
    """

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
        if campaign.design.slots > MAX_SLOTS:
            why = f"must be at most {MAX_SLOTS:,} to be simulated"
            raise InvalidValue("slots", campaign.design.slots, why)
        Mechanism.of(campaign, loaded.model.dimension)
        server_of(task.optimizer)
        if not (variation := PartialRun.whole(campaign).variation) < campaign.budget.delta:
            why = "the charge for rounding noise must be less than delta: use a finer grid"
            raise InvalidValue("variation", variation, why)

    def prepare(self) -> PreparedStudy:
        """Load the data, start the accounting, calibrate the baselines and list the jobs."""
        pool = ThreadPoolExecutor(1, thread_name_prefix="accounting")
        try:
            campaigns = tuple(
                self._prepare_campaign(setting, campaign, pool)
                for setting, campaign in self.campaigns
            )
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        for prepared in campaigns:
            prepared.accounting.begin_curve()
        return PreparedStudy(self, campaigns, pool)

    def _prepare_campaign(
        self, setting: Setting, campaign: Campaign, pool: Executor
    ) -> _PreparedCampaign:
        task = task_of(campaign)
        loaded = load_task(task, self.folder)
        scenario = self.scenario_options.scenario(campaign, loaded.data.clients)
        own_mechanism = Mechanism.of(campaign, loaded.model.dimension)
        seeds = self.seeds if own_mechanism.is_averaged else ()
        reports = [_reports_by_run(own_mechanism, scenario, seed) for seed in seeds]
        accounting = BackgroundAccounting(campaign, pool, reports)

        def jobs(mechanism: Mechanism | None, *, allow_divergence: bool) -> tuple[Job, ...]:
            options = (self.evaluations, allow_divergence)
            return tuple(
                Job(task, self.folder, mechanism, scenario, seed, *options) for seed in self.seeds
            )

        name, is_sweep = setting_label(setting), len(self.campaigns) > 1
        groups = [_JobGroup(name or "campaign", jobs(own_mechanism, allow_divergence=is_sweep))]
        sizes = {"clients": scenario.clients, "dimension": loaded.model.dimension}
        for kind in self.baselines:
            baseline = calibrate_baseline(kind, own_mechanism, accounting.full_certificate, **sizes)
            baseline_jobs = jobs(baseline.mechanism, allow_divergence=True)
            if baseline.unavailable:
                baseline_jobs = ()
            group_label = f"{name}, {kind}" if name else str(kind)
            groups.append(_JobGroup(group_label, baseline_jobs, baseline))
        return _PreparedCampaign(setting, campaign, accounting, tuple(groups))


def _reports_by_run(mechanism: Mechanism, scenario: Scenario, seed: int) -> list[int]:
    """Return the number of reports in each run of a seed."""
    population = scenario.population(mechanism, seed)
    return [int(population.draw_run(run).reports.sum()) for run in range(1, mechanism.runs + 1)]


@dataclass(frozen=True, slots=True)
class PreparedStudy:
    """A study with loaded data, calibrated baselines and a list of jobs."""

    study: Study
    campaigns: tuple[_PreparedCampaign, ...]
    pool: Executor

    @property
    def jobs(self) -> list[Job]:
        groups = [group for prepared in self.campaigns for group in prepared.groups]
        return [job for group in groups for job in group.jobs]

    @property
    def labels(self) -> list[str]:
        """The name of each job, for progress bars."""
        has_several_seeds = len(self.study.seeds) > 1
        return [
            f"{group.label}, seed {job.seed}" if has_several_seeds else group.label
            for prepared in self.campaigns
            for group in prepared.groups
            for job in group.jobs
        ]

    def epsilon_so_far(self, number: int, slots: int) -> float | None:
        """Return an upper bound on epsilon after the first ``slots`` slots of job ``number``.

        Return None if the job is a baseline or if the bound is not computed yet.
        """
        for prepared in self.campaigns:
            for group in prepared.groups:
                if number < len(group.jobs):
                    return None if group.baseline else prepared.accounting.epsilon_so_far(slots)
                number -= len(group.jobs)
        return None

    def run(
        self,
        *,
        processes: int = 1,
        ray: bool = False,
        cache: Path | None = None,
        on_progress: Callable[[int, int, Metrics], None] | None = None,
    ) -> list[Outcome | None]:
        """Run the jobs. Outcomes that are in the folder ``cache`` are not computed again."""
        return workers.run_jobs(
            self.jobs, workers=processes, ray=ray, cache=cache, on_progress=on_progress
        )

    def result(self, outcomes: Sequence[Outcome | None]) -> SimulationResult | SweepResult | None:
        """Combine the outcomes. Return None if no job of any campaign was started."""
        remaining = iter(outcomes)
        campaign_results = []
        for prepared in self.campaigns:
            by_group = [[next(remaining) for _ in group.jobs] for group in prepared.groups]
            if (result := self._campaign_result(prepared, by_group)) is not None:
                campaign_results.append(result)
        if not campaign_results:
            return None
        if len(self.campaigns) == 1 and not self.campaigns[0].setting:
            return campaign_results[0]
        return SweepResult(tuple(campaign_results))

    def _campaign_result(
        self, prepared: _PreparedCampaign, by_group: Sequence[Sequence[Outcome | None]]
    ) -> SimulationResult | None:
        """Combine the outcomes of each group of jobs. The first group is the campaign itself.

        Return None if no job of the campaign itself was started.
        """
        pairs = zip(prepared.groups[0].jobs, by_group[0], strict=True)
        started_jobs = [(job, outcome) for job, outcome in pairs if outcome is not None]
        if not started_jobs:
            return None
        job, outcomes = started_jobs[0][0], [outcome for _, outcome in started_jobs]
        slots = max(outcome.slots for outcome in outcomes)
        certificate = prepared.accounting.full_certificate
        if not any(outcome.diverged for outcome in outcomes):
            contributors = [outcome.contributors for outcome in outcomes]
            certificate = prepared.accounting.certificate(slots, contributors)
        notes = self.study.notes
        design = prepared.campaign.design
        is_averaged = design.protocol is Protocol.AVERAGED and design.least_reports is None
        if is_averaged and certificate.adjacency is Adjacency.REPLACE_ONE:
            fewest = "the fewest reports of any run of any seed"
            notes = (*notes, f"the certificate of averaged updates is for {fewest}")
        complete = [[each is not None and each.complete for each in group] for group in by_group]
        accounting = prepared.accounting
        points = accounting.curve() if all(complete[0]) else accounting.computed_points(slots)
        loaded = load_task(job.task, job.folder)
        occupancy, dummies_expected = results.compare_with_theory(job, outcomes[0])
        return SimulationResult(
            campaign=prepared.campaign,
            certificate=certificate,
            complete=all(map(all, complete)),
            seeds=tuple(outcomes),
            scenario=job.scenario,
            data=results.DataSummary.of(loaded.data),
            model=job.task.model,
            dimension=loaded.model.dimension,
            noise="none" if job.mechanism is None else job.mechanism.noise_description,
            on_holdout=Evaluation(loaded).on_holdout,
            epsilon_by_slot=tuple(points),
            occupancy=occupancy,
            dummies_expected=dummies_expected,
            baselines=tuple(
                BaselineResult(
                    group.baseline, tuple(each for each in group_outcomes if each is not None)
                )
                for group, group_outcomes in zip(prepared.groups[1:], by_group[1:], strict=True)
                if group.baseline is not None
            ),
            notes=notes,
            settings=prepared.setting,
        )

    def close(self) -> None:
        """Stop the accounting and its thread."""
        for prepared in self.campaigns:
            prepared.accounting.close()
        self.pool.shutdown(wait=False, cancel_futures=True)


class BackgroundAccounting:
    """Compute the certificate of a campaign, and its curve of epsilon over slots, in a thread.

    ``contributors[i][j]`` is the number of reports in run j of seed i. The certificate of the
    averaged protocol depends on these numbers.
    """

    def __init__(
        self, campaign: Campaign, pool: Executor, contributors: Sequence[Sequence[int]] = ()
    ) -> None:
        """Start to compute the certificate. The curve over slots waits for ``begin_curve``."""
        self._campaign = campaign
        self._pool = pool
        self._spending = Spending(campaign)
        self._points: list[tuple[int, float]] = []
        self._stopping = False
        runs: Sequence[PartialRun] = (PartialRun.whole(campaign),)
        if self._is_averaged:
            runs = self._worst_runs(contributors)
        self._certificate = pool.submit(certify_runs, runs, compare=True)
        self._curve: Future[None] | None = None

    def begin_curve(self) -> Future[None]:
        """Queue the computation of the curve of epsilon over slots, if it is not queued yet."""
        if self._curve is None:
            self._curve = self._pool.submit(self._compute_curve)
        return self._curve

    @property
    def _is_averaged(self) -> bool:
        return self._campaign.design.protocol is Protocol.AVERAGED

    def _worst_runs(self, contributors: Sequence[Sequence[int]]) -> list[PartialRun]:
        """Return runs whose epsilon is at least that of every seed.

        Each of these runs has the fewest reports of any run, because fewer reports give a larger
        epsilon. Runs without reports are not counted, because they release nothing.
        """
        slots = self._campaign.design.slots
        used_runs = max((sum(count > 0 for count in runs) for runs in contributors), default=0)
        if not used_runs:
            return [PartialRun(self._campaign, slots, contributors=0)]
        fewest = min(count for runs in contributors for count in runs if count)
        return [PartialRun(self._campaign, slots, contributors=fewest, times=used_runs)]

    def _compute_curve(self) -> None:
        slots = self._spending.remaining_slots
        if self._is_averaged:  # epsilon does not depend on the number of slots
            self._points.append((slots, self.full_certificate.epsilon))
            return
        steps = range(1, _CURVE_POINTS + 1)
        for count in sorted({max(1, slots * step // _CURVE_POINTS) for step in steps}):
            if self._stopping:
                return
            [point] = self._spending.curve([count])
            self._points.append(point)

    def epsilon_so_far(self, slots: int) -> float | None:
        """Return an upper bound on epsilon after ``slots`` slots; None if not computed yet."""
        index = bisect.bisect_left(self._points, (slots, 0.0))
        return self._points[index][1] if index < len(self._points) else None

    @property
    def full_certificate(self) -> Certificate:
        """The certificate of all runs, up to their last slots. Waits until it is computed."""
        return self._certificate.result()

    def curve(self) -> list[tuple[int, float]]:
        """Return pairs (slots, epsilon) up to the last slot. Waits until they are computed."""
        self.begin_curve().result()
        return list(self._points)

    def computed_points(self, slots: int) -> list[tuple[int, float]]:
        """Return the points of the curve up to ``slots`` that are already computed."""
        return [point for point in self._points if point[0] <= slots]

    def certificate(self, slots: int, contributors: Sequence[Sequence[int]]) -> Certificate:
        """Return the certificate of the first ``slots`` slots, counted over all runs.

        With the averaged protocol, the certificate is for the fewest reports of any run.
        """
        if slots >= self._spending.remaining_slots:
            return self.full_certificate
        if self._is_averaged:
            certificate = certify_runs(self._worst_runs(contributors))
        else:
            run, slot = divmod(max(slots - 1, 0), self._campaign.design.slots)
            certificate = self._spending.after(slot + (slots > 0), run=run + 1)
        return replace(certificate, assumptions=(*certificate.assumptions, FIXED_BEFOREHAND))

    def close(self) -> None:
        """Stop computing the curve, after the current point."""
        self._stopping = True
