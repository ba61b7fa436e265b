"""Simulate designs and write the metric of the model for each seed.

python -m bench.trying DESIGNS.json FOUND.json       # needs only jax, numpy and scipy

Without a git history, --commit names the commit of the files.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from checkins.campaign import Campaign, campaign_from_canonical
from checkins.simulation.engine.mechanism import Mechanism
from checkins.simulation.study import ScenarioOptions
from checkins.simulation.workers import Job, load_task
from tools.figures import new_record
from tools.measured import Record, commit_here


@dataclass(frozen=True, slots=True)
class Tried:
    """A design, and its metric for each seed."""

    name: str
    campaign: Campaign
    found: tuple[float, ...]

    @property
    def mean(self) -> float:
        return fmean(self.found)

    def behind(self, other: Tried, *, sign: float) -> tuple[float, float]:
        """Return by how much it is worse than another design, and the standard error."""
        gaps = [sign * (b - a) for a, b in zip(self.found, other.found, strict=True)]
        return fmean(gaps), stdev(gaps) / math.sqrt(len(gaps))


def tried(name: str, campaign: Campaign, *, metric: str, seeds: int) -> Tried:
    """Simulate the design with each seed. A model that diverged gets the worst metric.

    The metric is that of the average of the models if the design declares one.
    """
    task = campaign.task
    assert task is not None
    lesson = load_task(task, ".")
    scenario = ScenarioOptions().scenario(campaign, lesson.data.clients)
    method = Mechanism.of(campaign, lesson.model.dimension)
    worst = math.inf if metric == "loss" else 0.0
    jobs = [
        Job(task, ".", method, scenario, seed, evaluations=1, allow_divergence=True)
        for seed in range(1, seeds + 1)
    ]
    outcomes = [job.run() for job in jobs]
    metrics = [outcome.average_metrics or outcome.metrics for outcome in outcomes]
    return Tried(name, campaign, tuple(found.get(metric, worst) for found in metrics))


def main(asked: Path, kept: Path, measured: Record) -> None:
    """Simulate each design and write its results at once."""
    order = json.loads(asked.read_text())
    order["measured"] = measured.as_json()
    results: dict[str, list[float]] = {}
    for name, text in order["designs"].items():
        campaign = campaign_from_canonical(text)
        one = tried(name, campaign, metric=order["metric"], seeds=order["seeds"])
        results[name] = list(one.found)
        print(name, one.found, flush=True)
        kept.write_text(json.dumps({**order, "found": results}, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("designs", type=Path)
    parser.add_argument("found", type=Path)
    parser.add_argument("--commit", help="default: CHECKINS_COMMIT, or git's HEAD")
    options = parser.parse_args()
    commit = commit_here(options.commit)
    main(options.designs, options.found, new_record("recommended-fashion-mnist", commit=commit))
