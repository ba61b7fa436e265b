"""Test the utility theorems by measuring the excess risk of simulated campaigns.

There are three groups of trials. A *slot series* measures one loss and scheme at m, 4m, 16m and
64m slots, with one or four clients per slot. A *variation* changes one parameter. A *comparison*
runs the fixed window and the averaged protocol on equally many clients, either with the same noise
or with the same epsilon. At the same epsilon, noise and participation follow the formulas below.

With m slots and n clients, the paper compares the protocols at equal epsilon. The fixed window has
p₀ = m/n and σ ~ p₀/(ε√m). The averaged protocol has p₀ = 1 and σ ~ 1/(ε√m), so its noise is n/m
times as large. Let k = n/m and x = pσ²/L², with the dimension p, the Lipschitz constant L and the σ
of the averaged protocol. In units of LR/√m, with the diameter R, the paper's bounds then are

    fixed √(1 + x/k²),     averaged √(1 + x/k),     averaged, smooth √((1 + x)/k) + βR/(L√m).

By these bounds the fixed window is better for m ≪ n if the loss is not smooth. The paper's text
states the opposite. On smooth losses, either protocol may be better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from checkins import validate
from checkins.errors import InvalidValue
from checkins.simulation.excess_risk import MAX_SLOTS, MeasuredRisk, Scheme, Trial, measure
from checkins.tasks.data.synthetic import Loss, Problem

MIN_SLOTS = 256
"""Least number of slots of a sweep, so that its shortest trial has four slots."""
SLOT_DIVISORS = (64, 16, 4, 1)
"""Divisors of the largest number of slots. A slot series has one measurement per divisor."""
CLIENTS_PER_SLOT = (1, 4)
"""Numbers of clients per slot in the slot series."""
DIMENSION, DIAMETER, NOISE = 2, 2.0, 0.5
"""Dimension and diameter of the problems. ``NOISE`` is √(pσ²)/L, the typical norm of a report's
noise divided by the largest norm of a gradient."""

OnProgress = Callable[[float], None]
"""Called with the finished fraction of the work."""


@dataclass(frozen=True, slots=True)
class SlotSeries:
    """Measurements of one loss and scheme, with a growing number of slots m and constant n/m."""

    measurements: tuple[MeasuredRisk, ...]

    @property
    def largest(self) -> MeasuredRisk:
        """The measurement with the largest number of slots."""
        return self.measurements[-1]

    @property
    def slope(self) -> float:
        """Slope of log risk against log m, fitted with inverse-variance weights.

        The first measurement is left out because, with few slots, the projection onto the ball
        determines the risk rather than the noise.
        """
        x, y, weights = self._weighted_logs()
        return float(np.sum(weights * x * y) / np.sum(weights * x * x))

    @property
    def slope_error(self) -> float:
        """Standard error of ``slope``."""
        x, _, weights = self._weighted_logs()
        return float(1.0 / np.sqrt(np.sum(weights * x * x)))

    @property
    def bound_slope(self) -> float:
        """Slope of the bound from the second measurement to the last.

        It is above −1/2, because log m/√m falls more slowly than 1/√m.
        """
        low, high = self.measurements[1].trial, self.largest.trial
        return math.log(high.bound / low.bound) / math.log(high.slots / low.slots)

    def _weighted_logs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return centred log m, log risk, and the weights of the fit."""
        points = self.measurements[1:]
        x = np.log([point.trial.slots for point in points])
        y = np.log([point.risk for point in points])
        weights = np.array([(point.risk / point.standard_error) ** 2 for point in points])
        return x - np.average(x, weights=weights), y, weights


