"""Who is in an audited campaign: the canary with its data, and others whom the adversary knows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from checkins.accounting import Adjacency
from checkins.campaign import Campaign
from checkins.protocol.participant import Participant
from checkins.protocol.rules import FixedWindow, SlidingWindow
from checkins.randomizers import DeviceSampler

Update = NDArray[np.float64]

EXCESS = 3.0
"""How much longer than the clip the canary's update is: an honest device shortens it."""


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """The canary's two data, in clips along the last coordinate, and its neighbours.

    ``without`` is None where the canary is missing then (add-remove). ``others`` are so many
    devices in every slot, each with the update −1 clip, whose slots the adversary knows.
    ``strangers`` draw their own slots and have the update 0.
    """

    name: str
    with_: float = EXCESS
    without: float | None = None
    others: int = 0
    strangers: int = 0

    def data(self, *, present: bool) -> float | None:
        """The canary's update in one half of the runs; None if there is no canary."""
        return self.with_ if present else self.without


ALONE = Scene("alone among dummies")


def scenes_for(campaign: Campaign) -> tuple[Scene, ...]:
    """What is worst for a campaign: alone, or where others can be displaced."""
    design = campaign.design
    replaced = campaign.budget.adjacency is Adjacency.REPLACE_ONE
    other_data = -EXCESS if replaced else None
    if design.population is not None:
        return (Scene("among others", EXCESS, other_data, strangers=design.population.fewest - 1),)
    scenes = [Scene(ALONE.name, EXCESS, other_data)]
    if design.capacity is not None:
        scenes.append(Scene("in full slots", EXCESS, other_data, others=design.capacity))
    return tuple(scenes)


def update_of(clips: float, sampler: DeviceSampler) -> Update:
    """An update of so many clips along the last coordinate."""
    update = np.zeros(sampler.dimension)
    update[-1] = clips * sampler.randomizer.clip  # type: ignore[union-attr]
    return update


def wake_of(campaign: Campaign) -> int:
    """When the canary wakes: as soon as its whole window lies after the warm-up."""
    return campaign.design.window or 1


def neighbours(scene: Scene, campaign: Campaign) -> dict[str, tuple[Participant, float]]:
    """Everyone but the canary, with the update of each in clips."""
    design = campaign.design
    known = {
        f"other-{slot}-{index}": (Participant(1.0, FixedWindow((slot,))), -EXCESS)
        for slot in range(1, design.slots + 1)
        for index in range(scene.others)
    }
    window = SlidingWindow(design.window) if design.window else FixedWindow.whole(design.slots)
    unknown = {
        f"stranger-{index}": (Participant(design.participation, window), 0.0)
        for index in range(scene.strangers)
    }
    return known | unknown


def clipped(clips: float) -> float:
    """What is left of an update of so many clips."""
    return math.copysign(min(abs(clips), 1.0), clips)
