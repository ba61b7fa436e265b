"""Learning curves of several seeds as one: their mean, and the least and greatest value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from checkins.simulation.report.numbers import finite


@dataclass(frozen=True, slots=True)
class Band:
    """Where some curves lie, at the slots that all of them have."""

    slots: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    curves: int

    @property
    def spreads(self) -> bool:
        return self.curves > 1


def band(curves: Sequence[Mapping[str, Any]], metric: str) -> Band | None:
    """The band of a metric; a curve without it is left out, and so is a slot that one misses.

    >>> band([{"slots": [1, 2], "loss": [4, 2]}, {"slots": [1, 2], "loss": [2, 1]}], "loss").mean
    (3.0, 1.5)
    """
    points = [found for found in (_points(curve, metric) for curve in curves) if found]
    if not points:
        return None
    common = sorted(set.intersection(*(set(found) for found in points)))
    if not common:  # curves that never meet: the longest speaks alone
        points = [max(points, key=len)]
        common = sorted(points[0])
    columns = [[found[slot] for found in points] for slot in common]
    return Band(
        slots=tuple(common),
        mean=tuple(sum(column) / len(column) for column in columns),
        low=tuple(map(min, columns)),
        high=tuple(map(max, columns)),
        curves=len(points),
    )


def seed_curves(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The curves of the seeds that came to their end; of all, where none did."""
    seeds = [seed for seed in result.get("seeds") or () if seed.get("curve")]
    done = [seed for seed in seeds if seed.get("complete", True)]
    return [seed["curve"] for seed in done or seeds]


def _points(curve: Mapping[str, Any], metric: str) -> dict[float, float]:
    slots, values = curve.get("slots") or (), curve.get(metric) or ()
    pairs = ((finite(slot), finite(value)) for slot, value in zip(slots, values, strict=False))
    return {slot: value for slot, value in pairs if slot is not None and value is not None}