@dataclass(frozen=True, slots=True)
class Comparison:
    """The fixed window and the averaged protocol on equally many clients.

    A ratio is the risk of the averaged protocol divided by the risk of the fixed window.
    """

    equal_quantity: str
    """The quantity that is equal for both protocols: "noise" or "epsilon"."""
    fixed: MeasuredRisk
    averaged: MeasuredRisk
    paper_ratio: float
    """The ratio of the paper's asymptotic orders, without logarithms and constants."""

    @property
    def ratio(self) -> float:
        return self.averaged.risk / self.fixed.risk

    @property
    def ratio_error(self) -> float:
        """Standard error of ``ratio``, by first-order error propagation."""
        return self.ratio * math.hypot(
            self.averaged.standard_error / self.averaged.risk,
            self.fixed.standard_error / self.fixed.risk,
        )

    @property
    def bound_ratio(self) -> float:
        return self.averaged.trial.bound / self.fixed.trial.bound


@dataclass(frozen=True, slots=True)
class UtilitySweep:
    """All measurements of a sweep."""

    slots: int
    runs: int
    slot_series: tuple[SlotSeries, ...]
    variations: tuple[tuple[str, MeasuredRisk], ...]
    comparisons: tuple[Comparison, ...]

    @property
    def measured_risks(self) -> tuple[tuple[str, MeasuredRisk], ...]:
        """All measured trials, each with the name of its group."""
        return (
            *(("ladder", risk) for series in self.slot_series for risk in series.measurements),
            *self.variations,
            *(
                (f"same {pair.equal_quantity}", risk)
                for pair in self.comparisons
                for risk in (pair.fixed, pair.averaged)
            ),
        )

    @property
    def closest_to_bound(self) -> MeasuredRisk:
        """The measurement whose upper confidence limit comes closest to its bound."""
        return max((risk for _, risk in self.measured_risks), key=lambda risk: risk.share_of_bound)

    @property
    def informative_bounds(self) -> int:
        """The number of bounds that are not vacuous: below the excess risk of the worst model."""
        return sum(risk.trial.bound < risk.trial.worst_risk for _, risk in self.measured_risks)

    @property
    def all_bounds_hold(self) -> bool:
        """Whether every upper confidence limit is at most its bound."""
        return all(risk.share_of_bound <= 1.0 for _, risk in self.measured_risks)


def sweep(
    *, slots: int, runs: int, seed: int, on_progress: OnProgress = lambda share: None
) -> UtilitySweep:
    """Run all trials, with at most ``slots`` slots each.

    ``on_progress`` is called with the finished fraction. Trials share no clients and no randomness.
    """
    validate.count(most=MAX_SLOTS, slots=slots)
    if not slots >= MIN_SLOTS:
        raise InvalidValue("slots", slots, f"must be at least {MIN_SLOTS}")
    slot_series, variations = list(_slot_series(slots)), list(_variations(slots))
    comparisons = list(_comparisons(slots))
    trials = [
        *(trial for series in slot_series for trial in series),
        *(trial for _, trial in variations),
        *(trial for _, fixed, averaged, _ in comparisons for trial in (fixed, averaged)),
    ]
    total, finished = sum(_running_time(trial) for trial in trials), 0.0
    measurements: list[MeasuredRisk] = []
    for number, trial in enumerate(trials):
        measurements.append(measure(trial, runs=runs, seed=seed * 10_000 + number))
        finished += _running_time(trial)
        on_progress(finished / total)
    results = iter(measurements)
    return UtilitySweep(
        slots,
        runs,
        tuple(SlotSeries(tuple(next(results) for _ in series)) for series in slot_series),
        tuple((name, next(results)) for name, _ in variations),
        tuple(
            Comparison(same, next(results), next(results), ratio)
            for same, _, _, ratio in comparisons
        ),
    )


def _schemes(loss: Loss) -> tuple[Scheme, ...]:
    return (Scheme.FIXED, Scheme.AVERAGED) if loss is Loss.ABSOLUTE else tuple(Scheme)


def _problem(loss: Loss, *, dimension: int = DIMENSION, diameter: float = DIAMETER) -> Problem:
    return Problem(loss, dimension=dimension, diameter=diameter, seed=1)


