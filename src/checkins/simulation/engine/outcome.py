"""Run a simulated campaign from one seed, with checkpoints."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
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
    """The result of one seed: counts, learning curves and last model.

    ``average_curve`` and ``average_model`` are those of the average of the models. They are empty
    and None if the task declares no average.
    """

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
    average_curve: Curve = ()
    average_model: NDArray[np.float32] | None = field(default=None, repr=False)

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

    @property
    def average_metrics(self) -> Metrics:
        """The metrics of the average of all models; empty without an average or if diverged."""
        return self.average_curve[-1].metrics if self.average_curve else {}

    def as_json(self) -> dict[str, Any]:
        """Return values for JSON, without the models and the number of reports in each run."""
        fields = asdict(self)
        del fields["model"], fields["average_model"], fields["contributors"]
        fields["metrics"], fields["average_metrics"] = self.metrics, self.average_metrics
        fields["curve"] = curve_as_json(self.curve)
        fields["average_curve"] = curve_as_json(self.average_curve)
        fields["slots_done"] = fields.pop("slots")
        return fields


def curve_as_json(curve: Curve) -> dict[str, list[Any]]:
    """Return a learning curve for JSON: a list of slots, and a list of values for each metric."""
    names = curve[-1].metrics if curve else {}
    values = {name: [point.metrics[name] for point in curve] for name in names}
    return {"slots": [point.slots for point in curve], **values}


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
    curves = Curves() if saved is None else saved.curves
    if saved is None:
        curves = curves.with_metrics(0, *_metrics_at(training, position))
    earlier_seconds = 0.0 if saved is None else saved.seconds
    start_time = last_saved = time.perf_counter()
    compiled_at, compiled_slots = start_time, 0
    slots = (position.run - 1) * training.mechanism.design.slots + position.slots
    first_slot = slots
    for progress in training.run_chunks(position):
        position, slots = progress.position, progress.slots
        if progress.metrics is not None:
            curves = curves.with_metrics(slots, progress.metrics, progress.average_metrics)
        now = time.perf_counter()
        if not compiled_slots:
            compiled_at, compiled_slots = now, slots
        should_continue = on_progress is None or on_progress(progress, curves.last[-1].metrics)
        is_save_due = not should_continue or now - last_saved > CHECKPOINT_INTERVAL_S
        if checkpoint is not None and is_save_due:
            checkpoint.write(position, curves, earlier_seconds + now - start_time)
            last_saved = now
        if not should_continue:
            break
    # A chunk may still be running if the campaign was stopped early.
    jax.block_until_ready(position.state)  # type: ignore[no-untyped-call]
    end_time = time.perf_counter()
    if curves.last[-1].slots != slots:
        curves = curves.with_metrics(slots, *_metrics_at(training, position))
    tally = training.tally(position)
    reports_per_slot = tally.reports / max(1, slots)
    average_model = training.average_model(position)
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
        curve=curves.last,
        seconds=earlier_seconds + end_time - start_time,
        updates_per_second=reports_per_slot * timed_slots / max(seconds, 1e-9),
        model=training.model(position).astype(np.float32),
        average_curve=curves.average,
        average_model=None if average_model is None else average_model.astype(np.float32),
    )


class Curves(NamedTuple):
    """Learning curves of the last model, and of the average of the models (empty without one)."""

    last: Curve = ()
    average: Curve = ()

    def with_metrics(self, slots: int, metrics: Metrics, average: Metrics | None) -> Curves:
        averages = () if average is None else (CurvePoint(slots, average),)
        return Curves((*self.last, CurvePoint(slots, metrics)), (*self.average, *averages))


def _metrics_at(training: Training, position: Position) -> tuple[Metrics, Metrics | None]:
    """Return the metrics of the model at a position, and of the average of the models."""
    return training.evaluate(position), training.evaluate_average(position)


def curve_points(points: Iterable[Mapping[str, Any]]) -> Curve:
    """Return the curve whose points were converted by ``asdict``."""
    return tuple(CurvePoint(point["slots"], point["metrics"]) for point in points)


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
    curves: Curves
    seconds: float


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The checkpoint file of one training."""

    path: Path

    def write(self, position: Position, curves: Curves, seconds: float) -> None:
        """Replace the file atomically."""
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(position.state)]
        points = {
            name: [asdict(point) for point in curve] for name, curve in curves._asdict().items()
        }
        fields = {"run": position.run, "slots": position.slots, "seconds": seconds, **points}
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
        curves = Curves(curve_points(fields["last"]), curve_points(fields["average"]))
        return SavedTraining(position, curves, fields["seconds"])

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
