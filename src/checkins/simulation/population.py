"""The check-ins of a simulated population: their exact joint distribution, without rows of clients.

Clients are exchangeable until one of them is used, so it is enough to draw how many check in to
each slot; the clients that a slot uses are the next in a pseudorandom order of all clients. A
hundred million clients take no more memory than their slots.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkins import validate
from checkins.accounting import Design, Protocol
from checkins.errors import InvalidValue

Shares = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Always:
    """Every client is online at its slot."""

    def online(self, slots: NDArray[np.int64]) -> Shares:
        return np.ones(slots.shape)

    def __str__(self) -> str:
        return "always"


@dataclass(frozen=True, slots=True)
class Diurnal:
    """The share that is online rises and falls once in ``period`` slots, from ``least`` to 1."""

    period: int
    least: float

    def __post_init__(self) -> None:
        validate.count(period=self.period)
        validate.probability(least=self.least)

    def online(self, slots: NDArray[np.int64]) -> Shares:
        wave = 0.5 + 0.5 * np.cos(2.0 * math.pi * ((slots - 1) % self.period) / self.period)
        return self.least + (1.0 - self.least) * wave

    def __str__(self) -> str:
        return f"diurnal:{self.period}:{self.least:g}"


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Clients enrol evenly over the first ``slots``, each in one of them at random.

    A client that enrols after the slot it draws abstains. With a sliding window it wakes when it
    enrols, and enrolment is as even as possible: the paper has one client wake in each slot.
    """

    slots: int

    def __post_init__(self) -> None:
        validate.count(slots=self.slots)

    def online(self, slots: NDArray[np.int64]) -> Shares:
        return np.minimum(1.0, slots / self.slots)

    def waking(self, clients: int) -> NDArray[np.int64]:
        """Return how many clients wake in slots 1, 2, ...; their sum is ``clients``."""
        edges = np.arange(self.slots + 1, dtype=object) * clients // self.slots
        return np.diff(edges).astype(np.int64)

    def __str__(self) -> str:
        return f"arrivals:{self.slots}"


Availability = Always | Diurnal | Arrivals


def parse_availability(text: str) -> Availability:
    """Parse ``always``, ``diurnal:PERIOD:LEAST`` or ``arrivals:SLOTS``.

    >>> parse_availability("diurnal:96:0.2")
    Diurnal(period=96, least=0.2)
    """
    if text == "always":
        return Always()
    words = text.split(":")
    try:
        if len(words) == 3 and words[0] == "diurnal":
            return Diurnal(int(words[1]), float(words[2]))
        if len(words) == 2 and words[0] == "arrivals":
            return Arrivals(int(words[1]))
    except InvalidValue as error:
        raise InvalidValue("availability", text, f"{error.name} {error.expected}") from error
    except ValueError:
        pass
    raise InvalidValue(
        "availability", text, "must be always, diurnal:PERIOD:LEAST or arrivals:SLOTS"
    )


ROUNDS = 8
"""Number of Feistel rounds; four make a pseudorandom permutation of a pseudorandom function."""

MOST_CLIENTS = 2**32 - 2**17
"""Largest number of clients: positions must fit the 32-bit words of accelerators."""

LEAST_DOMAIN = 64
"""Least domain of the permutation: over fewer values eight rounds favour some orders."""

Words = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Permutation:
    """A pseudorandom bijection of 0..size−1, for simulation only.

    A Feistel network over two digits of about √size values each, with cycle walking: values that
    fall outside are mapped again until they fall inside. numpy and JAX compute the same.

    >>> sorted(Permutation(5, seed=1)(np.arange(5)).tolist())
    [0, 1, 2, 3, 4]
    """

    size: int
    seed: int

    def __post_init__(self) -> None:
        validate.count(most=MOST_CLIENTS, size=self.size)

    @property
    def keys(self) -> Words:
        """The keys of the rounds, drawn from the seed."""
        return keys_of(np.random.SeedSequence(self.seed), ())

    def __call__(self, positions: NDArray[Any]) -> NDArray[np.int64]:
        """Return the clients at these positions."""
        high, low = digits(self.size)
        found = np.array(mixed(np.asarray(positions).astype(np.uint32), self.keys, high, low))
        outside = np.flatnonzero(found >= self.size)
        while outside.size:
            found[outside] = mixed(found[outside], self.keys, high, low)
            outside = outside[found[outside] >= self.size]
        return found.astype(np.int64)


def keys_of(seeds: np.random.SeedSequence, shape: tuple[int, ...]) -> Words:
    """Return keys of ``shape`` permutations, along a new first axis of rounds."""
    generator = np.random.Generator(np.random.SFC64(seeds))
    return generator.integers(0, 2**32, (ROUNDS, *shape), dtype=np.uint32)


