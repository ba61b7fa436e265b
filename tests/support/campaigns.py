"""Campaign files of tests, and the campaigns of the fault tests, whose totals can be read.

Campaigns have Laplace noise by default: its epsilon is a finite sum, quick to certify.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkins.accounting.design import LEAST_SLOT_NOISE
from checkins.campaign import Campaign, parse_campaign

START = datetime(2040, 1, 1, tzinfo=UTC)
SLOT_S, CHOOSE_S = 10.0, 4.0
CLIENT_NOISE = 'kind = "laplace"\nlocal_epsilon = 1.0'
SERVER_NOISE = 'kind = "gaussian"\nnoise_at = "server"\nnoise_multiplier = 4.0'
AVERAGED: dict[str, Any] = {"kind": "averaged", "population": (4, 1000)}
AT_LEAST_THREE: dict[str, Any] = {
    **AVERAGED,
    "randomizer": 'kind = "gaussian"\nnoise_at = "client"\nnoise_multiplier = 2.0',
    "least_reports": 3,
}
SLIDING: dict[str, Any] = {"kind": "sliding", "window": 3, "slots": 5}
AT_SERVER: dict[str, Any] = {"randomizer": SERVER_NOISE, "capacity": 2}
EVERYONE: dict[str, Any] = {
    "randomizer": SERVER_NOISE,
    "capacity": "all",
    "optimizer": 'kind = "sgd", rate = 0.5, divide_by = 3',
}
BANDS = (12, 6, 5, 4)
"""Numerators of correlated noise; each is divided by 16."""
CORRELATED: dict[str, Any] = {
    **EVERYONE,
    "randomizer": f"{SERVER_NOISE}\nnoise = {{ bits = 4, numerators = {list(BANDS)} }}",
    "slots": 6,
}


def campaign_text(
    *,
    name: str = "small",
    population_id: str | None = "clinic",
    kind: str = "fixed",
    slots: int = 4,
    participation: float = 1.0,
    capacity: int | str | None = 2,
    window: int | None = None,
    least_reports: int | None = None,
    arrivals: int | None = None,
    wake_times: str | None = None,
    repeats: int = 1,
    epsilon: float = 50.0,
    population: tuple[int, int] | None = None,
    randomizer: str = CLIENT_NOISE,
    grid: float | None = 1e-6,
    data: str = "synthetic",
    model: str = "logistic",
    optimizer: str = 'kind = "sgd", rate = 0.5',
    start: datetime = START,
    slot_s: float = SLOT_S,
    choose_s: float = CHOOSE_S,
) -> str:
    """A small campaign.toml; None leaves a key out. The synthetic model has eleven numbers."""
    averaged = kind == "averaged"
    begins = start.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")

    def line(key: str, value: object) -> str:
        return "" if value is None else f"{key} = {json.dumps(value)}\n"

    return f"""\
schema = 1
name = "{name}"
{line("population_id", population_id)}
[budget]
epsilon = {epsilon}
delta = 1e-6
adjacency = "{"replace-one" if averaged else "add-remove"}"
{line("population", population)}{line("arrivals", arrivals)}
[protocol]
kind = "{kind}"
slots = {slots}
participation = {participation}
{line("capacity", None if averaged else capacity)}{line("window", window)}\
{line("least_reports", least_reports)}{line("wake_times", wake_times)}repeats = {repeats}

[randomizer]
{randomizer}
clip = 1.0
{line("grid", grid)}
[task]
data = "{data}"
model = "{model}"
optimizer = {{ {optimizer} }}

[schedule]
start = {begins}
slot_s = {slot_s}
choose_s = {choose_s}
"""


def campaign(**given: Any) -> Campaign:
    """The campaign of ``campaign_text``."""
    return parse_campaign(campaign_text(**given)).campaign


def long_campaign(name: str, **given: Any) -> str:
    """A campaign of its own population that begins now, with a hundred slots of an hour each."""
    values = {"slots": 100, "capacity": 4, "slot_s": 3600.0, "choose_s": 3000.0}
    return campaign_text(
        **{"name": name, "population_id": name, "start": datetime.now(UTC), **values, **given}
    )


def write_campaign(folder: Path, text: str) -> Path:
    """Write campaign.toml into a folder."""
    path = folder / "campaign.toml"
    path.write_text(text, encoding="utf-8")
    return path


DIMENSION = 1024
"""Coordinates of a report of the fault tests: with 640 the error bound of ``presence`` exceeded
1e-9 once in some runs."""
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
    """The update of a client of the fault tests: the whole clip in the coordinate of its number."""
    update = np.zeros(DIMENSION)
    update[client % DIMENSION] = CLIP
    return update


@dataclass(frozen=True, slots=True)
class Plan:
    """A campaign of the fault tests; ``capacity`` None is the averaged protocol.

    Its totals can be read: ``local_epsilon`` is 40, about as much as the accountant certifies, so
    that the scale of the noise is a twentieth of the clip, and there are many coordinates. If it is
    ``correlated``, the server adds the least noise that may be declared to all check-ins.
    """

    slots: int
    slot_s: float = 0.1
    choose_s: float = 0.04
    capacity: int | None = 2
    clients: int = 1000
    correlated: bool = False

    @property
    def text(self) -> str:
        """The campaign file; `checkins serve --start` overrules its start."""
        given: dict[str, Any] = {"randomizer": 'kind = "laplace"\nlocal_epsilon = 40.0'}
        if self.correlated:
            noise = SERVER_NOISE.replace("4.0", f"{LEAST_SLOT_NOISE}")
            bands = "noise = { bits = 4, numerators = [8, 8, 8, 8] }"
            given = {"randomizer": f"{noise}\n{bands}", "capacity": "all"}
        elif self.capacity is None:
            given |= {"kind": "averaged", "population": (1, self.clients)}
        return campaign_text(
            **{
                "name": "faults",
                "population_id": "faults",
                "slots": self.slots,
                "capacity": self.capacity,
                "epsilon": 1000.0,
                "model": "faults_model:wide",
                "slot_s": self.slot_s,
                "choose_s": self.choose_s,
                **given,
            }
        )

    def write(self, folder: Path) -> Path:
        """Write campaign.toml, and its model beside it."""
        (folder / "faults_model.py").write_text(MODEL, encoding="utf-8")
        return write_campaign(folder, self.text)
