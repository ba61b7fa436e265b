"""A shuffled order of any number of clients that is computed where it is needed, never stored."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkins import validate

ROUNDS = 8
"""Rounds of mixing; four make a pseudorandom permutation of a pseudorandom function."""

MOST_CLIENTS = 2**32 - 2**17
"""So many positions fit words of 32 bits, which is what accelerators are fast at."""

LEAST_DOMAIN = 64
"""Eight rounds over fewer values favour some orders; fewer clients are picked out of so many."""

Words = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Permutation:
    """A pseudorandom bijection of 0..size−1, for simulation alone.

    A position is written with two digits of about √size values each, and each digit is moved by a
    scrambled word of the other, in turn. The few values that fall outside are sent through again
    until they fall inside, which keeps it a bijection. numpy and JAX compute the same.

    >>> sorted(Permutation(5, seed=1)(np.arange(5)).tolist())
    [0, 1, 2, 3, 4]
    """

    size: int
    seed: int

    def __post_init__(self) -> None:
        validate.count(most=MOST_CLIENTS, size=self.size)

    @property
    def keys(self) -> Words:
        """What the rounds add; they are all that depends on the seed."""
        return keys_of(np.random.SeedSequence(self.seed), ())

    def __call__(self, positions: NDArray[Any]) -> NDArray[np.int64]:
        """Who stands at these positions."""
        high, low = digits(self.size)
        found = np.array(mixed(np.asarray(positions).astype(np.uint32), self.keys, high, low))
        outside = np.flatnonzero(found >= self.size)
        while outside.size:
            found[outside] = mixed(found[outside], self.keys, high, low)
            outside = outside[found[outside] >= self.size]
        return found.astype(np.int64)


def keys_of(seeds: np.random.SeedSequence, shape: tuple[int, ...]) -> Words:
    """Keys of ``shape`` permutations, along a new first axis of rounds."""
    generator = np.random.Generator(np.random.SFC64(seeds))
    return generator.integers(0, 2**32, (ROUNDS, *shape), dtype=np.uint32)


def digits(size: int) -> tuple[int, int]:
    """How many values the two digits have: together at least ``size``, and hardly more."""
    domain = max(size, LEAST_DOMAIN)
    low = math.isqrt(domain - 1) + 1
    return -(-domain // low), low


def mixed(words: Any, keys: Any, high: int, low: int) -> Any:
    """One pass over words of 32 bits below high·low; arrays of numpy or of JAX."""
    first, second = words // np.uint32(low), words % np.uint32(low)
    for turn in range(0, ROUNDS, 2):
        first = _turned(first, _scrambled(second + keys[turn]), np.uint32(high))
        second = _turned(second, _scrambled(first + keys[turn + 1]), np.uint32(low))
    return first * np.uint32(low) + second


def _turned(digit: Any, word: Any, values: Any) -> Any:
    """The digit moved on by a share of its ``values``, which the word's upper half says."""
    moved = digit + (((word >> np.uint32(16)) * values) >> np.uint32(16))
    return moved - values * (moved >= values)


def _scrambled(words: Any) -> Any:
    """Every bit of the result depends on every bit of the word."""
    with np.errstate(over="ignore"):
        words = (words ^ (words >> np.uint32(16))) * np.uint32(0x45D9F3B)
        words = (words ^ (words >> np.uint32(16))) * np.uint32(0x45D9F3B)
    return words ^ (words >> np.uint32(16))
