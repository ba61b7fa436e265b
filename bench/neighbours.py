"""List the design that `checkins plan` recommends, and designs that differ in one parameter.

python -m bench.neighbours NAME > DESIGNS.json       # for ``bench.trying`` on another machine
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from checkins.accounting import Adjacency, NoiseAt, Population
from checkins.campaign import Campaign, Task, parse_campaign, read_campaign
from checkins.campaign.templates import Template, template_text
from checkins.errors import InvalidValue, NotCovered
from checkins.planning import Constraints, Learning, Question, make_plan
from checkins.tasks.loaded_task import model_of

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Problem:
    """A task with a budget. Designs are compared by ``metric`` on its public holdout."""

    name: str
    task: Task
    epsilon: float
    delta: float
    population: Population
    metric: str
    seeds: int

    def question(self, fixed: Constraints) -> Question:
        return Question(
            self.population,
            self.epsilon,
            self.delta,
            Adjacency.ADD_REMOVE,
            dimension=model_of(self.task).dimension,
            learning=Learning.of(self.task, name=self.name),
            fixed=fixed,
        )

    def planned(self, fixed: Constraints) -> Campaign:
        return make_plan(self.question(fixed)).campaign


def problems() -> list[Problem]:
    """Return three tasks: one is small and noisy, one has a large model, one a known optimum."""
    return [
        Problem(
            "patients", _task("patients"), 0.5, 1e-6, Population(15_000, 20_000), "auc", seeds=12
        ),
        Problem(
            "fashion-mnist",
            _task("examples/fashion_mnist.toml"),
            2.7,
            1e-5,
            Population(60_000, 60_000),
            "accuracy",
            seeds=10,
        ),
        Problem(
            "synthetic", _task("synthetic"), 1.0, 1e-6, Population(10_000, 10_000), "loss", seeds=12
        ),
    ]


def _task(source: str) -> Task:
    """Return the task of a template or of a campaign file."""
    file = ROOT / source
    found = (
        read_campaign(file) if file.exists() else parse_campaign(template_text(Template(source)))
    )
    task = found.campaign.task
    assert task is not None
    return task


def neighbours(problem: Problem) -> Iterator[tuple[str, Campaign]]:
    """Yield the recommended design, then designs that differ from it in one parameter."""
    chosen = problem.planned(Constraints())
    yield "**recommended**", chosen
    task = chosen.task
    assert task is not None
    for factor, word in ((0.5, "half"), (2.0, "twice")):
        optimizer = replace(task.optimizer, rate=task.optimizer.rate * factor)
        yield f"{word} the rate", replace(chosen, task=replace(task, optimizer=optimizer))
    here = _as_fixed(chosen)
    for name, change in _changes(here):
        try:
            yield name, problem.planned(replace(here, **change))
        except (InvalidValue, NotCovered):
            continue  # not every parameter can be changed in every design


def _as_fixed(campaign: Campaign) -> Constraints:
    design = campaign.design
    return Constraints(
        protocol=design.protocol,
        slots=design.slots,
        participation=design.participation,
        capacity="all" if design.capacity is None else design.capacity,
        window=design.window,
        repeats=campaign.repeats,
        minibatch=1,
        noise_at=campaign.noise_at,
        randomizer=campaign.randomizer.kind,
    )


def _changes(here: Constraints) -> Iterator[tuple[str, dict[str, Any]]]:
    slots, repeats = here.slots or 1, here.repeats or 1
    yield "half the slots", {"slots": max(1, slots // 2)}
    yield "twice the slots", {"slots": 2 * slots}
    yield "four times the slots", {"slots": 4 * slots}
    if repeats > 1:
        if repeats > 3:
            yield "half the runs", {"repeats": repeats // 2}
        yield "one run", {"repeats": 1}
        yield "one run, all the slots", {"repeats": 1, "slots": slots * repeats}
    yield "twice the runs", {"repeats": 2 * repeats}
    yield "half the participation", {"participation": (here.participation or 1.0) / 2}
    yield "steps every second slot", {"minibatch": 2}
    yield "noise at the clients", {"noise_at": NoiseAt.CLIENT, "capacity": None}


if __name__ == "__main__":
    chosen = next(problem for problem in problems() if problem.name == sys.argv[1])
    designs = {name: campaign.canonical() for name, campaign in neighbours(chosen)}
    print(json.dumps({"metric": chosen.metric, "seeds": chosen.seeds, "designs": designs}))
