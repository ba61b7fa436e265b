"""Simulate the parts of many runs that depend on a canary, and score their releases.

A run is drawn once and evaluated twice, with the canary and without it. That halves the work. The
bounds stay valid, because each of the two event probabilities is bounded on its own, so the two may
depend on each other.

Only what depends on the canary is drawn. If a report is one of two or three outcomes, the sum of a
slot reveals how often each outcome occurs. The canary may be any report of any slot, so only the
counts over all slots together matter. If a sum has additive noise, only its component along the
canary's update depends on the canary. This module is for simulation only, because its seeded
floating-point noise protects no client.

A score is the log-likelihood ratio log f of all releases of a run. Let m be the number of slots, p
the probability that the canary checks in to a slot that releases something, w_i the probability
that it is chosen in slot i, and L_i the density of slot i's release with the canary divided by the
density without it. Then

    f = 1 − p + (p/m) Σ_i [ (1 − w_i) + w_i L_i ] .

Theorem:     docs/theory/one-likelihood-ratio.md, given everything that does not depend on the
             canary. [NP33]: the best test of any size compares f with a threshold.
Rounding:    to nearest. An inexact score gives a weaker test, but its bound is still valid.
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
"""Largest number of slots in a client's window. All of them are simulated in every run."""
MAX_REPEATS = 1_000
"""Largest number of repeats of a campaign that is audited."""


@dataclass(frozen=True, slots=True)
class RunParameters:
    """The parameters of a run that matter to one canary. The campaign has ``repeats`` runs.

    The canary draws one of ``drawable_slots`` slots. ``slots`` of them release something, and if
    the canary draws another one, it does not take part. If ``capacity`` is None, every check-in is
    used.
    """

    slots: int
    drawable_slots: int
    participation: float
    capacity: int | None
    repeats: int
    averaged: bool = False
    contributors: int = 1
    """Number of participants in averaged updates, including the canary."""

    @property
    def reach(self) -> float:
        """The probability that the canary checks in to a slot that releases something."""
        return self.participation * self.slots / self.drawable_slots

    @property
    def places(self) -> int:
        """The number of reports in all slots together, dummies included."""
        return self.slots * (self.capacity or 1)

    @classmethod
    def of(cls, design: Design, *, repeats: int) -> RunParameters:
        """Return the parameters of a design.

        Under the sliding protocol, the canary's window begins after the warm-up.
        """
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
            drawable_slots=design.drawable_slots,
            participation=design.participation,
            capacity=design.capacity if everyone else design.capacity or 1,
            repeats=repeats,
            averaged=averaged,
            contributors=design.population.fewest if averaged and design.population else 1,
        )


@dataclass(frozen=True, slots=True)
class Arrival:
    """The canary's draws: whether it checks in to a slot that releases something, and that slot."""

    here: Flags
    slot: Indices

    @classmethod
    def draw(cls, run: RunParameters, runs: int, generator: np.random.Generator) -> Arrival:
        coin = generator.random(runs) < run.participation
        slot = generator.integers(0, run.drawable_slots, runs)
        here = coin & (slot < run.slots)
        return cls(here, np.where(here, slot, 0))


# ---- reports that are one of two or three outcomes -------------------------------------------


@dataclass(frozen=True, slots=True)
class ResponseDraws:
    """The outcomes of the reports of many runs.

    ``others`` are the counts of all reports but one. If the canary checks in, that one report is
    ``first`` with its first data set and ``other`` with its other data set. If the canary does not
    check in, it is ``usual``.
    """

    here: Flags
    others: Indices
    usual: Indices
    first: Indices
    other: Indices