def _trial(
    problem: Problem, scheme: Scheme, *, slots: int, per_slot: int, noise: float, p0: float = 1.0
) -> Trial:
    """Return a trial with participation p₀ and √(pσ²)/L = ``noise``."""
    noise_std = noise * problem.lipschitz / math.sqrt(problem.dimension)
    return Trial(problem, scheme, slots, per_slot * slots, noise_std, p0)


def _slot_series(slots: int) -> Iterator[tuple[Trial, ...]]:
    for loss in Loss:
        for scheme in _schemes(loss):
            for per_slot in CLIENTS_PER_SLOT:
                problem = _problem(loss)
                slot_counts = [slots // divisor for divisor in SLOT_DIVISORS]
                yield tuple(
                    _trial(problem, scheme, slots=count, per_slot=per_slot, noise=NOISE)
                    for count in slot_counts
                )


def _variations(slots: int) -> Iterator[tuple[str, Trial]]:
    few_slots = slots // 8
    for loss in Loss:
        standard_problem, line_problem = _problem(loss), _problem(loss, dimension=1)
        # On a long line with many slots, the bounds for the last model are not vacuous.
        long_line_problem = _problem(loss, dimension=1, diameter=20.0)
        for scheme in (Scheme.FIXED, Scheme.AVERAGED):
            yield "long", _trial(long_line_problem, scheme, slots=slots, per_slot=4, noise=NOISE)
        for scheme in _schemes(loss):
            for name, problem, noise in (
                ("no noise", standard_problem, 0.0),
                ("much noise", standard_problem, 8.0),
                ("one dimension", line_problem, NOISE),
                ("20 dimensions", _problem(loss, dimension=20), NOISE),
                ("a wide ball", _problem(loss, diameter=20.0), NOISE),
            ):
                yield name, _trial(problem, scheme, slots=few_slots, per_slot=4, noise=noise)
        fixed = _trial(
            standard_problem, Scheme.FIXED, slots=few_slots, per_slot=4, noise=NOISE, p0=0.25
        )
        yield "few take part", fixed


def _comparisons(slots: int) -> Iterator[tuple[str, Trial, Trial, float]]:
    few_slots, absolute, logistic = slots // 4, _problem(Loss.ABSOLUTE), _problem(Loss.LOGISTIC)
    for k in (4, 16):
        x = 16.0
        fixed, averaged = (
            _trial(absolute, scheme, slots=few_slots, per_slot=k, noise=math.sqrt(x))
            for scheme in (Scheme.FIXED, Scheme.AVERAGED)
        )
        factor = 1.0 - 2.0 * math.exp(-k)
        yield "noise", fixed, averaged, factor * math.sqrt((1.0 + x / k) / (1.0 + x))
    for problem, scheme, k, x in (
        (absolute, Scheme.AVERAGED, 1, 64.0),
        (absolute, Scheme.AVERAGED, 4, 64.0),
        (absolute, Scheme.AVERAGED, 16, 64.0),
        (logistic, Scheme.SMOOTH, 16, 1.0),
        (logistic, Scheme.SMOOTH, 16, 64.0),
    ):
        averaged_noise = math.sqrt(x)
        averaged = _trial(problem, scheme, slots=few_slots, per_slot=k, noise=averaged_noise)
        fixed_noise, p0 = averaged_noise / k, 1.0 / k
        fixed = _trial(problem, Scheme.FIXED, slots=few_slots, per_slot=k, noise=fixed_noise, p0=p0)
        if scheme is Scheme.SMOOTH:
            smoothness_term = (problem.smoothness or 0.0) * problem.diameter / problem.lipschitz
            averaged_order = math.sqrt((1.0 + x) / k) + smoothness_term / math.sqrt(few_slots)
        else:
            averaged_order = math.sqrt(1.0 + x / k)
        yield "epsilon", fixed, averaged, averaged_order / math.sqrt(1.0 + x / (k * k))


def _running_time(trial: Trial) -> float:
    """Return the approximate relative running time of a trial, for a progress bar."""
    reports_used = trial.slots if trial.scheme is Scheme.FIXED else trial.clients
    return trial.slots + 0.2 * reports_used
