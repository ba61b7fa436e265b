"""Test the utility theorems by measuring the excess risk of simulated campaigns.

There are three groups of trials. A *slot series* measures one loss and scheme at m, 4m, 16m and
64m slots, with one or four clients per slot. A *variation* changes one parameter. A *comparison*
runs the fixed window and the averaged protocol on equally many clients, either with the same noise
or with the same epsilon. The latter uses the asymptotic orders of the paper.

The paper compares the protocols at equal epsilon. The fixed window takes p₀ = m/n and
σ ~ p₀/(ε√m). The averaged protocol takes p₀ = 1 and σ ~ 1/(ε√m), so its noise is n/m times as
large. Let k = n/m and x = pσ²/L², with the σ of the averaged protocol. In units of LR/√m, the
paper's bounds then are

    fixed √(1 + x/k²),     averaged √(1 + x/k),     averaged, smooth √((1 + x)/k) + βR/(L√m).

By these bounds the fixed window is better for m ≪ n if the loss is not smooth. The paper's next
sentence states the opposite. On smooth losses either protocol may be better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from checkins import validate
from checkins.errors import InvalidValue
from checkins.simulation.excess_risk import MOST_SLOTS, Measured, Scheme, Trial, measure
from checkins.tasks.data.synthetic import Loss, Problem

FEWEST_SLOTS = 256
STEPS = (64, 16, 4, 1)
"""Divisors of the largest number of slots. A slot series has one measurement for each of them."""
PER_SLOT = (1, 4)
"""Numbers of clients per slot in the slot series."""
DIMENSION, DIAMETER, NOISE = 2, 2.0, 0.5
"""Dimension and diameter of the problems. ``NOISE`` is √(pσ²)/L, the typical norm of a report's
noise divided by the largest norm of a gradient."""

OnFraction = Callable[[float], None]
"""Called with the finished fraction of the work."""


@dataclass(frozen=True, slots=True)
class SlotSeries:
    """Measurements of one loss and scheme at one n/m, with growing m."""

    measurements: tuple[Measured, ...]

    @property
    def top(self) -> Measured:
        return self.measurements[-1]

    @property
    def slope(self) -> float:
        """Slope of log risk against log m, fitted with inverse-variance weights.

        The first measurement is left out because, with few slots, the projection onto the ball
        determines the risk rather than the noise.
        """
        x, y, weights = self._logs()
        return float(np.sum(weights * x * y) / np.sum(weights * x * x))

    @property
    def slope_error(self) -> float:
        """Standard error of ``slope``."""
        x, _, weights = self._logs()
        return float(1.0 / np.sqrt(np.sum(weights * x * x)))

    @property
    def bound_slope(self) -> float:
        """Slope of the bound from the second measurement to the last.

        It is above −1/2, because log m/√m falls more slowly than 1/√m.
        """
        low, high = self.measurements[1].trial, self.top.trial
        return math.log(high.bound / low.bound) / math.log(high.slots / low.slots)

    def _logs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        used = self.measurements[1:]
        x = np.log([one.trial.slots for one in used])
        y = np.log([one.risk for one in used])
        weights = np.array([(one.risk / one.error) ** 2 for one in used])
        return x - np.average(x, weights=weights), y, weights


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both protocols on equally many clients.

    A ratio is the risk of the averaged protocol divided by the risk of the fixed window.
    """

    same: str
    """The quantity that is equal for both protocols: "noise" or "epsilon"."""
    fixed: Measured
    averaged: Measured
    paper_ratio: float
    """The ratio of the paper's asymptotic orders, without logarithms and constants."""

    @property
    def ratio(self) -> float:
        return self.averaged.risk / self.fixed.risk

    @property
    def ratio_error(self) -> float:
        """Standard error of ``ratio``, by first-order error propagation."""
        return self.ratio * math.hypot(
            self.averaged.error / self.averaged.risk, self.fixed.error / self.fixed.risk
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
    variations: tuple[tuple[str, Measured], ...]
    comparisons: tuple[Comparison, ...]

    @property
    def measured(self) -> tuple[tuple[str, Measured], ...]:
        """All measured trials, each with the name of its group."""
        return (
            *(("ladder", one) for series in self.slot_series for one in series.measurements),
            *self.variations,
            *(
                (f"same {pair.same}", one)
                for pair in self.comparisons
                for one in (pair.fixed, pair.averaged)
            ),
        )

    @property
    def tightest(self) -> Measured:
        """The measurement whose upper confidence limit comes closest to its bound."""
        return max((one for _, one in self.measured), key=lambda one: one.share)

    @property
    def informative_bounds(self) -> int:
        """The number of bounds below the excess risk of the worst model. The others are vacuous."""
        return sum(one.trial.bound < one.trial.worst for _, one in self.measured)

    @property
    def holds(self) -> bool:
        """Whether every upper confidence limit is at most its bound."""
        return all(one.share <= 1.0 for _, one in self.measured)


def sweep(
    *, slots: int, runs: int, seed: int, watch: OnFraction = lambda share: None
) -> UtilitySweep:
    """Run all trials, with at most ``slots`` slots each.

    ``watch`` is called with the finished fraction. Trials share no clients and no randomness.
    """
    validate.count(most=MOST_SLOTS, slots=slots)
    if not slots >= FEWEST_SLOTS:
        raise InvalidValue("slots", slots, f"must be at least {FEWEST_SLOTS}")
    slot_series, variations = list(_slot_series(slots)), list(_variations(slots))
    comparisons = list(_comparisons(slots))
    trials = [
        *(trial for series in slot_series for trial in series),
        *(trial for _, trial in variations),
        *(trial for _, fixed, averaged, _ in comparisons for trial in (fixed, averaged)),
    ]
    total, done = sum(_work(trial) for trial in trials), 0.0
    measurements: list[Measured] = []
    for number, trial in enumerate(trials):
        measurements.append(measure(trial, runs=runs, seed=seed * 10_000 + number))
        done += _work(trial)
        watch(done / total)
    order = iter(measurements)
    return UtilitySweep(
        slots,
        runs,
        tuple(SlotSeries(tuple(next(order) for _ in series)) for series in slot_series),
        tuple((what, next(order)) for what, _ in variations),
        tuple(Comparison(same, next(order), next(order), r) for same, _, _, r in comparisons),
    )


def _schemes(loss: Loss) -> tuple[Scheme, ...]:
    return (Scheme.FIXED, Scheme.AVERAGED) if loss is Loss.ABSOLUTE else tuple(Scheme)


def _problem(loss: Loss, *, dimension: int = DIMENSION, diameter: float = DIAMETER) -> Problem:
    return Problem(loss, dimension=dimension, diameter=diameter, seed=1)


def _trial(
    problem: Problem, scheme: Scheme, *, slots: int, per_slot: int, noise: float, p0: float = 1.0
) -> Trial:
    """Return a trial with participation ``p0`` and a noise of √(pσ²)/L = ``noise``."""
    noise_std = noise * problem.lipschitz / math.sqrt(problem.dimension)
    return Trial(problem, scheme, slots, per_slot * slots, noise_std, p0)


def _slot_series(slots: int) -> Iterator[tuple[Trial, ...]]:
    for loss in Loss:
        for scheme in _schemes(loss):
            for per_slot in PER_SLOT:
                problem, counts = _problem(loss), [slots // step for step in STEPS]
                yield tuple(
                    _trial(problem, scheme, slots=count, per_slot=per_slot, noise=NOISE)
                    for count in counts
                )


def _variations(slots: int) -> Iterator[tuple[str, Trial]]:
    few = slots // 8
    for loss in Loss:
        usual, line = _problem(loss), _problem(loss, dimension=1)
        # On a long line with many slots, the bounds for the last model are not vacuous.
        wide = _problem(loss, dimension=1, diameter=20.0)
        for scheme in (Scheme.FIXED, Scheme.AVERAGED):
            yield "long", _trial(wide, scheme, slots=slots, per_slot=4, noise=NOISE)
        for scheme in _schemes(loss):
            for what, problem, noise in (
                ("no noise", usual, 0.0),
                ("much noise", usual, 8.0),
                ("one dimension", line, NOISE),
                ("20 dimensions", _problem(loss, dimension=20), NOISE),
                ("a wide ball", _problem(loss, diameter=20.0), NOISE),
            ):
                yield what, _trial(problem, scheme, slots=few, per_slot=4, noise=noise)
        rare = _trial(usual, Scheme.FIXED, slots=few, per_slot=4, noise=NOISE, p0=0.25)
        yield "few take part", rare


def _comparisons(slots: int) -> Iterator[tuple[str, Trial, Trial, float]]:
    few, absolute, logistic = slots // 4, _problem(Loss.ABSOLUTE), _problem(Loss.LOGISTIC)
    for k in (4, 16):
        x = 16.0
        fixed, averaged = (
            _trial(absolute, scheme, slots=few, per_slot=k, noise=math.sqrt(x))
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
        length = math.sqrt(x)
        averaged = _trial(problem, scheme, slots=few, per_slot=k, noise=length)
        less, rare = length / k, 1.0 / k
        fixed = _trial(problem, Scheme.FIXED, slots=few, per_slot=k, noise=less, p0=rare)
        if scheme is Scheme.SMOOTH:
            start = (problem.smoothness or 0.0) * problem.diameter / problem.lipschitz
            order = math.sqrt((1.0 + x) / k) + start / math.sqrt(few)
        else:
            order = math.sqrt(1.0 + x / k)
        yield "epsilon", fixed, averaged, order / math.sqrt(1.0 + x / (k * k))


def _work(trial: Trial) -> float:
    """Return the approximate relative running time of a trial, for a progress bar."""
    used = trial.slots if trial.scheme is Scheme.FIXED else trial.clients
    return trial.slots + 0.2 * used
