"""Simulate the parts of many runs that depend on a canary, and score their releases.

A run is drawn once and evaluated twice, with the canary and without it. That halves the work and
loses nothing: the two probabilities of a test are bounded one by one, whatever their dependence.

Only what depends on the canary is drawn. For reports that are outcomes from a short list, a slot's
sum reveals how many of each it holds, and the canary may be any of them: all slots together are one
list of counts. For a sum with additive noise only the component along the canary's update depends
on the canary. For simulation only: the seeded floating-point noise here protects no client.

A score is the log-likelihood ratio of all releases of a run. With p the probability that the canary
checks in where something is released, w_i that it is chosen in slot i, and L_i the density ratio of
slot i's release with it against without it,

    f = 1 − p + (p/m) Σ_i [ (1 − w_i) + w_i L_i ] .

Theorem:     docs/theory/one-likelihood-ratio.md, given what does not depend on the canary; [NP33]:
             the best test of any size is whether f exceeds some threshold.
Rounding:    to nearest: an inexact statistic gives a weaker test and a valid bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol as Interface

import numpy as np
from numpy.typing import NDArray

from checkins.accounting import Design, GaussianNoise, Protocol
from checkins.errors import InvalidValue

FloatArray = NDArray[np.float64]
Indices = NDArray[np.int64]
Flags = NDArray[np.bool_]

MAX_SLOTS = 20_000
"""Largest number of slots in a client's window: each is simulated in every run."""
MAX_REPEATS = 1_000
"""Largest number of repeats of a campaign that is audited."""


@dataclass(frozen=True, slots=True)
class RunParameters:
    """The parameters of a run that matter to one canary; ``repeats`` runs follow one another.

    The canary draws one of ``choices`` slots. In ``slots`` of them something is released; any other
    choice means that it abstains. ``capacity`` None means that every check-in is used.
    """

    slots: int
    choices: int
    participation: float
    capacity: int | None
    repeats: int
    averaged: bool = False
    contributors: int = 1
    """Number of participants in averaged updates, including the canary."""

    @property
    def reach(self) -> float:
        """The probability that the canary checks in to a slot that releases something."""
        return self.participation * self.slots / self.choices

    @property
    def places(self) -> int:
        """The number of reports in all slots together, dummies included."""
        return self.slots * (self.capacity or 1)

    @classmethod
    def of(cls, design: Design, *, repeats: int) -> RunParameters:
        """Return the parameters of a design; a sliding client wakes after the warm-up."""
        active = design.slots
        if design.window is not None:
            active = min(design.window, design.slots - design.window + 1)
        if active > MAX_SLOTS:
            raise InvalidValue(
                "slots", active, f"must be at most {MAX_SLOTS:,} to be audited: each is simulated"
            )
        if repeats > MAX_REPEATS:
            raise InvalidValue("repeats", repeats, f"must be at most {MAX_REPEATS:,} to be audited")
        averaged = design.protocol is Protocol.AVERAGED
        everyone = averaged or isinstance(design.randomizer, GaussianNoise)
        return cls(
            slots=active,
            choices=design.choices,
            participation=design.participation,
            capacity=design.capacity if everyone else design.capacity or 1,
            repeats=repeats,
            averaged=averaged,
            contributors=design.population.fewest if averaged and design.population else 1,
        )


@dataclass(frozen=True, slots=True)
class Arrival:
    """The canary's own draws: whether it checks in where something is released, and its slot."""

    here: Flags
    slot: Indices

    @classmethod
    def draw(cls, run: RunParameters, runs: int, generator: np.random.Generator) -> Arrival:
        coin = generator.random(runs) < run.participation
        slot = generator.integers(0, run.choices, runs)
        here = coin & (slot < run.slots)
        return cls(here, np.where(here, slot, 0))


# ---- reports that are outcomes from a short list --------------------------------------------


@dataclass(frozen=True, slots=True)
class ResponseDraws:
    """Outcomes of all reports but one (``others``), and of that one without the canary (``usual``).

    ``first`` and ``other`` are the canary's reports from its first and its other data set.
    """

    here: Flags
    others: Indices
    usual: Indices
    first: Indices
    other: Indices


