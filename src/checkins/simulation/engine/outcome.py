"""Run a simulated campaign from one seed, with checkpoints."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from checkins import durable_file
from checkins.campaign import Campaign, Task
from checkins.errors import InvalidValue
from checkins.simulation.engine.evaluation import CurvePoint, Metrics
from checkins.simulation.engine.mechanism import Mechanism
from checkins.simulation.engine.training import Position, Progress, Scenario, Training
from checkins.tasks.loaded_task import LoadedTask

Curve = tuple[CurvePoint, ...]
"""A learning curve: metrics of the model, in order of the number of slots."""

CHECKPOINT_INTERVAL_S = 20.0
"""Seconds between two checkpoints."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of one seed: counts, learning curve and last model."""

    seed: int
    complete: bool
    slots: int
    check_ins: int
    client_updates: int
    dummies: int
    contributors: tuple[int, ...]
    """Number of reports in each run."""
    curve: Curve
    """The learning curve; empty if the model diverged."""
    seconds: float
    """Time of the training, including compilation."""
    updates_per_second: float
    """Client updates per second, without compilation."""
    model: NDArray[np.float32] = field(repr=False)

    @classmethod
    def of_divergence(cls, seed: int) -> Outcome:
        """Return the outcome of a seed whose model diverged."""
        no_weights = np.zeros(0, np.float32)
        return cls(seed, True, 0, 0, 0, 0, (), (), 0.0, 0.0, no_weights)

    @property
    def diverged(self) -> bool:
        return not self.curve

    @property
    def metrics(self) -> Metrics:
        """The metrics of the last model; empty if it diverged."""
        return self.curve[-1].metrics if self.curve else {}

    def as_json(self) -> dict[str, Any]:
        """Return values for JSON, without the model and the number of reports in each run."""
        fields = asdict(self)
        del fields["model"], fields["contributors"]
        fields["metrics"] = self.metrics
        fields["curve"] = {
            "slots": [point.slots for point in self.curve],
            **{name: [point.metrics[name] for point in self.curve] for name in self.metrics},
        }
        fields["slots_done"] = fields.pop("slots")
        return fields


OnProgress = Callable[[Progress, Metrics], bool]
"""Called after every chunk with the latest metrics. If it returns False, the training stops."""


def simulate(
    campaign: Campaign,
    *,
    loaded: LoadedTask | None = None,
    scenario: Scenario | None = None,
    seed: int = 1,
    evaluations: int = 50,
) -> Outcome:
    """Run all slots of a campaign on a virtual clock, even if they exceed its budget.

    If ``loaded`` is None, the campaign's own data are loaded. If ``scenario`` is None, every client
    of the data takes part and is always online.
    """
    return train(
        training_of(campaign, loaded=loaded, scenario=scenario, seed=seed, evaluations=evaluations)
    )


def task_of(campaign: Campaign) -> Task:
    """Return the task of a campaign. Raises InvalidValue if the campaign has no task."""
    if campaign.task is None:
        raise InvalidValue("task", None, "a campaign that learns needs a [task]")
    return campaign.task


def training_of(
    campaign: Campaign,
    *,
    loaded: LoadedTask | None = None,
    scenario: Scenario | None = None,
    seed: int = 1,
    evaluations: int = 50,
) -> Training:
    """Return the training that ``simulate`` runs."""
    task = task_of(campaign)
    loaded = LoadedTask.of(task) if loaded is None else loaded
    mechanism = Mechanism.of(campaign, loaded.model.dimension)
    scenario = scenario or Scenario(loaded.data.clients)
    return Training.of(task, mechanism, loaded, scenario, seed=seed, evaluations=evaluations)


