"""A study: campaigns and their baselines, each from several seeds, and what came of all of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checkins import validate
from checkins.accounting import Adjacency, Protocol
from checkins.campaign import Campaign, PartialRun
from checkins.errors import InvalidValue
from checkins.simulation import workers
from checkins.simulation.availability import Always, Availability
from checkins.simulation.baselines import Alternative, Baseline, alternative
from checkins.simulation.evaluation import Metrics, check_loss
from checkins.simulation.job import Job, lesson_of
from checkins.simulation.mechanism import Mechanism
from checkins.simulation.optimizers import server_of
from checkins.simulation.outcome import Outcome
from checkins.simulation.permutation import MOST_CLIENTS
from checkins.simulation.pricing import Pricing
from checkins.simulation.result import Compared, result
from checkins.simulation.sweep import label
from checkins.simulation.training import Scenario

Setting = dict[str, object]

MOST_SLOTS = 50_000_000
"""Of a run: their counts are held in memory, some fifty bytes each."""


@dataclass(frozen=True, slots=True)
class World:
    """What is assumed of the clients, besides what a campaign's file says.

    ``clients`` None means one for each in the data. More than that only with ``reuse``.
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
        """Refuses a population that the data, or the campaign's own promise, contradict."""
        declared = campaign.design.population
        clients = self.clients
        if clients is None:
            clients = in_data
            if declared and not declared.fewest <= in_data <= declared.most:
                if not self.reuse:
                    raise InvalidValue(
                        "population",
                        [declared.fewest, declared.most],
                        f"the data has {in_data:,} clients: change it, or say --reuse-clients"
                        " to let several clients hold the same rows",
                    )
                clients = declared.fewest if in_data < declared.fewest else declared.most
        elif declared and not declared.fewest <= clients <= declared.most:
            raise InvalidValue(
                "clients",
                clients,
                f"the file's population is {declared.fewest:,} to {declared.most:,}: change or"
                " remove [budget] population",
            )
        if clients > in_data and not self.reuse:
            raise InvalidValue(
                "clients",
                clients,
                f"the data has {in_data:,}: say --reuse-clients to let several hold the same rows",
            )
        return Scenario(clients, self.availability, self.dropout)


@dataclass(frozen=True, slots=True)
class _Group:
    """The jobs of one method: one for each seed."""

    label: str
    jobs: tuple[Job, ...]
    alternative: Alternative | None = None


@dataclass(frozen=True, slots=True)
class _Entry:
    """One campaign of the study."""

    setting: Setting
    campaign: Campaign
    pricing: Pricing
    groups: tuple[_Group, ...]