def digits(size: int) -> tuple[int, int]:
    """Return the numbers of values of the two digits, whose product is at least ``size``."""
    domain = max(size, LEAST_DOMAIN)
    low = math.isqrt(domain - 1) + 1
    return -(-domain // low), low


def mixed(words: Any, keys: Any, high: int, low: int) -> Any:
    """Return one pass over words of 32 bits below high·low; arrays of numpy or of JAX."""
    first, second = words // np.uint32(low), words % np.uint32(low)
    for turn in range(0, ROUNDS, 2):
        first = _turned(first, _scrambled(second + keys[turn]), np.uint32(high))
        second = _turned(second, _scrambled(first + keys[turn + 1]), np.uint32(low))
    return first * np.uint32(low) + second


def _turned(digit: Any, word: Any, values: Any) -> Any:
    """Return the digit shifted by a share of its ``values``, given by the word's upper half."""
    moved = digit + (((word >> np.uint32(16)) * values) >> np.uint32(16))
    return moved - values * (moved >= values)


def _scrambled(words: Any) -> Any:
    """Return a hash of words: every bit depends on every bit of the word."""
    with np.errstate(over="ignore"):
        words = (words ^ (words >> np.uint32(16))) * np.uint32(0x45D9F3B)
        words = (words ^ (words >> np.uint32(16))) * np.uint32(0x45D9F3B)
    return words ^ (words >> np.uint32(16))


Counts = NDArray[np.int64]
ROWS = 1 << 22
"""Largest number of draws in memory while the cohorts of a sliding window pick their slots."""


class Sampling(Enum):
    """How the slot of a client is decided."""

    CHECK_INS = "each client picks its own slot"
    POISSON = "a server samples every client independently for each slot"
    SHUFFLED = "a shuffler sends each client's report once, in random order"


@dataclass(frozen=True, slots=True)
class SlotCounts:
    """Counts of one run: check-ins and reports of slots 1..m.

    A slot uses the clients from position ``first`` on in the pseudorandom order. ``keys`` are those
    of the order: one for all slots, or with Poisson sampling one for each.
    """

    check_ins: Counts
    reports: Counts
    first: Counts
    keys: Words


@dataclass(frozen=True, slots=True)
class SimulatedPopulation:
    """A seeded population that takes part in runs of a design, for simulation only.

    Theorem:     Algorithm 1, client's side: each client flips a p0-coin and picks uniformly in its
                 window; counts of the slots are multinomial, for each cohort that wakes together.
    """

    design: Design
    clients: int
    seed: int
    availability: Availability = field(default_factory=Always)
    dropout: float = 0.0
    """Probability that a chosen client never reports."""
    sampling: Sampling = Sampling.CHECK_INS

    def __post_init__(self) -> None:
        validate.one_of(Design, design=self.design)
        validate.count(most=MOST_CLIENTS, clients=self.clients)
        validate.probability(dropout=self.dropout)

    def run(self, number: int = 1) -> SlotCounts:
        """Return the counts of run ``number`` (1, 2, ...), independent of other runs."""
        seeds = np.random.SeedSequence([self.seed, number])
        check_ins = self.check_ins(np.random.default_rng(seeds.spawn(1)[0]))
        reports = check_ins
        if self.design.capacity is not None:
            reports = np.minimum(check_ins, self.design.capacity)
        if self.design.window is not None:
            reports = reports * (np.arange(1, reports.size + 1) >= self.design.window)
        if self.dropout > 0.0:
            reports = np.random.default_rng(seeds.spawn(1)[0]).binomial(reports, 1.0 - self.dropout)
        alone = self.sampling is Sampling.POISSON
        first = np.zeros_like(check_ins) if alone else np.cumsum(check_ins) - check_ins
        keys = keys_of(seeds.spawn(1)[0], (check_ins.size,) if alone else (1,))
        return SlotCounts(check_ins, reports, first, keys)

    def check_ins(self, generator: np.random.Generator) -> Counts:
        """Draw the number of check-ins to slots 1..m."""
        slots, participation = self.design.slots, self.design.participation
        if self.sampling is Sampling.POISSON:
            counts = generator.binomial(self.clients, participation / self.design.choices, slots)
        elif self.sampling is Sampling.SHUFFLED:
            counts = Arrivals(slots).waking(self.clients)
        elif self.design.protocol is Protocol.SLIDING:
            counts = self._sliding(generator)
            if isinstance(self.availability, Arrivals):
                return counts  # arrivals decide when clients wake, not who is online
        else:
            takers = int(generator.binomial(self.clients, participation))
            counts = generator.multinomial(takers, np.full(slots, 1.0 / slots))
        online = self.availability.online(np.arange(1, slots + 1))
        return counts if np.all(online >= 1.0) else generator.binomial(counts, online)

    def waking(self) -> Counts:
        """Return how many clients wake in slots 1..m of a sliding window."""
        slots, given = self.design.slots, self.availability
        arrivals = given if isinstance(given, Arrivals) else Arrivals(slots)
        waking = np.zeros(slots, dtype=np.int64)
        early = arrivals.waking(self.clients)[:slots]
        waking[: early.size] = early
        return waking

    def _sliding(self, generator: np.random.Generator) -> Counts:
        taking_part = generator.binomial(self.waking(), self.design.participation)
        return _slide(generator, taking_part, self.design.window or 1)


def _slide(generator: np.random.Generator, waking: Counts, window: int) -> Counts:
    """Spread each cohort over its own window; check-ins after the last slot are dropped."""
    slots = waking.size
    counts = np.zeros(slots + window, dtype=np.int64)
    large = waking > max(1, window // 4)
    few = np.where(large, 0, waking)  # drawn one by one
    length = max(1, ROWS // max(1, int(few.max())))
    for start in range(0, slots, length):
        cohorts = few[start : start + length]
        awake = np.repeat(np.arange(cohorts.size), cohorts)
        picked = awake + generator.integers(0, window, awake.size)
        counts[start : start + cohorts.size + window] += np.bincount(
            picked, minlength=cohorts.size + window
        )
    share = np.full(window, 1.0 / window)
    for row in np.flatnonzero(large):
        counts[row : row + window] += generator.multinomial(waking[row], share)
    return counts[:slots]
