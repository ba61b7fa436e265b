"""A shuffled order of any number of clients that is computed where it is needed, never stored."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from checkins.accounting import require

ROUNDS = 8
"""Rounds of mixing; four make a pseudorandom permutation of a pseudorandom function."""


@dataclass(frozen=True, slots=True)
class Permutation:
    """A pseudorandom bijection of 0..size−1, for simulation alone.

    A Feistel network on the smallest even number of bits that holds ``size``; values that fall
    outside are sent through again until they fall inside, which keeps it a bijection.

    >>> sorted(Permutation(5, seed=1)(np.arange(5)).tolist())
    [0, 1, 2, 3, 4]
    """

    size: int
    seed: int

    def __post_init__(self) -> None:
        require.count(size=self.size)

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Who stands at these positions."""
        half = max(1, (max(self.size - 1, 1).bit_length() + 1) // 2)
        keys = np.random.default_rng(self.seed).integers(0, 2**63, ROUNDS, dtype=np.uint64)
        here = np.asarray(positions, dtype=np.uint64)
        found = _mixed(here, keys, half)
        outside = np.flatnonzero(found >= self.size)
        while outside.size:
            found[outside] = _mixed(found[outside], keys, half)
            outside = outside[found[outside] >= self.size]
        return found.astype(np.int64)


def _mixed(values: NDArray[np.uint64], keys: NDArray[np.uint64], half: int) -> NDArray[np.uint64]:
    low = np.uint64((1 << half) - 1)
    left, right = values >> np.uint64(half), values & low
    for key in keys:
        left, right = right, left ^ (_scrambled(right + key) & low)
    return (left << np.uint64(half)) | right


def _scrambled(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Every bit of the result depends on every bit of the word."""
    with np.errstate(over="ignore"):
        words = (words ^ (words >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
        words = (words ^ (words >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return words ^ (words >> np.uint64(32))
