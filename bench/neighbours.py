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
from checkins.campaign.file import Template, template_text
from checkins.errors import InvalidValue, NotCovered
from checkins.planning import Constraints, Learning, Question, make_plan
from checkins.planning.cost_model import AVERAGE_SHARE
from checkins.tasks.loaded_task import model_of

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Problem:
    """A task with a budget. Designs are compared by ``metric`` on its public holdout.

    ``runs`` is the number of runs, or None if the planner chooses it.
    """

    name: str
    task: Task
    epsilon: float
    delta: float
    population: Population
    metric: str
    seeds: int
    runs: int | None = None

    @property
    def title(self) -> str:
        if self.runs is None:
            return self.name
        return f"{self.name}, {self.runs} run{'' if self.runs == 1 else 's'}"

    @property
    def file_name(self) -> str:
        """The name of the file of stored results in bench/recommended."""
        return f"{self.name}.json" if self.runs is None else f"{self.name}-{self.runs}.json"

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
    """Return three tasks: one is small and noisy, one has a large model, one a known optimum.

    The first two are also planned for one, two and five runs.
    """
    patients, pictures, synthetic = [
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
    few_runs = [
        replace(problem, runs=runs, seeds=seeds)
        for problem, seeds in ((patients, 12), (pictures, 5))
        for runs in (1, 2, 5)
    ]
    return [patients, pictures, synthetic, *few_runs]


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
    chosen = problem.planned(Constraints(repeats=problem.runs))
    yield "**recommended**", chosen
    task = chosen.task
    assert task is not None
    for factor, word in ((0.5, "half"), (2.0, "twice")):
        optimizer = replace(task.optimizer, rate=task.optimizer.rate * factor)
        yield f"{word} the rate", replace(chosen, task=replace(task, optimizer=optimizer))
    here = _as_fixed(chosen)
    changes = [*_changes(here)]
    if problem.runs is not None:
        average = AVERAGE_SHARE if task.average is None else None
        name = "the average of the models" if average else "the last model"
        yield name, replace(chosen, task=replace(task, average=average))
        changes = [change for change in changes if "repeats" not in change[1]]
        changes += _changes_of_bands(here)
    for name, change in changes:
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
        bands=1 if campaign.strategy is None else campaign.strategy.bands,
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
    yield "noise at the clients", {"noise_at": NoiseAt.CLIENT, "capacity": None, "bands": None}


def _changes_of_bands(here: Constraints) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield other numbers of bands, each planned with the number of slots that suits it."""
    if here.bands == 1:
        yield "16 bands", {"bands": 16, "slots": None}
        return
    bands = here.bands or 1
    yield "independent noise", {"bands": 1, "slots": None}
    yield "half the bands", {"bands": bands // 2, "slots": None}
    yield "twice the bands", {"bands": 2 * bands, "slots": None}


if __name__ == "__main__":
    chosen = next(problem for problem in problems() if problem.title == sys.argv[1])
    designs = {name: campaign.canonical() for name, campaign in neighbours(chosen)}
    print(json.dumps({"metric": chosen.metric, "seeds": chosen.seeds, "designs": designs}))
