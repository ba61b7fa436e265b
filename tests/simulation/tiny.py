"""Campaigns so small that one is simulated in a moment, on a table of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from checkins.campaign import Campaign, parse_campaign
from checkins.simulation.engine.mechanism import Mechanism
from checkins.simulation.engine.training import Scenario
from checkins.simulation.workers import Job, load_task

CLIENTS, SLOTS = 60, 6

HEAD = """
schema = 1
name = "tiny"

[budget]
epsilon = 20.0
delta = 1e-6
adjacency = "{adjacency}"
"""
PROTOCOL = """
[protocol]
kind = "fixed"
slots = 6
participation = 1.0
capacity = 12
"""
GAUSSIAN = """
[randomizer]
kind = "gaussian"
noise_at = "client"
noise_multiplier = 0.5
clip = 1.0
"""
TASK = """
[task]
model = "logistic"
optimizer = { kind = "sgd", rate = 0.5 }

[task.data]
file = "rows.csv"
client_column = "who"
label_column = "y"
features = ["a", "b"]
ranges = { a = [-3.0, 3.0], b = [-3.0, 3.0] }
"""


def text(
    *,
    protocol: str = PROTOCOL,
    randomizer: str = GAUSSIAN,
    task: str = TASK,
    adjacency: str = "add-remove",
) -> str:
    """A campaign's file; each part can be another."""
    return HEAD.format(adjacency=adjacency) + protocol + randomizer + task


WILD = text(
    randomizer=GAUSSIAN.replace("clip = 1.0", "clip = 1000.0"),
    task=TASK.replace("rate = 0.5", "rate = 3e38"),
)
"""One whose model overflows in its first steps."""


def rows(*, clients: int = CLIENTS, each: int = 2, classes: int = 2) -> list[tuple[str, ...]]:
    """Rows of two features whose sum tells the label, ``each`` for every client."""
    dice = np.random.default_rng(0)
    found = []
    for client in range(clients):
        for row in range(each):
            label = (client + row) % classes
            a, b = dice.normal(loc=label - (classes - 1) / 2, size=2)
            found.append((f"p{client}", f"{a:.4f}", f"{b:.4f}", str(label)))
    return found


def write_rows(path: Path, found: list[tuple[str, ...]], header: str = "who,a,b,y") -> Path:
    path.write_text("\n".join([header, *(",".join(row) for row in found)]) + "\n")
    return path


def write(folder: Path, campaign: str | None = None) -> Path:
    """The campaign's file and its rows beside it."""
    write_rows(folder / "rows.csv", rows())
    path = folder / "tiny.toml"
    path.write_text(text() if campaign is None else campaign)
    return path


def campaign(campaign: str | None = None) -> Campaign:
    return parse_campaign(text() if campaign is None else campaign).campaign


def job(folder: Path, *, seed: int = 1, campaign: Campaign, evaluations: int = 3) -> Job:
    """A job of a campaign whose rows stand in ``folder``."""
    task = campaign.task
    assert task is not None
    loaded = load_task(task, str(folder))
    mechanism = Mechanism.of(campaign, loaded.model.dimension)
    return Job(task, str(folder), mechanism, Scenario(loaded.data.clients), seed, evaluations)