def train(
    training: Training,
    *,
    on_progress: OnProgress | None = None,
    checkpoint: Checkpoint | None = None,
) -> Outcome:
    """Run a training to its end, or until ``on_progress`` returns False.

    If ``checkpoint`` exists, the training continues from it.
    """
    saved = None if checkpoint is None else checkpoint.read(training.start())
    position = training.start() if saved is None else saved.position
    curve = [CurvePoint(0, training.evaluate(position))] if saved is None else list(saved.curve)
    earlier_seconds = 0.0 if saved is None else saved.seconds
    start_time = last_saved = time.perf_counter()
    compiled_at, compiled_slots = start_time, 0
    slots = (position.run - 1) * training.mechanism.design.slots + position.slots
    first_slot = slots
    for progress in training.run_chunks(position):
        position, slots = progress.position, progress.slots
        if progress.metrics is not None:
            curve.append(CurvePoint(slots, progress.metrics))
        now = time.perf_counter()
        if not compiled_slots:
            compiled_at, compiled_slots = now, slots
        should_continue = on_progress is None or on_progress(progress, curve[-1].metrics)
        is_save_due = not should_continue or now - last_saved > CHECKPOINT_INTERVAL_S
        if checkpoint is not None and is_save_due:
            checkpoint.write(position, tuple(curve), earlier_seconds + now - start_time)
            last_saved = now
        if not should_continue:
            break
    # A chunk may still be running if the campaign was stopped early.
    jax.block_until_ready(position.state)  # type: ignore[no-untyped-call]
    end_time = time.perf_counter()
    if curve[-1].slots != slots:
        curve.append(CurvePoint(slots, training.evaluate(position)))
    tally = training.tally(position)
    reports_per_slot = tally.reports / max(1, slots)
    timed_slots, seconds = slots - first_slot, end_time - start_time
    if slots > compiled_slots:
        timed_slots, seconds = slots - compiled_slots, end_time - compiled_at
    return Outcome(
        seed=training.seed,
        complete=slots == training.slots,
        slots=slots,
        check_ins=tally.check_ins,
        client_updates=tally.reports,
        dummies=tally.dummies,
        contributors=tally.contributors,
        curve=tuple(curve),
        seconds=earlier_seconds + end_time - start_time,
        updates_per_second=reports_per_slot * timed_slots / max(seconds, 1e-9),
        model=training.model(position).astype(np.float32),
    )


@contextmanager
def open_arrays(path: Path) -> Iterator[Any]:
    """Open a file of ``write_arrays``. Raises InvalidValue if the file is damaged."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            yield arrays
    except (ValueError, KeyError, BadZipFile, EOFError) as error:
        why = "is damaged: remove it to simulate its slots again"
        raise InvalidValue("resume", str(path), why) from error


def write_arrays(path: Path, fields: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Write a file atomically: after a crash, it is either the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with durable_file.replacing(path) as file:
        np.savez(file, allow_pickle=False, about=np.array(json.dumps(fields)), **arrays)


@dataclass(frozen=True, slots=True)
class SavedTraining:
    """The content of a checkpoint."""

    position: Position
    curve: Curve
    seconds: float


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The checkpoint file of one training."""

    path: Path

    def write(self, position: Position, curve: Curve, seconds: float) -> None:
        """Replace the file atomically."""
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(position.state)]
        points = [asdict(point) for point in curve]
        fields = {"run": position.run, "slots": position.slots, "seconds": seconds, "curve": points}
        arrays = {f"leaf_{number}": leaf for number, leaf in enumerate(leaves)}
        write_arrays(self.path, fields, arrays)

    def read(self, template: Position) -> SavedTraining | None:
        """Return the saved training; None if there is no file.

        ``template`` is any position of the same training. It shows the structure of the state.
        """
        if not self.path.exists():
            return None
        leaves, structure = jax.tree.flatten(template.state)
        with open_arrays(self.path) as arrays:
            fields: dict[str, Any] = json.loads(str(arrays["about"]))
            restored = [jnp.asarray(arrays[f"leaf_{number}"]) for number in range(len(leaves))]
        position = Position(fields["run"], fields["slots"], jax.tree.unflatten(structure, restored))
        curve = tuple(CurvePoint(point["slots"], point["metrics"]) for point in fields["curve"])
        return SavedTraining(position, curve, fields["seconds"])

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
