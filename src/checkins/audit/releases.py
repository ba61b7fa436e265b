"""Simulate the parts of many runs that depend on a canary, and score their releases.

The canary is the client whose participation an audit tries to detect. A run is drawn once and
evaluated twice, with the canary and without it, which halves the work. The measured bounds stay
valid, because each of the two event probabilities is bounded separately, so the two halves may
depend on each other.

Only what depends on the canary is drawn:

- If a report has two or three possible outcomes, the sum of a slot reveals how often each outcome
  occurs. The canary may be any report of any slot, so only the counts over all slots together
  matter.
- If a sum has additive noise, only its component along the canary's update depends on the canary.

This module is for simulation only, because its seeded floating-point noise protects no client.

A score is the log-likelihood ratio log f of all releases of a run. Let m be the number of slots, p
the probability that the canary checks in to a slot that releases something, w_i the probability
that it is chosen in slot i, and L_i the density of slot i's release with the canary divided by the
density without it. Then

    f = 1 − p + (p/m) Σ_i [ (1 − w_i) + w_i L_i ] .

Theorem:     docs/theory/one-likelihood-ratio.md, conditional on everything that does not depend on
             the canary. [NP33]: the best test of any size compares f with a threshold.
Rounding:    to nearest. An inexact score gives a weaker test, but its bound is still valid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
"""Largest number of slots that the canary may draw, because every run simulates all of them."""
MAX_REPEATS = 1_000
"""Largest number of repeats of a campaign that is audited."""


@dataclass(frozen=True, slots=True)
class RunParameters:
    """The parameters of a run on which the scores of one canary depend.

    The canary draws one of ``drawable_slots`` slots. Only the first ``slots`` of them release
    something. If the canary draws a later slot, it does not take part. If ``capacity`` is None,
    every check-in is used. The campaign is run ``repeats`` times.
    """

    slots: int
    drawable_slots: int
    participation: float
    capacity: int | None
    repeats: int
    averaged: bool = False
    contributors: int = 1
    """Number of participants in averaged updates, including the canary."""
    least_reports: int = 1
    """The smallest number of reports of an averaged slot that is not skipped."""
    coefficients: tuple[float, ...] = (1.0,)
    """The weights of a slot's sum in the total of this slot and of the following slots.

    There is more than one weight if the server correlates its noise across slots. An adversary
    computes totals from models, and the noise of different totals is independent.
    """

    @property
    def check_in_probability(self) -> float:
        """The probability that the canary checks in to a slot that releases something."""
        return self.participation * self.slots / self.drawable_slots

    @property
    def report_count(self) -> int:
        """The number of reports in all slots together, dummies included."""
        return self.slots * (self.capacity or 1)

    @classmethod
    def of(cls, design: Design, *, repeats: int) -> RunParameters:
        """Return the parameters of a design.

        Under the sliding protocol, the canary's window begins after the warm-up.
        """
        slots = design.slots
        if design.window is not None:
            slots = min(design.window, design.slots - design.window + 1)
        if slots > MAX_SLOTS:
            raise InvalidValue(
                "slots", slots, f"must be at most {MAX_SLOTS:,} to be audited: each is simulated"
            )
        if repeats > MAX_REPEATS:
            raise InvalidValue("repeats", repeats, f"must be at most {MAX_REPEATS:,} to be audited")
        averaged = design.protocol is Protocol.AVERAGED
        may_use_all = averaged or isinstance(design.randomizer, GaussianNoise)
        return cls(
            slots=slots,
            drawable_slots=design.drawable_slots,
            participation=design.participation,
            capacity=design.capacity if may_use_all else design.reports_per_slot,
            repeats=repeats,
            averaged=averaged,
            contributors=design.population.fewest if averaged and design.population else 1,
            least_reports=design.least_reports or 1,
            coefficients=coefficients_of(design),
        )


def coefficients_of(design: Design) -> tuple[float, ...]:
    """Return the weights of a slot's sum in the totals of this slot and of the following slots."""
    noise = design.randomizer
    if not isinstance(noise, GaussianNoise) or noise.strategy is None:
        return (1.0,)
    return noise.strategy.coefficients


