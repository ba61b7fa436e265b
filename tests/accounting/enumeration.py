"""The exact distribution of the releases of a small protocol, by enumeration."""

from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np


def laws_of_reports(rng: np.random.Generator, local_epsilon: float, count: int) -> np.ndarray:
    """Distributions over three outcomes, whose ratios are at most exp(local_epsilon)."""
    extremes = rng.integers(0, 2, (count, 3))
    values = np.where(rng.random((count, 3)) < 0.7, extremes, rng.random((count, 3)))
    weights = np.exp(values * local_epsilon / 2)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def law_of_releases(
    windows: list[range], reports: np.ndarray, dummy: np.ndarray, *, slots: int, capacity: int
) -> np.ndarray:
    """The distribution of the sums of all slots, if client i draws a slot from its window."""
    total = np.zeros((2 * capacity + 1) ** slots)
    for drawn in product(*windows):
        law = np.ones(1)
        for slot in range(slots):
            here = [client for client, its_slot in enumerate(drawn) if its_slot == slot]
            used = min(len(here), capacity)
            choices = list(combinations(here, used))
            slot_law = np.zeros(2 * capacity + 1)
            for chosen in choices:
                sums = np.ones(1)
                for one in (*(reports[c] for c in chosen), *[dummy] * (capacity - used)):
                    sums = np.convolve(sums, one)
                slot_law += sums / len(choices)
            law = np.multiply.outer(law, slot_law).ravel()
        total += law / math.prod(map(len, windows))
    return total