@dataclass(frozen=True, slots=True)
class Response:
    """Outcome probabilities of a report: first data, other data, and any other client (``base``).

    For add/remove the other data set is a missing client: ``other`` equals ``base``.
    """

    first: tuple[float, ...]
    other: tuple[float, ...]
    base: tuple[float, ...]

    def draw(
        self, run: RunParameters, runs: int, reports: int, generator: np.random.Generator
    ) -> ResponseDraws:
        """Draw ``runs`` runs with ``reports`` reports in all slots together."""
        arrival = Arrival.draw(run, runs, generator)
        if len(self.base) == 2:
            ones = generator.binomial(reports - 1, self.base[0], runs)
            others = np.stack([ones, reports - 1 - ones])
        else:
            others = generator.multinomial(reports - 1, self.base, runs).T.copy()
        usual = _outcomes(self.base, runs, generator)
        first = _outcomes(self.first, runs, generator)
        other = usual if self.other == self.base else _outcomes(self.other, runs, generator)
        return ResponseDraws(arrival.here, others, usual, first, other)


def response_releases(draws: ResponseDraws) -> tuple[Indices, Indices]:
    """Return the counts of each outcome, (outcomes, runs), with the canary and without it."""
    return (
        _with_one_more(draws.others, np.where(draws.here, draws.first, draws.usual)),
        _with_one_more(draws.others, np.where(draws.here, draws.other, draws.usual)),
    )


def _outcomes(
    probabilities: tuple[float, ...], runs: int, generator: np.random.Generator
) -> Indices:
    ends = np.cumsum(probabilities)[:-1]
    uniform = generator.random(runs)
    if len(ends) == 1:
        return np.asarray(uniform >= ends[0], dtype=np.int64)
    return np.asarray(np.searchsorted(ends, uniform, side="right"), dtype=np.int64)


def _with_one_more(counts: Indices, outcome: Indices) -> Indices:
    more = counts.copy()
    more[outcome, np.arange(len(outcome))] += 1
    return more


# ---- sums with additive noise ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SlotLoads:
    """Other check-ins of each slot, known to the adversary: (runs, slots) or (1, slots).

    All their updates are ``level`` times the clip along the canary's direction.
    """

    counts: Indices
    level: float

    def used(self, capacity: int | None) -> Indices:
        return self.counts if capacity is None else np.minimum(self.counts, capacity)

    def choice_probability(self, capacity: int | None) -> FloatArray:
        """Return w, the probability that the canary is chosen in each slot."""
        if capacity is None:
            return np.ones(self.counts.shape)
        return np.minimum(1.0, capacity / (self.counts + 1.0))

    def displaced(self, capacity: int | None) -> FloatArray:
        """Return the update that a chosen canary displaces, 0 unless the slot is full."""
        if capacity is None:
            return np.zeros(self.counts.shape)
        return np.where(self.counts >= capacity, self.level, 0.0)


@dataclass(frozen=True, slots=True)
class SumDraws:
    """The canary's arrival and its rank in its slot, and the noise and load of every slot.

    Noise is (runs, slots). Ranks are uniform: a slot uses the first K of the waiting clients.
    """

    arrival: Arrival
    order: Indices
    loads: SlotLoads
    noise: FloatArray

    def chosen(self, capacity: int | None) -> Flags:
        """Return in which runs the canary is chosen."""
        here = self.arrival.here
        return here if capacity is None else here & (self.order < capacity)


def draw_sums(
    run: RunParameters, loads: SlotLoads, noise: FloatArray, generator: np.random.Generator
) -> SumDraws:
    """Draw the canary's slot and its rank in the server's choice."""
    runs = len(noise)
    arrival = Arrival.draw(run, runs, generator)
    waiting = np.broadcast_to(loads.counts, noise.shape)[np.arange(runs), arrival.slot]
    return SumDraws(arrival, generator.integers(0, waiting + 1), loads, noise)