def totals_of_sums(sums: FloatArray, coefficients: Sequence[float]) -> FloatArray:
    """Return the totals v_t = sum over k of c_k x_(t-k). The last axis of ``sums`` has the slots.

    >>> totals_of_sums(np.array([1.0, 0.0, 10.0]), (0.5, 0.25))
    array([0.5 , 0.25, 5.  ])
    """
    totals = np.zeros(sums.shape)
    for age, coefficient in enumerate(coefficients[: sums.shape[-1]]):
        totals[..., age:] += coefficient * sums[..., : sums.shape[-1] - age]
    return totals


@dataclass(frozen=True, slots=True)
class CanaryDraws:
    """The canary's draws, one per run: whether it checks in to a slot that releases, and that slot.

    ``slot`` counts from 0, and is 0 if the canary does not check in.
    """

    checks_in: Flags
    slot: Indices

    @classmethod
    def draw(cls, run: RunParameters, runs: int, generator: np.random.Generator) -> CanaryDraws:
        participates = generator.random(runs) < run.participation
        slot = generator.integers(0, run.drawable_slots, runs)
        checks_in = participates & (slot < run.slots)
        return cls(checks_in, np.where(checks_in, slot, 0))


# ---- reports that are one of two or three outcomes -------------------------------------------


@dataclass(frozen=True, slots=True)
class ResponseDraws:
    """The outcomes of the reports of many runs.

    ``other_counts`` are the outcome counts of all reports except one, which is the canary's report
    if the canary ``checks_in``. Then its outcome is ``first_outcome`` with the canary's first data
    set and ``other_outcome`` with its other data set. If the canary does not check in, the outcome
    of this report is ``usual_outcome``.
    """

    checks_in: Flags
    other_counts: Indices
    usual_outcome: Indices
    first_outcome: Indices
    other_outcome: Indices


@dataclass(frozen=True, slots=True)
class Response:
    """The outcome probabilities of a report.

    ``first`` are the probabilities with the canary's first data set, ``other`` with its other data
    set, and ``base`` the probabilities of all other reports. For add/remove, the canary is missing
    instead of having another data set, so ``other`` equals ``base``.
    """

    first: tuple[float, ...]
    other: tuple[float, ...]
    base: tuple[float, ...]

    def draw(
        self, run: RunParameters, runs: int, reports: int, generator: np.random.Generator
    ) -> ResponseDraws:
        """Draw ``runs`` runs with ``reports`` reports in all slots together."""
        canary_draws = CanaryDraws.draw(run, runs, generator)
        if len(self.base) == 2:
            ones = generator.binomial(reports - 1, self.base[0], runs)
            counts = np.stack([ones, reports - 1 - ones])
        else:
            counts = generator.multinomial(reports - 1, self.base, runs).T.copy()
        usual = _draw_outcomes(self.base, runs, generator)
        first = _draw_outcomes(self.first, runs, generator)
        other = usual if self.other == self.base else _draw_outcomes(self.other, runs, generator)
        return ResponseDraws(canary_draws.checks_in, counts, usual, first, other)


def response_releases(draws: ResponseDraws) -> tuple[Indices, Indices]:
    """Return the counts of each outcome with the canary and without it.

    Both arrays have the shape (outcomes, runs).
    """
    present = np.where(draws.checks_in, draws.first_outcome, draws.usual_outcome)
    missing = np.where(draws.checks_in, draws.other_outcome, draws.usual_outcome)
    return _add_outcome(draws.other_counts, present), _add_outcome(draws.other_counts, missing)


def _draw_outcomes(
    probabilities: tuple[float, ...], runs: int, generator: np.random.Generator
) -> Indices:
    thresholds = np.cumsum(probabilities)[:-1]
    uniform = generator.random(runs)
    if len(thresholds) == 1:
        return np.asarray(uniform >= thresholds[0], dtype=np.int64)
    return np.asarray(np.searchsorted(thresholds, uniform, side="right"), dtype=np.int64)


def _add_outcome(counts: Indices, outcome: Indices) -> Indices:
    """Return the outcome counts of all runs, with one more outcome in each run."""
    sums = counts.copy()
    sums[outcome, np.arange(len(outcome))] += 1
    return sums