@dataclass(frozen=True, slots=True)
class Study:
    """Campaigns with what was set in each, seeds, and baselines; ``notes`` go into every result."""

    campaigns: tuple[tuple[Setting, Campaign], ...]
    folder: str = "."
    world: World = field(default_factory=World)
    seeds: tuple[int, ...] = (1,)
    baselines: tuple[Baseline, ...] = ()
    evaluations: int = 50
    notes: tuple[str, ...] = ()

    def check(self, campaign: Campaign) -> None:
        """Load its data and refuse what cannot be run."""
        if campaign.task is None:
            raise InvalidValue("task", None, "a campaign that learns needs a [task]")
        lesson = lesson_of(campaign.task, self.folder)
        check_loss(lesson, campaign.task.model)
        self.world.scenario(campaign, lesson.data.clients)
        if campaign.design.slots > MOST_SLOTS:
            raise InvalidValue(
                "slots", campaign.design.slots, f"must be at most {MOST_SLOTS:,} to be simulated"
            )
        Mechanism.of(campaign, lesson.model.dimension)
        server_of(campaign.task.optimizer)
        if not (variation := PartialRun.whole(campaign).variation) < campaign.budget.delta:
            raise InvalidValue("variation", variation, "is too coarse for so small a delta")

    def prepared(self) -> Prepared:
        """Data loaded, prices being worked out, baselines calibrated: every job is known."""
        pool = ThreadPoolExecutor(1, thread_name_prefix="pricing")
        try:
            entries = tuple(self._entry(*both, pool) for both in self.campaigns)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        for entry in entries:
            entry.pricing.begin_curve()
        return Prepared(self, entries, pool)

    def _entry(self, setting: Setting, campaign: Campaign, pool: Executor) -> _Entry:
        task = campaign.task
        if task is None:
            raise InvalidValue("task", None, "a campaign that learns needs a [task]")
        lesson = lesson_of(task, self.folder)
        dimension = lesson.model.dimension
        scenario = self.world.scenario(campaign, lesson.data.clients)
        method = Mechanism.of(campaign, dimension)
        averaged = campaign.design.protocol is Protocol.AVERAGED
        counted = [self._reports(method, scenario, seed) for seed in self.seeds] if averaged else []
        pricing = Pricing(campaign, pool, counted)

        def group(label: str, method: Mechanism | None, found: Alternative | None) -> _Group:
            lenient = found is not None or len(self.campaigns) > 1
            jobs = (
                Job(task, self.folder, method, scenario, seed, self.evaluations, lenient)
                for seed in self.seeds
            )
            return _Group(label, tuple(jobs), found)

        name = label(setting)
        groups = [group(name or "campaign", method, None)]
        for baseline in self.baselines:
            found = alternative(
                baseline, method, pricing.whole, clients=scenario.clients, dimension=dimension
            )
            if found.unavailable is None:
                called = f"{name}, {baseline}" if name else str(baseline)
                groups.append(group(called, found.method, found))
            else:
                groups.append(_Group(str(baseline), (), found))
        return _Entry(setting, campaign, pricing, tuple(groups))

    @staticmethod
    def _reports(method: Mechanism, scenario: Scenario, seed: int) -> list[int]:
        """How many reports each run of a seed will have."""
        crowd = scenario.crowd(method, seed)
        return [int(crowd.run(run).reports.sum()) for run in range(1, method.runs + 1)]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A study whose jobs are known."""

    study: Study
    entries: tuple[_Entry, ...]
    pool: Executor

    @property
    def jobs(self) -> list[Job]:
        return [job for entry in self.entries for group in entry.groups for job in group.jobs]

    @property
    def labels(self) -> list[str]:
        """What each job is called on a progress bar."""
        several = len(self.study.seeds) > 1
        return [
            f"{group.label}, seed {job.seed}" if several else group.label
            for entry in self.entries
            for group in entry.groups
            for job in group.jobs
        ]

    def epsilon_so_far(self, number: int, slots: int) -> float | None:
        """What a job's slots have cost by now; None for baselines, and while it is worked out."""
        for entry in self.entries:
            for group in entry.groups:
                if number < len(group.jobs):
                    return None if group.alternative else entry.pricing.epsilon_so_far(slots)
                number -= len(group.jobs)
        return None

    def run(
        self,
        *,
        processes: int = 1,
        ray: bool = False,
        keep: Path | None = None,
        watch: Callable[[int, int, Metrics], None] | None = None,
    ) -> list[Outcome | None]:
        """Do the jobs; what ``keep`` holds from before is not done again."""
        return workers.do_all(self.jobs, workers=processes, ray=ray, keep=keep, watch=watch)

    def result(self, outcomes: Sequence[Outcome | None]) -> dict[str, Any] | None:
        """The result of what was done; None if nothing was. A sweep is a list of results."""
        left = list(outcomes)
        found = []
        for entry in self.entries:
            done = [[left.pop(0) for _ in group.jobs] for group in entry.groups]
            ours = self._entry_result(entry, done)
            if ours is not None:
                found.append({**ours, "settings": entry.setting} if entry.setting else ours)
        if not found:
            return None
        if len(self.entries) == 1 and not self.entries[0].setting:
            return found[0]
        return {"sweep": found}

    def _entry_result(
        self, entry: _Entry, done: Sequence[Sequence[Outcome | None]]
    ) -> dict[str, Any] | None:
        begun = [
            (job, outcome)
            for job, outcome in zip(entry.groups[0].jobs, done[0], strict=True)
            if outcome is not None
        ]
        if not begun:
            return None
        outcomes = [outcome for _, outcome in begun]
        slots = max(outcome.slots for outcome in outcomes)
        certificate = entry.pricing.whole
        if not any(outcome.diverged for outcome in outcomes):
            certificate = entry.pricing.certificate(
                slots, [outcome.contributors for outcome in outcomes]
            )
        complete = all(outcome is not None and outcome.complete for outcome in done[0])
        spent = entry.pricing.curve() if complete else entry.pricing.known(slots)
        compared = [
            Compared(group.alternative, tuple(outcome for outcome in own if outcome is not None))
            for group, own in zip(entry.groups[1:], done[1:], strict=True)
            if group.alternative is not None
        ]
        notes = list(self.study.notes)
        averaged = entry.campaign.design.protocol is Protocol.AVERAGED
        if averaged and certificate.adjacency is Adjacency.REPLACE_ONE:
            notes.append("averaged updates are priced by the fewest reports of any run of any seed")
        return result(
            entry.campaign,
            begun,
            certificate,
            complete=all(
                outcome is not None and outcome.complete for own in done for outcome in own
            ),
            spent=spent,
            compared=compared,
            notes=notes,
        )

    def close(self) -> None:
        """Leave no thread behind."""
        for entry in self.entries:
            entry.pricing.close()
        self.pool.shutdown(wait=False, cancel_futures=True)
