"""Where a campaign stood when it was stopped: one file of arrays, replaced whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import jax
import jax.numpy as jnp
import numpy as np

from checkins.errors import InvalidValue
from checkins.simulation.evaluation import Point
from checkins.simulation.training import Position


@contextmanager
def arrays_of(path: Path) -> Iterator[Any]:
    """The arrays of a file by their names; one that is not as it was written is refused."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            yield arrays
    except (ValueError, KeyError, BadZipFile, EOFError) as error:
        raise InvalidValue(
            "resume", str(path), "is damaged: remove it, and what it held is done again"
        ) from error


def write_arrays(path: Path, about: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Replace what was there; a crash leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    with beside.open("wb") as file:
        np.savez(file, allow_pickle=False, about=np.array(json.dumps(about)), **arrays)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


@dataclass(frozen=True, slots=True)
class Saved:
    """What a checkpoint holds."""

    position: Position
    curve: tuple[Point, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A file that belongs to one training; its name says which."""

    path: Path

    def write(self, position: Position, curve: tuple[Point, ...], seconds: float) -> None:
        """Replace what was there; a crash leaves the old file or the new one."""
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(position.state)]
        about = {
            "run": position.run,
            "slots": position.slots,
            "seconds": seconds,
            "curve": [asdict(point) for point in curve],
        }
        write_arrays(
            self.path, about, {f"leaf_{number}": leaf for number, leaf in enumerate(leaves)}
        )

    def read(self, like: Position) -> Saved | None:
        """What was saved, in the shape of ``like``; None if nothing was."""
        if not self.path.exists():
            return None
        leaves, shape = jax.tree.flatten(like.state)
        with arrays_of(self.path) as arrays:
            about: dict[str, Any] = json.loads(str(arrays["about"]))
            found = [jnp.asarray(arrays[f"leaf_{number}"]) for number in range(len(leaves))]
        position = Position(about["run"], about["slots"], jax.tree.unflatten(shape, found))
        curve = tuple(Point(point["slots"], point["metrics"]) for point in about["curve"])
        return Saved(position, curve, about["seconds"])

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
