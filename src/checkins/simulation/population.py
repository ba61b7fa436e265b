"""Draw the check-ins of a simulated population from their exact joint distribution.

Clients are exchangeable until they report, so it is enough to draw the number of check-ins to each
slot. The clients of a slot are then the next ones in a pseudorandom order of all clients. Memory
therefore grows with the number of slots, not with the number of clients.

From the same distribution follow the expected reports and dummies of a run. A dummy is a report
without data, which the server draws in place of a missing report.

Theorem:     [BKMTT20, Prop 3.4 and 4.4] for one report per slot. The check-ins of a slot are
             binomial for any capacity, availability and dropout, because each client that can
             reach the slot checks in independently of the others, with the same probability.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkins import validate
from checkins.accounting import Design, Protocol
from checkins.errors import InvalidValue

Shares = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class AlwaysAvailable:
    """Every client is online at its slot."""

    def online(self, slots: NDArray[np.int64]) -> Shares:
        """Return the share of clients that are online in each of the slots."""
        return np.ones(slots.shape)

    def __str__(self) -> str:
        return "always"


@dataclass(frozen=True, slots=True)
class Diurnal:
    """The share of online clients varies between ``least`` and 1, with a period of ``period``
    slots."""

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
    """Each client enrols in one of the first ``slots`` slots, drawn uniformly.

    A client abstains if it enrols after the slot that it drew. With a sliding window, a client
    wakes when it enrols, and the same number of clients enrols in each slot, up to rounding. In the
    paper, one client wakes in each slot.
    """

    slots: int

    def __post_init__(self) -> None:
        validate.count(slots=self.slots)

    def online(self, slots: NDArray[np.int64]) -> Shares:
        return np.minimum(1.0, slots / self.slots)

    def waking(self, clients: int) -> NDArray[np.int64]:
        """Return the number of clients that wake in each slot. The sum is ``clients``."""
        edges = np.arange(self.slots + 1, dtype=object) * clients // self.slots
        return np.diff(edges).astype(np.int64)

    def __str__(self) -> str:
        return f"arrivals:{self.slots}"


Availability = AlwaysAvailable | Diurnal | Arrivals


def parse_availability(text: str) -> Availability:
    """Parse ``always``, ``diurnal:PERIOD:LEAST`` or ``arrivals:SLOTS``.

    >>> parse_availability("diurnal:96:0.2")
    Diurnal(period=96, least=0.2)
    """
    if text == "always":
        return AlwaysAvailable()
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
    why = "must be always, diurnal:PERIOD:LEAST or arrivals:SLOTS"
    raise InvalidValue("availability", text, why)


FEISTEL_ROUNDS = 8
"""Number of Feistel rounds. Four are enough if the round function is pseudorandom."""

MAX_CLIENTS = 2**32 - 2**17
"""Largest number of clients. Positions must fit into the 32-bit integers of accelerators."""

MIN_DOMAIN = 64
"""Smallest domain of the Feistel network. On a smaller one, some orders would be more likely."""

Words = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Permutation:
    """A pseudorandom bijection of 0..size−1, for simulation only.

    It is a Feistel network over two digits, each with about √size values. A result that is not
    below ``size`` is mapped again until it is (cycle walking). numpy and JAX give equal results.

    >>> sorted(Permutation(5, seed=1)(np.arange(5)).tolist())
    [0, 1, 2, 3, 4]
    """

    size: int
    seed: int

    def __post_init__(self) -> None:
        validate.count(most=MAX_CLIENTS, size=self.size)

    @property
    def keys(self) -> Words:
        """The round keys, drawn from the seed."""
        return round_keys(np.random.SeedSequence(self.seed), ())

    def __call__(self, positions: NDArray[Any]) -> NDArray[np.int64]:
        """Return the clients at these positions."""
        high, low = digit_sizes(self.size)
        clients = np.array(feistel(np.asarray(positions).astype(np.uint32), self.keys, high, low))
        outside = np.flatnonzero(clients >= self.size)
        while outside.size:
            clients[outside] = feistel(clients[outside], self.keys, high, low)
            outside = outside[clients[outside] >= self.size]
        return clients.astype(np.int64)


def round_keys(seeds: np.random.SeedSequence, shape: tuple[int, ...]) -> Words:
    """Return the round keys of an array of permutations. The first axis is the round."""
    generator = np.random.Generator(np.random.SFC64(seeds))
    return generator.integers(0, 2**32, (FEISTEL_ROUNDS, *shape), dtype=np.uint32)


def digit_sizes(size: int) -> tuple[int, int]:
    """Return how many values each of the two digits has. The product is at least ``size``."""
    domain = max(size, MIN_DOMAIN)
    low = math.isqrt(domain - 1) + 1
    return -(-domain // low), low


def feistel(words: Any, keys: Any, high: int, low: int) -> Any:
    """Return the words after one pass through the Feistel network.

    ``words`` is a numpy or JAX array of 32-bit integers below high·low.
    """
    first, second = words // np.uint32(low), words % np.uint32(low)
    for round_number in range(0, FEISTEL_ROUNDS, 2):
        first = _shifted(first, _hash(second + keys[round_number]), np.uint32(high))
        second = _shifted(second, _hash(first + keys[round_number + 1]), np.uint32(low))
    return first * np.uint32(low) + second


def _shifted(digit: Any, word: Any, values: Any) -> Any:
    """Return the digit, cyclically shifted by an amount that depends on the upper half of ``word``.

    A digit is an integer from 0 to ``values`` − 1.
    """
    shifted = digit + (((word >> np.uint32(16)) * values) >> np.uint32(16))
    return shifted - values * (shifted >= values)


def _hash(words: Any) -> Any:
    """Return a hash of each word. Every bit of the hash depends on every bit of the word."""
    with np.errstate(over="ignore"):
        words = (words ^ (words >> np.uint32(16))) * np.uint32(0x45D9F3B)
        words = (words ^ (words >> np.uint32(16))) * np.uint32(0x45D9F3B)
    return words ^ (words >> np.uint32(16))


Counts = NDArray[np.int64]
MAX_DRAWS_IN_MEMORY = 1 << 22
"""Largest number of slot draws in memory at a time, with a sliding window."""


class Sampling(Enum):
    """How it is decided in which slot a client is used."""

    CHECK_INS = "each client picks its own slot"
    POISSON = "a server samples every client independently for each slot"
    SHUFFLED = "a shuffler sends each client's report once, in random order"


@dataclass(frozen=True, slots=True)
class SlotCounts:
    """The numbers of check-ins and of reports in slots 1..m of one run.

    A slot uses the clients from ``first_position`` on in a pseudorandom order of all clients.
    ``keys`` are the round keys of the order. All slots share one order, except that with Poisson
    sampling each slot has its own order.
    """

    check_ins: Counts
    reports: Counts
    first_position: Counts
    keys: Words


@dataclass(frozen=True, slots=True)
class SimulatedPopulation:
    """A seeded population that takes part in runs of a design, for simulation only.

    Theorem:     Algorithm 1, client's side. Each client takes part with probability p0 and picks a
                 slot of its window uniformly. Among the clients that wake in the same slot, the
                 numbers of clients that pick each slot are therefore multinomial.
    """

    design: Design
    clients: int
    seed: int
    availability: Availability = field(default_factory=AlwaysAvailable)
    dropout: float = 0.0
    """Probability that a chosen client never reports."""
    sampling: Sampling = Sampling.CHECK_INS

    def __post_init__(self) -> None:
        validate.one_of(Design, design=self.design)
        validate.count(most=MAX_CLIENTS, clients=self.clients)
        validate.probability(dropout=self.dropout)

    def draw_run(self, number: int = 1) -> SlotCounts:
        """Draw the counts of run ``number`` (1, 2, ...). Runs are independent."""
        seeds = np.random.SeedSequence([self.seed, number])
        check_ins = self.draw_check_ins(np.random.default_rng(seeds.spawn(1)[0]))
        reports = check_ins
        if self.design.capacity is not None:
            reports = np.minimum(check_ins, self.design.capacity)
        if self.design.window is not None:
            reports = reports * (np.arange(1, reports.size + 1) >= self.design.window)
        if self.dropout > 0.0:
            reports = np.random.default_rng(seeds.spawn(1)[0]).binomial(reports, 1.0 - self.dropout)
        has_own_order = self.sampling is Sampling.POISSON
        first = np.zeros_like(check_ins) if has_own_order else np.cumsum(check_ins) - check_ins
        keys = round_keys(seeds.spawn(1)[0], (check_ins.size,) if has_own_order else (1,))
        return SlotCounts(check_ins, reports, first, keys)

    def draw_check_ins(self, generator: np.random.Generator) -> Counts:
        """Draw the number of check-ins to slots 1..m."""
        slots, participation = self.design.slots, self.design.participation
        if self.sampling is Sampling.POISSON:
            counts = generator.binomial(
                self.clients, participation / self.design.drawable_slots, slots
            )
        elif self.sampling is Sampling.SHUFFLED:
            counts = Arrivals(slots).waking(self.clients)
        elif self.design.protocol is Protocol.SLIDING:
            participants = generator.binomial(self.waking(), participation)
            counts = _sliding_check_ins(generator, participants, self.design.window or 1)
            if isinstance(self.availability, Arrivals):
                return counts  # arrivals determine when clients wake, not who is online
        else:
            participant_count = int(generator.binomial(self.clients, participation))
            counts = generator.multinomial(participant_count, np.full(slots, 1.0 / slots))
        online = self.availability.online(np.arange(1, slots + 1))
        return counts if np.all(online >= 1.0) else generator.binomial(counts, online)

    def waking(self) -> Counts:
        """Return the number of clients that wake in each slot, with a sliding window."""
        slots, availability = self.design.slots, self.availability
        arrivals = availability if isinstance(availability, Arrivals) else Arrivals(slots)
        waking = arrivals.waking(self.clients)[:slots]
        return np.pad(waking, (0, slots - waking.size))


def _sliding_check_ins(generator: np.random.Generator, waking: Counts, window: int) -> Counts:
    """Return the check-ins to each slot, given the number of clients that wake in each slot.

    Every client picks a slot of its own window. Check-ins after the last slot are dropped.
    """
    slots = waking.size
    counts = np.zeros(slots + window, dtype=np.int64)
    is_large = waking > max(1, window // 4)
    small_cohorts = np.where(is_large, 0, waking)  # their clients pick slots one by one
    block_slots = max(1, MAX_DRAWS_IN_MEMORY // max(1, int(small_cohorts.max())))
    for start in range(0, slots, block_slots):
        block = small_cohorts[start : start + block_slots]
        wake_slots = np.repeat(np.arange(block.size), block)
        picked_slots = wake_slots + generator.integers(0, window, wake_slots.size)
        end = start + block.size + window
        counts[start:end] += np.bincount(picked_slots, minlength=end - start)
    slot_probabilities = np.full(window, 1.0 / window)
    for slot in np.flatnonzero(is_large):
        counts[slot : slot + window] += generator.multinomial(waking[slot], slot_probabilities)
    return counts[:slots]


Floats = NDArray[np.float64]
MAX_BARS = 60
"""Largest number of bars of a histogram."""
MAX_BINOMIALS = 2000
"""Largest number of distinct binomial distributions to average over."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Shares of slots by number of check-ins, measured and expected.

    Bar ``i`` counts the slots with at least ``edges[i]`` and fewer than ``edges[i] + width``
    check-ins.
    """

    edges: list[int]
    width: int
    measured: list[float]
    expected: list[float]

    def as_json(self) -> dict[str, object]:
        fields = asdict(self)
        return {"check_ins": fields.pop("edges"), **fields}


@dataclass(frozen=True, slots=True)
class _Binomials:
    """The distinct binomial distributions of check-ins, and the number of slots with each one."""

    trials: NDArray[np.int64]
    probabilities: Floats
    slots: Floats


def occupancy(population: SimulatedPopulation, check_ins: NDArray[np.int64]) -> Histogram:
    """Return the histogram of the measured check-ins per slot, with the expected shares."""
    from scipy.stats import binom  # takes a second

    binomials = _limit_binomials(_check_in_binomials(population))
    # The bars cover all but a share of 1e-6 of the slots on either side, and all measured slots.
    low = int(np.min(binom.ppf(1e-6, binomials.trials, binomials.probabilities)))
    high = int(np.max(binom.isf(1e-6, binomials.trials, binomials.probabilities)))
    low, high = max(0, min(low, int(check_ins.min()))), max(high, int(check_ins.max()))
    width = max(1, -(-(high - low + 1) // MAX_BARS))
    edges = np.arange(low, high + 1, width)
    counts, _ = np.histogram(check_ins, np.append(edges, edges[-1] + width))
    bar_ends = np.append(edges, edges[-1] + width) - 1
    trials, probabilities = binomials.trials, binomials.probabilities
    cdfs = (binom.cdf(end, trials, probabilities) for end in bar_ends)
    cumulative_shares = np.array([np.average(cdf, weights=binomials.slots) for cdf in cdfs])
    shares = (counts / check_ins.size).tolist()
    return Histogram(edges.tolist(), width, shares, np.diff(cumulative_shares).tolist())


def expected_reports(population: SimulatedPopulation) -> float:
    """Return the expected number of reports that the server uses in a run."""
    from scipy.stats import binom  # takes a second

    binomials = _check_in_binomials(population, from_slot=population.design.window or 1)
    mean = binomials.trials * binomials.probabilities
    if population.design.capacity is not None:
        capacity = population.design.capacity
        # If B is binomial (n, p) and B' is binomial (n − 1, p), then
        # E min(B, K) = n p P(B' ≤ K − 2) + K P(B ≥ K).
        trials, probabilities = binomials.trials, binomials.probabilities
        share_below = binom.cdf(capacity - 2, np.maximum(trials - 1, 0), probabilities)
        share_full = binom.sf(capacity - 1, trials, probabilities)
        mean = np.where(trials > 0, mean * share_below + capacity * share_full, 0.0)
    return float((1.0 - population.dropout) * np.sum(mean * binomials.slots))


def expected_dummies(population: SimulatedPopulation) -> float:
    """Return the expected number of dummies in a run."""
    design = population.design
    released_slots = design.slots - (design.window or 1) + 1
    return design.reports_per_slot * released_slots - expected_reports(population)


def _check_in_binomials(population: SimulatedPopulation, *, from_slot: int = 1) -> _Binomials:
    design = population.design
    slots = np.arange(from_slot, design.slots + 1)
    online_shares = population.availability.online(slots)
    reachable_clients = np.full(slots.shape, population.clients)
    if design.protocol is Protocol.SLIDING and population.sampling is Sampling.CHECK_INS:
        window = design.window or 1
        woken_until = np.concatenate([np.zeros(1, np.int64), np.cumsum(population.waking())])
        reachable_clients = woken_until[slots] - woken_until[np.maximum(slots - window, 0)]
        if isinstance(population.availability, Arrivals):
            online_shares = np.ones(slots.shape)
    probabilities = design.participation / design.drawable_slots * online_shares
    if population.sampling is Sampling.SHUFFLED:
        reachable_clients = Arrivals(design.slots).waking(population.clients)[slots - 1]
        probabilities = online_shares
    # Pairs are stored as complex numbers, because pairs of columns take ten times as long to sort.
    pairs, slots_of_pair = np.unique(reachable_clients + 1j * probabilities, return_counts=True)
    binomials = np.stack([pairs.real, pairs.imag])
    return _Binomials(binomials[0].astype(np.int64), binomials[1], slots_of_pair.astype(np.float64))


def _limit_binomials(binomials: _Binomials) -> _Binomials:
    """Return at most ``MAX_BINOMIALS`` distributions, each representing equally many slots."""
    if binomials.slots.size <= MAX_BINOMIALS:
        return binomials
    cumulative_slots = np.cumsum(binomials.slots)
    slots_each = cumulative_slots[-1] / MAX_BINOMIALS
    indices = np.searchsorted(cumulative_slots, (np.arange(MAX_BINOMIALS) + 0.5) * slots_each)
    return _Binomials(
        binomials.trials[indices],
        binomials.probabilities[indices],
        np.full(MAX_BINOMIALS, slots_each),
    )
