"""The result of a simulation as plain values: what is printed, kept and shown on the page."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from checkins.accounting import Certificate, NoiseAt
from checkins.campaign import Campaign, campaign_text
from checkins.simulation.baselines import WHAT, Alternative
from checkins.simulation.evaluation import Evaluation, Metrics
from checkins.simulation.job import Job, lesson_of
from checkins.simulation.outcome import Outcome

MOST_RUNS_COUNTED = 20
"""Of the first seed: whose slots' check-ins are held against their law."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A baseline and what came of it."""

    alternative: Alternative
    outcomes: tuple[Outcome, ...]

    def as_dict(self) -> dict[str, Any]:
        found = self.alternative
        method = found.method
        return {
            "name": str(found.baseline),
            "what": WHAT[found.baseline],
            "epsilon": found.epsilon,
            "delta": found.delta,
            "adjacency": None if found.adjacency is None else str(found.adjacency),
            "noise": "none" if method is None else method.noise_words,
            "metrics": mean(outcome.metrics for outcome in self.outcomes),
            "spread": spread([outcome.metrics for outcome in self.outcomes]),
            "curves": [outcome.as_dict()["curve"] for outcome in self.outcomes],
            "unavailable": found.unavailable or self._why_not(),
        }

    def _why_not(self) -> str | None:
        if not self.outcomes:
            return "interrupted before it"
        if any(outcome.diverged for outcome in self.outcomes):
            return "its model diverged: the noise is too much for this rate"
        return None


def result(
    campaign: Campaign,
    done: Sequence[tuple[Job, Outcome]],
    certificate: Certificate,
    *,
    complete: bool,
    spent: Iterable[tuple[int, float]],
    compared: Sequence[Compared],
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """One campaign's; ``done`` is what was done of its seeds, at least one."""
    job, first = done[0]
    outcomes = [outcome for _, outcome in done]
    lesson = lesson_of(job.task, job.folder)
    data = lesson.data
    points = list(spent)
    return {
        "simulated": True,
        "complete": complete,
        "notes": [*notes],
        "campaign": {
            "name": campaign.name,
            "seal": campaign.seal,
            "text": campaign_text(campaign),
        },
        "budget": {
            "epsilon": campaign.budget.epsilon,
            "delta": campaign.budget.delta,
            "adjacency": str(campaign.budget.adjacency),
        },
        "within_budget": certificate.epsilon <= campaign.budget.epsilon,
        "diverged": any(outcome.diverged for outcome in outcomes),
        "noise": "none" if job.method is None else job.method.noise_words,
        "model": {"name": job.task.model, "dimension": lesson.model.dimension},
        "data": {
            "name": data.name,
            "clients": data.clients,
            "rows": len(data.labels),
            "classes": data.classes,
            "holdout_rows": len(data.holdout_labels),
        },
        "scenario": {
            "clients": job.scenario.clients,
            "reused": job.scenario.clients > data.clients,
            "availability": str(job.scenario.availability),
            "dropout": job.scenario.dropout,
        },
        "metrics": mean(outcome.metrics for outcome in outcomes),
        "metrics_on": "holdout" if Evaluation(lesson).on_holdout else "clients",
        "spread": spread([outcome.metrics for outcome in outcomes]),
        "certificate": certificate.as_dict(),
        "slots": first.slots,
        "check_ins": first.check_ins,
        "dummies": first.dummies,
        "client_updates": first.client_updates,
        "seconds": sum(outcome.seconds for outcome in outcomes),
        "client_updates_per_second": statistics.fmean(
            outcome.updates_per_second for outcome in outcomes
        ),
        "seeds": [_seed(outcome) for outcome in outcomes],
        "spent": {
            "slots": [slots for slots, _ in points],
            "epsilon": [epsilon for _, epsilon in points],
        },
        **_against_theory(job, first),
        "baselines": [baseline.as_dict() for baseline in compared],
        "versions": _versions(),
    }


def mean(found: Iterable[Metrics]) -> Metrics:
    """Of each metric over seeds; none where a model diverged."""
    every = list(found)
    names = every[0] if every and all(every) else {}
    return {name: statistics.fmean(metrics[name] for metrics in every) for name in names}


def spread(every: Sequence[Metrics]) -> dict[str, float] | None:
    """The standard deviation of each metric over seeds; None with one seed."""
    if len(every) < 2 or not all(every):
        return None
    return {name: statistics.stdev(metrics[name] for metrics in every) for name in every[0]}


def _seed(outcome: Outcome) -> dict[str, Any]:
    found = outcome.as_dict()
    found["slots_done"] = found.pop("slots")
    del found["contributors"]
    return found


def _against_theory(job: Job, outcome: Outcome) -> Mapping[str, Any]:
    """Check-ins of the first seed's slots beside their law, and how many dummies were due."""
    if job.method is None or not outcome.slots:
        return {"occupancy": None, "dummies_expected": None}
    from checkins.simulation import expectation  # scipy.stats: slots need not wait for it

    crowd = job.training(lesson_of(job.task, job.folder)).crowd
    runs = min(math.ceil(outcome.slots / job.method.design.slots), MOST_RUNS_COUNTED)
    counted = np.concatenate([crowd.run(run).check_ins for run in range(1, runs + 1)])
    with_dummies = not job.method.averaged and job.method.noise_at is NoiseAt.CLIENT
    due = expectation.dummies(crowd) * job.method.runs if with_dummies else None
    if due is not None and not outcome.complete:
        due *= outcome.slots / job.slots
    return {
        "occupancy": expectation.occupancy(crowd, counted[: outcome.slots]).as_dict(),
        "dummies_expected": due,
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in ("checkins", "jax", "numpy", "optax"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
