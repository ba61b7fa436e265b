"""A lower bound for replace-one and full slots: the other clients' updates follow the releases.

All slots are full. The client has two opposite updates. In every slot, all other clients have the
update of its first or of its second value, and which one depends on the earlier releases. Let F(x)
be the largest expected gain of the remaining slots if the sum of the ratios, minus the threshold,
is x so far. F is convex, and is computed backwards from the last slot. For speed, the choice stays
the same for a block of slots.

Theorem:     docs/theory/gaussian.md, "Lower bounds with a capacity".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr

from checkins.accounting.exact import slot_sum
from checkins.accounting.exact.dominating_pair import ROUND_OFF
from checkins.accounting.exact.grid_distribution import Side, discretise_down, sum_of
from checkins.accounting.exact.slot_ratio import FloatArray

if TYPE_CHECKING:
    from checkins.accounting.exact.gaussian import GaussianCampaign

_BLOCKS = 16
"""Largest number of blocks. In a block, the updates of the other clients do not change."""
_NEAR, _FAR = 0.05, 0.1
"""Distances of the points at which tangents are computed, near the threshold and far from it."""


class AdaptiveUpdates:
    """Lower bounds on the delta of a client whose slots are full of clients that adapt to it.

    ``campaign`` has a capacity. ``cells`` is the number of values of a block's sum, and of points
    at which the gain is computed.

    Theorem:     docs/theory/gaussian.md, "Lower bounds with a capacity".
    Neighbours:  replace-one.
    Rounding:    down.
    """

    def __init__(self, campaign: GaussianCampaign, *, delta: float, cells: int) -> None:
        self.campaign, self.delta, self.cells = campaign, delta, cells

    def lower(self, epsilon: float) -> float:
        slots, participation = self.campaign.slots, self.campaign.participation
        growth, threshold = math.exp(epsilon), slots / participation * math.expm1(epsilon)
        points = self._points(threshold)
        gain = LargestTangent.positive_part()
        for remaining, (sums, masses) in reversed(list(enumerate(self._blocks))):
            at = points if remaining else np.array([-threshold])
            others_like_second = gain.mean(at, sums, masses)
            others_like_first = gain.mean(at, -growth * sums, masses)
            values, slopes = np.where(
                others_like_second[0] >= others_like_first[0], others_like_second, others_like_first
            )
            gain = LargestTangent.above_positive_part(at, values, slopes)
        return participation / slots * float(values[0]) * (1.0 - ROUND_OFF)

    @cached_property
    def _blocks(self) -> list[tuple[FloatArray, FloatArray]]:
        """The sum of L - 1 over each block, and its masses, where L is the ratio of a slot."""
        slots = self.campaign.slots
        rounding = slot_sum.rounding_of(
            self.campaign, delta=self.delta, cells=self.cells, side=Side.DOWN
        )
        ratio = self.campaign.displacing.attained_add_remove_ratio()
        one_slot = discretise_down(ratio, rounding)
        size, rest = divmod(slots, min(slots, _BLOCKS))
        sizes = [size + 1] * rest + [size] * (min(slots, _BLOCKS) - rest)
        sums = {n: sum_of(n, one_slot, mean=1.0, rounding=rounding) for n in set(sizes)}
        return [(sums[n].values + (sums[n].origin - n), sums[n].masses) for n in sizes]

    def _points(self, threshold: float) -> FloatArray:
        """Return points around 0: evenly spaced near 0, and evenly spaced logarithms far from 0.

        Any points give valid bounds; bad points give loose ones.
        """
        slots, weight = self.campaign.slots, self.campaign.choice_probability
        mean_distance = weight * 2.0 * (2.0 * float(ndtr(self.campaign.shift)) - 1.0)
        spread = mean_distance * math.sqrt(slots)
        far = max(threshold, 0.1 * spread)
        scales = (
            (_NEAR * min(spread, far), 4.0 * mean_distance * slots),
            (_FAR * far, 100.0 * far),
        )
        halves = [
            scale * np.sinh(np.linspace(-1.0, 1.0, self.cells // 2) * math.asinh(end / scale))
            for scale, end in scales
        ]
        return np.unique(np.concatenate(halves))


@dataclass(frozen=True, slots=True, eq=False)
class LargestTangent:
    """The largest of several linear functions, sorted by slope.

    Function k has the value ``values[k]`` and the slope ``slopes[k]`` at ``points[k]``. If all of
    them are tangents of a convex function, then the largest is a lower bound on that function.
    """

    points: FloatArray
    values: FloatArray
    slopes: FloatArray

    @classmethod
    def positive_part(cls) -> LargestTangent:
        """Return the function max(x, 0)."""
        return cls(np.zeros(2), np.zeros(2), np.array([0.0, 1.0]))

    @classmethod
    def above_positive_part(
        cls, points: FloatArray, values: FloatArray, slopes: FloatArray
    ) -> LargestTangent:
        """Return the largest of these tangents, 0 and x."""
        return cls(
            np.concatenate(([0.0], points, [0.0])),
            np.concatenate(([0.0], values, [0.0])),
            np.concatenate(([0.0], slopes, [1.0])),
        )

    def mean(self, at: FloatArray, steps: FloatArray, masses: FloatArray) -> FloatArray:
        """Return E f(x + step) and its slope, for each x in ``at``.

        If round-off picks a tangent that is not the largest, the result is smaller.
        """
        x = at[:, None] + steps[None, :]
        index = np.searchsorted(self._ends(), x)
        slopes = self.slopes[index]
        values = self.values[index] + slopes * (x - self.points[index])
        return np.stack((values @ masses, slopes @ masses))

    def _ends(self) -> FloatArray:
        """Return where each next function becomes the largest: between the two points."""
        distances, rise = np.diff(self.points), np.diff(self.slopes)
        drop = self.values[:-1] - self.values[1:] + self.slopes[1:] * distances
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ends = self.points[:-1] + np.where(rise > 0.0, drop / rise, 0.0)
        inner = self.points[1:-1]
        first, last = np.array([-np.inf]), np.array([np.inf])
        return np.clip(ends, np.concatenate((first, inner)), np.concatenate((inner, last)))
