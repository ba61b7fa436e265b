"""What came of one simulated campaign from one seed: counts, the learning curve, the last model."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from checkins.campaign import Campaign
from checkins.errors import InvalidValue
from checkins.simulation.checkpoint import Checkpoint
from checkins.simulation.evaluation import Metrics, Point
from checkins.simulation.mechanism import Mechanism
from checkins.simulation.optimizers import server_of
from checkins.simulation.training import Progress, Scenario, Training
from checkins.simulation.updates import LocalWork
from checkins.tasks.loaded_task import LoadedTask

SAVE_EVERY_S = 20.0


@dataclass(frozen=True, eq=False)
class Outcome:
    """Of one seed. ``seconds`` are those spent in slots, the first stretch with its compiling."""

    seed: int
    complete: bool
    slots: int
    check_ins: int
    client_updates: int
    dummies: int
    contributors: tuple[int, ...]
    curve: tuple[Point, ...]
    seconds: float
    updates_per_second: float
    """Once the loop is compiled."""
    model: NDArray[np.float32] = field(repr=False)

    @classmethod
    def of_divergence(cls, seed: int) -> Outcome:
        """Nothing came of it: the model did not stay finite."""
        nothing = np.zeros(0, np.float32)
        return cls(seed, True, 0, 0, 0, 0, (), (), 0.0, 0.0, nothing)

    @property
    def diverged(self) -> bool:
        return not self.curve

    @property
    def metrics(self) -> Metrics:
        """Of the last model."""
        return self.curve[-1].metrics if self.curve else {}

    def as_dict(self) -> dict[str, Any]:
        """Without the model."""
        found = asdict(self)
        del found["model"]
        names = list(self.metrics)
        found["metrics"] = self.metrics
        found["curve"] = {
            "slots": [point.slots for point in self.curve],
            **{name: [point.metrics[name] for point in self.curve] for name in names},
        }
        return found


Watch = Callable[[Progress, Metrics], bool]
"""Told after every stretch, with the latest metrics; False stops the campaign there."""


def simulate(
    campaign: Campaign,
    *,
    lesson: LoadedTask | None = None,
    scenario: Scenario | None = None,
    seed: int = 1,
    evaluations: int = 50,
) -> Outcome:
    """Run a campaign on a virtual clock, every slot of it, whatever its budget.

    Without a lesson the campaign's own data are loaded; without a scenario there is one client for
    each in the data, always online.
    """
    return train(
        training_of(campaign, lesson=lesson, scenario=scenario, seed=seed, evaluations=evaluations)
    )


def training_of(
    campaign: Campaign,
    *,
    lesson: LoadedTask | None = None,
    scenario: Scenario | None = None,
    seed: int = 1,
    evaluations: int = 50,
) -> Training:
    """What ``simulate`` runs."""
    task = campaign.task
    if task is None:
        raise InvalidValue("task", None, "a campaign that learns needs a [task]")
    lesson = LoadedTask.of(task) if lesson is None else lesson
    return Training(
        Mechanism.of(campaign, lesson.model.dimension),
        lesson,
        server_of(task.optimizer),
        scenario or Scenario(lesson.data.clients),
        seed,
        LocalWork(task.local_steps, task.local_step_size),
        evaluations,
    )


def train(
    training: Training, *, watch: Watch | None = None, checkpoint: Checkpoint | None = None
) -> Outcome:
    """Run to the end, or until ``watch`` says no; go on from the checkpoint if it holds one."""
    saved = None if checkpoint is None else checkpoint.read(training.start())
    position = training.start() if saved is None else saved.position
    curve = [Point(0, training.measured(position))] if saved is None else list(saved.curve)
    before = 0.0 if saved is None else saved.seconds
    began = last_saved = time.perf_counter()
    compiled_at, compiled_slots = began, 0
    slots = (position.run - 1) * training.method.design.slots + position.slots
    first = slots
    for progress in training.steps(position):
        position, slots = progress.position, progress.slots
        if progress.metrics is not None:
            curve.append(Point(slots, progress.metrics))
        now = time.perf_counter()
        if not compiled_slots:
            compiled_at, compiled_slots = now, slots
        going = watch is None or watch(progress, curve[-1].metrics)
        if checkpoint is not None and (not going or now - last_saved > SAVE_EVERY_S):
            checkpoint.write(position, tuple(curve), before + now - began)
            last_saved = now
        if not going:
            break
    # Stopped early, a stretch may still be under way.
    jax.block_until_ready(position.state)  # type: ignore[no-untyped-call]
    ended = time.perf_counter()
    if curve[-1].slots != slots:
        curve.append(Point(slots, training.measured(position)))
    tally = training.tally(position)
    share = tally.reports / max(1, slots)
    timed, seconds = (
        (slots - compiled_slots, ended - compiled_at)
        if slots > compiled_slots
        else (slots - first, ended - began)
    )
    return Outcome(
        training.seed,
        slots == training.slots,
        slots,
        tally.check_ins,
        tally.reports,
        tally.dummies,
        tally.contributors,
        tuple(curve),
        before + ended - began,
        share * timed / max(seconds, 1e-9),
        training.model(position).astype(np.float32),
    )