# ---- sums with additive noise ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SlotLoads:
    """The number of other clients that check in to each slot, which the adversary knows.

    ``counts`` has the shape (runs, slots), or (1, slots) if all runs have the same counts. The
    updates of these clients are ``others_update`` times the clip norm in the canary's direction.
    """

    counts: Indices
    others_update: float

    def used_counts(self, capacity: int | None) -> Indices:
        """Return how many of these clients each slot uses in a run without the canary."""
        return self.counts if capacity is None else np.minimum(self.counts, capacity)

    def choice_probability(self, capacity: int | None) -> FloatArray:
        """Return w of each slot, the probability that the slot uses the canary's check-in."""
        if capacity is None:
            return np.ones(self.counts.shape)
        return np.minimum(1.0, capacity / (self.counts + 1.0))

    def displaced_update(self, capacity: int | None) -> FloatArray:
        """Return the update that a chosen canary displaces in each slot.

        The update is 0 in slots that are not full.
        """
        if capacity is None:
            return np.zeros(self.counts.shape)
        return np.where(self.counts >= capacity, self.others_update, 0.0)


@dataclass(frozen=True, slots=True)
class SumDraws:
    """The draws of many runs: the canary's draws, and each slot's load and noise.

    ``rank`` is the canary's random place, from 0, in the order of the clients of its slot. A slot
    with capacity K uses the first K clients. ``noise`` has the shape (runs, slots).
    """

    canary_draws: CanaryDraws
    rank: Indices
    loads: SlotLoads
    noise: FloatArray

    def is_chosen(self, capacity: int | None) -> Flags:
        """Return for each run whether the canary's check-in is used."""
        checks_in = self.canary_draws.checks_in
        return checks_in if capacity is None else checks_in & (self.rank < capacity)


def draw_sums(
    run: RunParameters, loads: SlotLoads, noise: FloatArray, generator: np.random.Generator
) -> SumDraws:
    """Draw the canary's slot and its rank among the clients of that slot."""
    runs = len(noise)
    canary_draws = CanaryDraws.draw(run, runs, generator)
    others = np.broadcast_to(loads.counts, noise.shape)[np.arange(runs), canary_draws.slot]
    return SumDraws(canary_draws, generator.integers(0, others + 1), loads, noise)


def sum_releases(
    draws: SumDraws,
    *,
    update: float,
    other_update: float | None,
    capacity: int | None,
    coefficients: Sequence[float] = (1.0,),
) -> tuple[FloatArray, FloatArray]:
    """Return the total of every slot with the canary, and without it.

    The totals are projected on the canary's direction, in units of the clip norm, and have the
    shape (runs, slots). ``update`` is the canary's update. ``other_update`` is its other update for
    replace-one, and None for add/remove. ``coefficients`` are those of ``RunParameters``.
    """
    shape = draws.noise.shape
    others = draws.loads.others_update * draws.loads.used_counts(capacity)
    missing = np.array(np.broadcast_to(others, shape), dtype=np.float64)
    rows = np.arange(len(missing))
    slot, is_chosen = draws.canary_draws.slot, draws.is_chosen(capacity)
    displaced = np.broadcast_to(draws.loads.displaced_update(capacity), shape)[rows, slot]
    present = missing.copy()
    present[rows, slot] += np.where(is_chosen, update - displaced, 0.0)
    if other_update is not None:
        missing[rows, slot] += np.where(is_chosen, other_update - displaced, 0.0)
    return (
        totals_of_sums(present, coefficients) + draws.noise,
        totals_of_sums(missing, coefficients) + draws.noise,
    )


class Noise(Interface):
    """The distribution of a slot's noise along one direction, in units of the clip norm."""

    def draw(self, shape: tuple[int, int], generator: np.random.Generator) -> FloatArray: ...

    def log_ratio(self, noise: FloatArray, shift: FloatArray) -> FloatArray:
        """Return log(density(noise − shift) / density(noise)) for each entry of ``noise``."""


@dataclass(frozen=True, slots=True, eq=False)
class GaussianSum:
    """Gaussian noise. The standard deviation is one number, or an array of shape (runs, slots)."""

    deviation: float | FloatArray

    def draw(self, shape: tuple[int, int], generator: np.random.Generator) -> FloatArray:
        return np.asarray(generator.standard_normal(shape) * self.deviation)

    def log_ratio(self, noise: FloatArray, shift: FloatArray) -> FloatArray:
        scaled_shift = shift / self.deviation
        return np.asarray(scaled_shift * (noise / self.deviation) - scaled_shift * scaled_shift / 2)


