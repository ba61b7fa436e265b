"""Campaigns whose totals can be read: little noise, many coordinates, a budget that pays for it.

``local_epsilon`` is 40, about as much as the accountant prices: the scale of the noise is a
twentieth of the clip. ``presence`` makes up for it with many coordinates, and the model has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

DIMENSION = 1024
"""Coordinates of a report: with 640 the bound of ``presence`` exceeded 1e-9 once in some runs."""
CLIP = 1.0

MODEL = f'''"""A model that is {DIMENSION} numbers, and learns nothing."""

import numpy as np


class Wide:
    shapes = {{"weights": ({DIMENSION},)}}
    dimension = {DIMENSION}

    def start(self, seed):
        return np.zeros({DIMENSION})

    def loss(self, parameters, features, label):
        return 0.0 * parameters["weights"].sum()

    def gradient(self, flat, features, labels):
        return np.zeros_like(flat)

    def scores(self, flat, features):
        return np.zeros(len(features))


def wide(features_shape, classes):
    return Wide()
'''


def update_of(client: int) -> NDArray[np.float64]:
    """What a client of these tests has learned: the whole clip in the coordinate of its number."""
    update = np.zeros(DIMENSION)
    update[client % DIMENSION] = CLIP
    return update


@dataclass(frozen=True, slots=True)
class Plan:
    """What the campaigns of these tests differ in; ``capacity`` None is the averaged protocol."""

    slots: int
    slot_s: float = 0.1
    choose_s: float = 0.04
    capacity: int | None = 2
    clients: int = 1000

    @property
    def text(self) -> str:
        """The campaign file; its start is overruled by `checkins serve --start`."""
        averaged = self.capacity is None
        return f"""schema = 1
name = "faults"
population_id = "faults"

[budget]
epsilon = 1000.0
delta = 1e-6
adjacency = "{"replace-one" if averaged else "add-remove"}"
{f"population = [1, {self.clients}]" if averaged else ""}

[protocol]
kind = "{"averaged" if averaged else "fixed"}"
slots = {self.slots}
participation = 1.0
{"" if averaged else f"capacity = {self.capacity}"}

[randomizer]
kind = "laplace"
local_epsilon = 40.0
clip = {CLIP}
grid = 1e-6

[task]
data = "synthetic"
model = "faults_model:wide"
optimizer = {{ kind = "sgd", rate = 0.5 }}

[schedule]
start = 2030-01-01T00:00:00Z
slot_s = {self.slot_s}
choose_s = {self.choose_s}
"""

    def write(self, folder: Path) -> Path:
        """campaign.toml, and its model beside it."""
        (folder / "faults_model.py").write_text(MODEL, encoding="utf-8")
        path = folder / "campaign.toml"
        path.write_text(self.text, encoding="utf-8")
        return path