@dataclass(frozen=True, slots=True)
class Response:
    """The outcome probabilities of a report.

    ``first`` and ``other`` belong to the canary's first and other data set, ``base`` to all other
    reports. For add/remove, the other data set means a missing client, so ``other`` is ``base``.
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
    """Return the counts of each outcome with the canary and without it.

    Both arrays have the shape (outcomes, runs).
    """
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
    """The number of other clients that check in to each slot, which the adversary knows.

    ``counts`` has the shape (runs, slots) or (1, slots). The updates of these clients are ``level``
    times the clip in the canary's direction.
    """

    counts: Indices
    level: float

    def used(self, capacity: int | None) -> Indices:
        return self.counts if capacity is None else np.minimum(self.counts, capacity)

    def choice_probability(self, capacity: int | None) -> FloatArray:
        """Return w of each slot, the probability that the slot uses the canary's check-in."""
        if capacity is None:
            return np.ones(self.counts.shape)
        return np.minimum(1.0, capacity / (self.counts + 1.0))

    def displaced(self, capacity: int | None) -> FloatArray:
        """Return the update that a chosen canary displaces in each slot. 0 unless it is full."""
        if capacity is None:
            return np.zeros(self.counts.shape)
        return np.where(self.counts >= capacity, self.level, 0.0)


@dataclass(frozen=True, slots=True)
class SumDraws:
    """The draws of many runs: the canary's arrival and rank, and each slot's load and noise.

    ``order`` is the canary's uniform rank among the clients of its slot. A slot with capacity K
    uses the first K clients. ``noise`` has the shape (runs, slots).
    """

    arrival: Arrival
    order: Indices
    loads: SlotLoads
    noise: FloatArray

    def chosen(self, capacity: int | None) -> Flags:
        """Return for each run whether the canary's check-in is used."""
        here = self.arrival.here
        return here if capacity is None else here & (self.order < capacity)


def draw_sums(
    run: RunParameters, loads: SlotLoads, noise: FloatArray, generator: np.random.Generator
) -> SumDraws:
    """Draw the canary's slot and its rank among the clients of that slot."""
    runs = len(noise)
    arrival = Arrival.draw(run, runs, generator)
    waiting = np.broadcast_to(loads.counts, noise.shape)[np.arange(runs), arrival.slot]
    return SumDraws(arrival, generator.integers(0, waiting + 1), loads, noise)


def sum_releases(
    draws: SumDraws, *, first: float, other: float | None, capacity: int | None
) -> tuple[FloatArray, FloatArray]:
    """Return the sum of every slot with the canary, and without it.

    The sums are projected on the canary's direction, in units of the clip, and have the shape
    (runs, slots). ``other`` is the other update for replace-one, and None for add/remove.
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
    """The distribution of the noise of a slot's sum along one direction, in units of the clip."""

    def draw(self, shape: tuple[int, int], generator: np.random.Generator) -> FloatArray: ...

    def log_ratio(self, noise: FloatArray, shift: FloatArray) -> FloatArray:
        """Return the log of the density shifted by ``shift`` over the density, at ``noise``."""


@dataclass(frozen=True, slots=True, eq=False)
class GaussianSum:
    """Gaussian noise. ``deviation`` is one number, or an array of the shape (runs, slots)."""

    deviation: float | FloatArray

    def draw(self, shape: tuple[int, int], generator: np.random.Generator) -> FloatArray:
        return np.asarray(generator.standard_normal(shape) * self.deviation)

    def log_ratio(self, noise: FloatArray, shift: FloatArray) -> FloatArray:
        away = shift / self.deviation
        return np.asarray(away * (noise / self.deviation) - away * away / 2)


@dataclass(frozen=True, slots=True)
class LaplaceSum:
    """The sum of ``reports`` Laplace noises, each of scale b.

    It is drawn as b (G − G′), where G and G′ have the Gamma distribution of shape ``reports``. The
    log ratio is exact for one report. For more reports, it is the log ratio of a Gaussian of the
    same variance.
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
    """Return log f from the counts of each outcome, which have the shape (outcomes, runs).

    The canary's report may be any report of any slot, so L is the average of
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
    """Return log f from the sums of ``sum_releases``.

    Under averaged updates, the canary is in a slot with a probability proportional to the number of
    reports of that slot.
    """
    shift = update - loads.displaced(run.capacity)
    ratios = np.exp(noise.log_ratio(sums - loads.level * loads.used(run.capacity), shift))
    if run.averaged:
        return np.asarray(np.log(np.sum(ratios * loads.counts, axis=1) / run.contributors))
    chosen = loads.choice_probability(run.capacity)
    average = np.mean(1.0 - chosen + chosen * ratios, axis=1)
    return np.asarray(np.log(1.0 - run.reach + run.reach * average))
