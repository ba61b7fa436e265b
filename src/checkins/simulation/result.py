"""The result of a simulation, as frozen dataclasses for the report, the command line and the JSON.

``as_json`` returns plain values, which ``checkins simulate --json`` prints and ``result.json``
contains. A dummy is a report without data, which the server draws in place of a missing report.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np

from checkins.accounting import Certificate, NoiseAt
from checkins.campaign import Campaign, campaign_text
from checkins.simulation.baselines import BASELINE_DESCRIPTIONS, Baseline, CalibratedBaseline
from checkins.simulation.engine.evaluation import Metrics
from checkins.simulation.engine.outcome import Curve, Outcome, curve_as_json
from checkins.simulation.engine.training import Scenario
from checkins.simulation.workers import Job, load_task
from checkins.tasks.data import Dataset

if TYPE_CHECKING:
    from checkins.simulation.population import Histogram

MAX_HISTOGRAM_RUNS = 20
"""Largest number of runs, all of the first seed, in the histogram of check-ins per slot."""

METRIC_ORDER = ("auc", "accuracy", "loss")
"""Names of metrics by preference. The first one that a result has is its headline metric."""


@dataclass(frozen=True, slots=True)
class DataSummary:
    """The size of the data that a campaign learned from."""

    name: str
    clients: int
    rows: int
    classes: int
    """Number of classes; 0 if the targets are real numbers."""
    holdout_rows: int

    @classmethod
    def of(cls, data: Dataset) -> DataSummary:
        rows, holdout_rows = len(data.labels), len(data.holdout_labels)
        return cls(data.name, data.clients, rows, data.classes, holdout_rows)


class _SeedStatistics:
    """Mean and standard deviation of metrics over the seeds of a campaign or of a baseline."""

    __slots__ = ()
    seeds: Any

    @property
    def metrics(self) -> Metrics:
        """The mean of each metric over the seeds; empty if a model diverged."""
        return _means([outcome.metrics for outcome in self.seeds])

    @property
    def spread(self) -> Metrics | None:
        """The standard deviation of each metric over the seeds.

        It is None if there is only one seed or if a model diverged.
        """
        return _deviations([outcome.metrics for outcome in self.seeds])

    @property
    def average_metrics(self) -> Metrics:
        """The mean of each metric of the averaged model, over the seeds.

        The averaged model is a weighted average of the models of all slots (``average_weights``).
        The result is empty if no average was computed or if a model diverged.
        """
        return _means([outcome.average_metrics for outcome in self.seeds])

    @property
    def average_spread(self) -> Metrics | None:
        """The standard deviation of each metric of the averaged model, over the seeds.

        It is None if there is only one seed, if no average was computed, or if a model diverged.
        """
        return _deviations([outcome.average_metrics for outcome in self.seeds])


def _means(seed_metrics: list[Metrics]) -> Metrics:
    names = seed_metrics[0] if seed_metrics and all(seed_metrics) else {}
    return {name: statistics.fmean(metrics[name] for metrics in seed_metrics) for name in names}


def _deviations(seed_metrics: list[Metrics]) -> Metrics | None:
    if len(seed_metrics) < 2 or not all(seed_metrics):
        return None
    names = seed_metrics[0]
    return {name: statistics.stdev(metrics[name] for metrics in seed_metrics) for name in names}


@dataclass(frozen=True, slots=True)
class BaselineResult(_SeedStatistics):
    """A baseline and the outcomes of its seeds."""

    baseline: CalibratedBaseline
    seeds: tuple[Outcome, ...]

    @property
    def kind(self) -> Baseline:
        return self.baseline.kind

    @property
    def description(self) -> str:
        return BASELINE_DESCRIPTIONS[self.kind]

    @property
    def noise(self) -> str:
        mechanism = self.baseline.mechanism
        return "none" if mechanism is None else mechanism.noise_description

    @property
    def curves(self) -> list[Curve]:
        return [outcome.curve for outcome in self.seeds]

    @property
    def unavailable(self) -> str | None:
        """The reason why the baseline has no metrics; None if it has metrics."""
        if self.baseline.unavailable is None and not self.seeds:
            return "the simulation was interrupted before this baseline"
        if any(outcome.diverged for outcome in self.seeds):
            return "its model diverged, because the rate is too large for this noise"
        return self.baseline.unavailable

    def as_json(self) -> dict[str, Any]:
        adjacency = self.baseline.adjacency
        return {
            "name": str(self.kind),
            "what": self.description,
            "epsilon": self.baseline.epsilon,
            "delta": self.baseline.delta,
            "adjacency": None if adjacency is None else str(adjacency),
            "noise": self.noise,
            "metrics": self.metrics,
            "spread": self.spread,
            "average_metrics": self.average_metrics,
            "average_spread": self.average_spread,
            "curves": [curve_as_json(outcome.curve) for outcome in self.seeds],
            "average_curves": [curve_as_json(outcome.average_curve) for outcome in self.seeds],
            "unavailable": self.unavailable,
        }


@dataclass(frozen=True, slots=True)
class SimulationResult(_SeedStatistics):
    """One simulated campaign: its metrics, its certificate and its baselines.

    The numbers of slots, check-ins, dummies and updates are from the first seed. Metrics are means
    over the seeds.
    """

    campaign: Campaign
    certificate: Certificate
    complete: bool
    """Whether every seed of the campaign and of its baselines reached the last slot."""
    seeds: tuple[Outcome, ...]
    """Outcomes of the seeds that were started. There is at least one."""
    scenario: Scenario
    data: DataSummary
    model: str
    dimension: int
    noise: str
    on_holdout: bool
    """True if metrics are measured on public held-out rows, False if on the clients' rows."""
    epsilon_by_slot: tuple[tuple[int, float], ...]
    """Pairs (number of slots, epsilon after these slots)."""
    occupancy: Histogram | None
    """Measured and expected check-ins per slot; None if no slot was simulated."""
    dummies_expected: float | None
    """Expected number of dummies; None if the protocol has no dummies."""
    baselines: tuple[BaselineResult, ...] = ()
    notes: tuple[str, ...] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    """Keys of the campaign file that a sweep replaced, with their new values."""
    command: str | None = None
    """The command that repeats the simulation; None if no command started it."""

    @property
    def within_budget(self) -> bool:
        return self.certificate.epsilon <= self.campaign.budget.epsilon

    @property
    def clients_share_rows(self) -> bool:
        """Whether several simulated clients hold the same rows of the data."""
        return self.scenario.clients > self.data.clients

    @property
    def diverged(self) -> bool:
        return any(outcome.diverged for outcome in self.seeds)

    @property
    def metric_names(self) -> list[str]:
        """Names of the metrics, the headline first; empty if a model diverged."""
        return [name for name in METRIC_ORDER if name in self.metrics]

    @property
    def headline(self) -> str | None:
        """Name of the metric to compare by; None if a model diverged."""
        return next(iter(self.metric_names), None)

    @property
    def curves(self) -> list[Curve]:
        """Learning curves of the seeds that ran to the end, or of all seeds if none did."""
        return [outcome.curve for outcome in self._plotted_outcomes]

    @property
    def average_curves(self) -> list[Curve]:
        """Learning curves of the averaged model, for the same seeds as ``curves``."""
        return [
            outcome.average_curve for outcome in self._plotted_outcomes if outcome.average_curve
        ]

    @property
    def _plotted_outcomes(self) -> list[Outcome]:
        started = [outcome for outcome in self.seeds if outcome.curve]
        return [outcome for outcome in started if outcome.complete] or started

    @property
    def slots(self) -> int:
        return self.seeds[0].slots

    @property
    def check_ins(self) -> int:
        return self.seeds[0].check_ins

    @property
    def dummies(self) -> int:
        return self.seeds[0].dummies

    @property
    def client_updates(self) -> int:
        return self.seeds[0].client_updates

    @property
    def seconds(self) -> float:
        """Time that training took, summed over the seeds."""
        return sum(outcome.seconds for outcome in self.seeds)

    @property
    def updates_per_second(self) -> float:
        """Client updates per second without compilation time, as a mean over the seeds."""
        return statistics.fmean(outcome.updates_per_second for outcome in self.seeds)

    @property
    def available_baselines(self) -> list[BaselineResult]:
        """The baselines that have metrics."""
        return [baseline for baseline in self.baselines if baseline.unavailable is None]

    def baseline(self, kind: Baseline) -> BaselineResult | None:
        """Return the baseline of this kind if it has metrics, else None."""
        return next((result for result in self.available_baselines if result.kind is kind), None)

    @property
    def versions(self) -> dict[str, str]:
        """Versions of the packages that affect the numbers, if they are installed."""
        versions = {}
        for name in ("checkins", "jax", "numpy", "optax"):
            with suppress(PackageNotFoundError):
                versions[name] = version(name)
        return versions

    def as_json(self) -> dict[str, Any]:
        """Return plain values. An infinite epsilon of the certificate becomes None."""
        campaign, budget = self.campaign, self.campaign.budget
        file_text = campaign_text(campaign)
        fields: dict[str, Any] = {
            "simulated": True,
            "complete": self.complete,
            "notes": [*self.notes],
            "campaign": {"name": campaign.name, "seal": campaign.seal, "text": file_text},
            "budget": asdict(budget) | {"adjacency": str(budget.adjacency)},
            "within_budget": self.within_budget,
            "diverged": self.diverged,
            "noise": self.noise,
            "model": {"name": self.model, "dimension": self.dimension},
            "data": asdict(self.data),
            "scenario": {
                "clients": self.scenario.clients,
                "reused": self.clients_share_rows,
                "availability": str(self.scenario.availability),
                "dropout": self.scenario.dropout,
            },
            "metrics": self.metrics,
            "metrics_on": "holdout" if self.on_holdout else "clients",
            "spread": self.spread,
            "average_metrics": self.average_metrics,
            "average_spread": self.average_spread,
            "certificate": self.certificate.as_dict(),
            "slots": self.slots,
            "check_ins": self.check_ins,
            "dummies": self.dummies,
            "client_updates": self.client_updates,
            "seconds": self.seconds,
            "client_updates_per_second": self.updates_per_second,
            "seeds": [outcome.as_json() for outcome in self.seeds],
            "spent": {
                "slots": [slots for slots, _ in self.epsilon_by_slot],
                "epsilon": [epsilon for _, epsilon in self.epsilon_by_slot],
            },
            "occupancy": None if self.occupancy is None else self.occupancy.as_json(),
            "dummies_expected": self.dummies_expected,
            "baselines": [baseline.as_json() for baseline in self.baselines],
            "versions": self.versions,
        }
        if self.settings:
            fields["settings"] = dict(self.settings)
        return fields if self.command is None else {**fields, "command": self.command}


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The results of several settings of one campaign file, in the order of the settings."""

    runs: tuple[SimulationResult, ...]
    command: str | None = None
    """The command that repeats the sweep; None if no command started it."""

    def as_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"sweep": [run.as_json() for run in self.runs]}
        return fields if self.command is None else {**fields, "command": self.command}


def compare_with_theory(job: Job, outcome: Outcome) -> tuple[Histogram | None, float | None]:
    """Return the histogram of check-ins per slot, and the expected number of dummies.

    ``outcome`` is the outcome of ``job``. If no slot was simulated, both values are None. If the
    protocol has no dummies, their expected number is None.
    """
    if job.mechanism is None or not outcome.slots:
        return None, None
    from checkins.simulation.population import expected_dummies, occupancy

    mechanism = job.mechanism
    population = job.training(load_task(job.task, job.folder)).population
    runs = min(math.ceil(outcome.slots / mechanism.design.slots), MAX_HISTOGRAM_RUNS)
    check_ins = np.concatenate([population.draw_run(run).check_ins for run in range(1, runs + 1)])
    has_dummies = not mechanism.is_averaged and mechanism.noise_at is NoiseAt.CLIENT
    expected = expected_dummies(population) * mechanism.runs if has_dummies else None
    if expected is not None and not outcome.complete:
        expected *= outcome.slots / job.slots
    return occupancy(population, check_ins[: outcome.slots]), expected