@dataclass(frozen=True, slots=True)
class LaplaceSum:
    """The sum of ``reports`` independent Laplace noises, each of scale b.

    The sum is drawn as b (G − G′), where G and G′ have the Gamma distribution of shape ``reports``.
    The log ratio is exact for one report. For more reports, the log ratio of a Gaussian of the same
    variance is used.
    """

    scale: float
    reports: int

    def draw(self, shape: tuple[int, int], generator: np.random.Generator) -> FloatArray:
        if self.reports == 1:
            return generator.laplace(0.0, self.scale, shape)
        gamma, other_gamma = (generator.standard_gamma(self.reports, shape) for _ in range(2))
        return np.asarray(self.scale * (gamma - other_gamma))

    def log_ratio(self, noise: FloatArray, shift: FloatArray) -> FloatArray:
        if self.reports == 1:
            return np.asarray((np.abs(noise) - np.abs(noise - shift)) / self.scale)
        deviation = self.scale * math.sqrt(2.0 * self.reports)
        return GaussianSum(deviation).log_ratio(noise, shift)


def slot_log_ratios(
    noise: Noise, totals: FloatArray, shift: FloatArray, coefficients: Sequence[float]
) -> FloatArray:
    """Return the log-likelihood ratio of a canary in each slot, from the noise of all totals.

    A canary in a slot shifts the total of the slot k slots later by ``coefficients[k] * shift``.
    """
    slots = totals.shape[-1]
    shifts = np.broadcast_to(shift, totals.shape)
    ratios = np.zeros(totals.shape)
    for age, coefficient in enumerate(coefficients[:slots]):
        part = noise.log_ratio(totals[..., age:], coefficient * shifts[..., : slots - age])
        ratios[..., : slots - age] += part
    return ratios


Probabilities = tuple[float, ...]


def response_log_ratio(
    counts: Indices, probabilities: Probabilities, base: Probabilities, check_in_probability: float
) -> FloatArray:
    """Return log f from the counts of each outcome, which have the shape (outcomes, runs).

    ``probabilities`` are the outcome probabilities of the canary's report, ``base`` of all others.
    The canary's report may be any report of any slot, so the likelihood ratio L is the average of
    ``probabilities`` / ``base`` over all reports.
    """
    reports = int(counts[:, 0].sum())
    average = np.zeros(counts.shape[1])
    for count, probability, base_probability in zip(counts, probabilities, base, strict=True):
        average += count * (probability / base_probability / reports)
    return np.asarray(np.log(1.0 - check_in_probability + check_in_probability * average))


def response_scores(counts: Indices, response: Response, check_in_probability: float) -> FloatArray:
    """Return log f − log f′, where f′ is the ratio for the canary's other data set."""
    first = response_log_ratio(counts, response.first, response.base, check_in_probability)
    if response.other == response.base:
        return first
    return first - response_log_ratio(counts, response.other, response.base, check_in_probability)


def sum_log_ratio(
    sums: FloatArray, loads: SlotLoads, noise: Noise, update: float, run: RunParameters
) -> FloatArray:
    """Return log f of a canary with this update, from the totals of ``sum_releases``.

    Under averaged updates, the canary is in a slot with a probability proportional to the number of
    reports of that slot. A skipped slot releases nothing.
    """
    shift = update - loads.displaced_update(run.capacity)
    others = loads.others_update * loads.used_counts(run.capacity)
    without_canary = totals_of_sums(np.asarray(others, np.float64), run.coefficients)
    ratios = np.exp(slot_log_ratios(noise, sums - without_canary, shift, run.coefficients))
    if run.averaged:
        ratios = np.where(loads.counts < run.least_reports, 1.0, ratios)
        return np.asarray(np.log(np.sum(ratios * loads.counts, axis=1) / run.contributors))
    w, p = loads.choice_probability(run.capacity), run.check_in_probability
    average = np.mean(1.0 - w + w * ratios, axis=1)
    return np.asarray(np.log(1.0 - p + p * average))