def sum_releases(
    draws: SumDraws, *, first: float, other: float | None, capacity: int | None
) -> tuple[FloatArray, FloatArray]:
    """Return every slot's sum along the canary's update in clips, with the canary and without.

    Shapes are (runs, slots). ``other`` is the other update for replace-one, None for add/remove.
    """
    usual = draws.noise + draws.loads.level * draws.loads.used(capacity)
    rows = np.arange(len(usual))
    slot, chosen = draws.arrival.slot, draws.chosen(capacity)
    displaced = np.broadcast_to(draws.loads.displaced(capacity), usual.shape)[rows, slot]
    present = usual.copy()
    present[rows, slot] += np.where(chosen, first - displaced, 0.0)
    if other is None:
        return present, usual
    usual[rows, slot] += np.where(chosen, other - displaced, 0.0)
    return present, usual


class Noise(Interface):
    """The distribution of the noise of one slot's sum, in clips along one direction."""

    def draw(self, shape: tuple[int, int], generator: np.random.Generator) -> FloatArray: ...

    def log_ratio(self, noise: FloatArray, shift: FloatArray) -> FloatArray:
        """Return the log density ratio at ``noise``: shifted by ``shift``, over not shifted."""


@dataclass(frozen=True, slots=True, eq=False)
class GaussianSum:
    """Gaussian noise; ``deviation`` is one number, or one for each slot of each run."""

    deviation: float | FloatArray

    def draw(self, shape: tuple[int, int], generator: np.random.Generator) -> FloatArray:
        return np.asarray(generator.standard_normal(shape) * self.deviation)

    def log_ratio(self, noise: FloatArray, shift: FloatArray) -> FloatArray:
        away = shift / self.deviation
        return np.asarray(away * (noise / self.deviation) - away * away / 2)


@dataclass(frozen=True, slots=True)
class LaplaceSum:
    """The sum of ``reports`` Laplace noises: b (G − G′) with Gamma variables of that shape.

    The ratio is exact for one report; for more it is that of a Gaussian of the same variance.
    """

    scale: float
    reports: int

    def draw(self, shape: tuple[int, int], generator: np.random.Generator) -> FloatArray:
        if self.reports == 1:
            return generator.laplace(0.0, self.scale, shape)
        up, down = (generator.standard_gamma(self.reports, shape) for _ in range(2))
        return np.asarray(self.scale * (up - down))

    def log_ratio(self, noise: FloatArray, shift: FloatArray) -> FloatArray:
        if self.reports == 1:
            return np.asarray((np.abs(noise) - np.abs(noise - shift)) / self.scale)
        deviation = self.scale * math.sqrt(2.0 * self.reports)
        return GaussianSum(deviation).log_ratio(noise, shift)


Probabilities = tuple[float, ...]


def response_ratio(
    counts: Indices, probabilities: Probabilities, base: Probabilities, reach: float
) -> FloatArray:
    """Return log f from the counts of each outcome, (outcomes, runs).

    The canary's report may be any report of any slot: L is the average of
    ``probabilities`` / ``base`` over all reports.
    """
    reports = int(counts[:, 0].sum())
    average = np.zeros(counts.shape[1])
    for count, probability, usual in zip(counts, probabilities, base, strict=True):
        average += count * (probability / usual / reports)
    return np.asarray(np.log(1.0 - reach + reach * average))


def response_scores(counts: Indices, response: Response, reach: float) -> FloatArray:
    """Return log f − log f′, where f′ belongs to the canary's other data set."""
    first = response_ratio(counts, response.first, response.base, reach)
    if response.other == response.base:
        return first
    return first - response_ratio(counts, response.other, response.base, reach)


def sum_ratio(
    sums: FloatArray, loads: SlotLoads, noise: Noise, update: float, run: RunParameters
) -> FloatArray:
    """Return log f from every slot's sum along the canary's update in clips, (runs, slots).

    In averaged updates the canary is in a slot with probability proportional to its load.
    """
    shift = update - loads.displaced(run.capacity)
    ratios = np.exp(noise.log_ratio(sums - loads.level * loads.used(run.capacity), shift))
    if run.averaged:
        return np.asarray(np.log(np.sum(ratios * loads.counts, axis=1) / run.contributors))
    chosen = loads.choice_probability(run.capacity)
    average = np.mean(1.0 - chosen + chosen * ratios, axis=1)
    return np.asarray(np.log(1.0 - run.reach + run.reach * average))
