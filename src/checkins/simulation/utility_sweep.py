"""Test the utility theorems: risk against the bound, its decrease with m, fixed against averaged.

Three groups of trials. *Ladders*: each loss and scheme at m, 4m, 16m and 64m slots with one or four
clients for each slot. *Variations*: one thing changed at a time. *Comparisons*: both protocols on
the same clients, with the same noise or with the same epsilon by the paper's orders.

The paper compares at equal epsilon: fixed takes p₀ = m/n and σ ~ p₀/(ε√m), averaged p₀ = 1 and
σ ~ 1/(ε√m), so the fixed window's noise is m/n of the other's. Its displays then are, with
k = n/m and x = pσ²/L² of the averaged protocol, in units of LR/√m,

    fixed √(1 + x/k²),     averaged √(1 + x/k),     averaged, smooth √((1 + x)/k) + βR/(L√m).

By these the fixed window does better for m ≪ n on losses that are not smooth; the paper's next
sentence states the opposite. On smooth losses either protocol may do better.
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
"""Divisors of the largest number of slots, for the rungs of a ladder."""
PER_SLOT = (1, 4)
"""Numbers of clients per slot on the ladders."""
DIMENSION, DIAMETER, NOISE = 2, 2.0, 0.5
"""Dimension and diameter of the problems; ``NOISE`` is √(pσ²)/L, the norm of a report's noise over
that of the largest gradient."""

OnFraction = Callable[[float], None]
"""Called with the finished fraction of the work."""


@dataclass(frozen=True, slots=True)
class Ladder:
    """One loss, scheme and n/m, at growing m."""

    rungs: tuple[Measured, ...]

    @property
    def top(self) -> Measured:
        return self.rungs[-1]

    @property
    def slope(self) -> float:
        """Slope of log risk in log m, weighted by inverse variances, without the first rung.

        With few slots the projection onto the ball, not the noise, decides the risk.
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
        """Slope of the bound from the second rung to the last: log m/√m falls slower than 1/√m."""
        low, high = self.rungs[1].trial, self.top.trial
        return math.log(high.bound / low.bound) / math.log(high.slots / low.slots)

    def _logs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rungs = self.rungs[1:]
        x = np.log([rung.trial.slots for rung in rungs])
        y = np.log([rung.risk for rung in rungs])
        weights = np.array([(rung.risk / rung.error) ** 2 for rung in rungs])
        return x - np.average(x, weights=weights), y, weights


@dataclass(frozen=True, slots=True)
class Comparison:
    """The two protocols on the same clients; a ratio is the averaged one's risk by the fixed's."""

    same: str
    """The quantity that is equal: "noise" or "epsilon"."""
    fixed: Measured
    averaged: Measured
    stated_ratio: float
    """The ratio by the paper's orders, without logarithms and constants."""

    @property
    def ratio(self) -> float:
        return self.averaged.risk / self.fixed.risk

    @property
    def ratio_error(self) -> float:
        """Standard error of ``ratio``, to first order."""
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
    ladders: tuple[Ladder, ...]
    variations: tuple[tuple[str, Measured], ...]
    comparisons: tuple[Comparison, ...]

    @property
    def measured(self) -> tuple[tuple[str, Measured], ...]:
        """All measured trials, each with its group."""
        return (
            *(("ladder", rung) for ladder in self.ladders for rung in ladder.rungs),
            *self.variations,
            *(
                (f"same {pair.same}", one)
                for pair in self.comparisons
                for one in (pair.fixed, pair.averaged)
            ),
        )

    @property
    def nearest(self) -> Measured:
        """The one whose upper end takes the largest share of its bound."""
        return max((one for _, one in self.measured), key=lambda one: one.share)

    @property
    def telling(self) -> int:
        """The number of bounds below the risk of the worst model, which are not vacuous."""
        return sum(one.trial.bound < one.trial.worst for _, one in self.measured)

    @property
    def holds(self) -> bool:
        """Every upper end lies under its bound."""
        return all(one.share <= 1.0 for _, one in self.measured)


def sweep(
    *, slots: int, runs: int, seed: int, watch: OnFraction = lambda share: None
) -> UtilitySweep:
    """Run all trials at up to ``slots`` slots; ``watch`` is called with the finished fraction.

    No two trials share a client, a coin or a noise.
    """
    validate.count(most=MOST_SLOTS, slots=slots)
    if not slots >= FEWEST_SLOTS:
        raise InvalidValue("slots", slots, f"must be at least {FEWEST_SLOTS}")
    ladders, variations = list(_ladders(slots)), list(_variations(slots))
    comparisons = list(_comparisons(slots))
    trials = [
        *(trial for ladder in ladders for trial in ladder),
        *(trial for _, trial in variations),
        *(trial for _, fixed, averaged, _ in comparisons for trial in (fixed, averaged)),
    ]
    total, done = sum(_work(trial) for trial in trials), 0.0
    found: list[Measured] = []
    for number, trial in enumerate(trials):
        found.append(measure(trial, runs=runs, seed=seed * 10_000 + number))
        done += _work(trial)
        watch(done / total)
    order = iter(found)
    return UtilitySweep(
        slots,
        runs,
        tuple(Ladder(tuple(next(order) for _ in ladder)) for ladder in ladders),
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
    """Return a trial with participation ``p0``; ``noise`` is √(pσ²)/L."""
    noise_std = noise * problem.lipschitz / math.sqrt(problem.dimension)
    return Trial(problem, scheme, slots, per_slot * slots, noise_std, p0)


def _ladders(slots: int) -> Iterator[tuple[Trial, ...]]:
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
        # On a long line, with many slots, even the last model's bounds lie below the worst risk.
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
    """Return the approximate work of a trial, for a progress bar."""
    used = trial.slots if trial.scheme is Scheme.FIXED else trial.clients
    return trial.slots + 0.2 * used
