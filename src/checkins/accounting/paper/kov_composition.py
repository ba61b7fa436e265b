"""Composition of steps with different ε, by [KOV17, Thm 3.5], without the paper's relaxations.

"The paper" is [BKMTT20]. Its proofs bound the ε of step i by εᵢ = log(1 + gap/tᵢ), where gap is a
constant, and tᵢ decreases linearly with i. They then replace the sums over i by larger closed
forms. This module computes the sums themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from checkins import validate
from checkins.accounting.paper.amplification import ROUND_UP, tail_epsilon
from checkins.accounting.paper.statements import Loads, checked_loads
from checkins.errors import InvalidValue

_MAX_LISTED_STEPS = 10**7  # largest number of steps in a list, to save memory
_MAX_SUMMED_STEPS = 2**17  # number of steps that are summed one by one
_MAX_LOCAL_EPSILON = 700.0  # for a larger ε₀, e^ε₀ may overflow


def biased_sampling_ratio(*, local_epsilon: float, sampling: float) -> float:
    """Return e^ε₀/(1 + q(e^ε₀ − 1)), a bound on a likelihood ratio, with q = ``sampling``.

    The ratio is that of a randomizer's output on one input to its output on a random input, which
    is the same input with probability q.

    Theorem:     [BKMTT20, Lem A.1], arXiv:2007.06605v2.
    Neighbours:  none; two inputs of one randomizer.
    Rounding:    up.

    >>> round(biased_sampling_ratio(local_epsilon=1.0, sampling=0.5), 4)
    1.4621
    """
    validate.non_negative(local_epsilon=local_epsilon)
    validate.probability(sampling=sampling)
    denominator = sampling + (1.0 - sampling) * math.exp(-local_epsilon)
    return ROUND_UP / denominator if denominator > 0.0 else math.inf


def relaxed_composition(*, delta: float, steps: int, a: float, b: float) -> float:
    """Return ε of k = ``steps`` adaptive steps with εᵢ ≤ log(1 + a/(k − b(i − 1))), in closed form.

        ε = a²/(2k(1 − b)) + √(2a² log(1/δ)/(k(1 − b)))

    Theorem:     [BKMTT20, Lem A.2], arXiv:2007.06605v2.
    Neighbours:  those for which the steps are DP.
    Rounding:    up.

    >>> round(relaxed_composition(delta=1e-6, steps=1000, a=1.0, b=0.5), 4)
    0.2361
    """
    validate.open_unit(delta=delta, b=b)
    validate.count(steps=steps)
    validate.positive(a=a)
    return tail_epsilon(spread=a / math.sqrt(steps * (1.0 - b)), delta=delta)


def composition(epsilons: ArrayLike, *, delta: float) -> float:
    """Return ε of an adaptive sequence of pure εᵢ-DP steps, the smallest of three bounds.

        Σεᵢ
        Σ εᵢ tanh(εᵢ/2) + √(2 log(1/δ) Σεᵢ²)
        Σ εᵢ tanh(εᵢ/2) + √(2 log(e + √(Σεᵢ²)/δ) Σεᵢ²)

    Theorem:     [KOV17, Thm 3.5], arXiv:1311.0776v4.
    Neighbours:  those for which the steps are DP.
    Rounding:    up.

    >>> round(composition([0.01] * 1000, delta=1e-6), 4)
    1.6415
    """
    validate.open_unit(delta=delta)
    sequence = np.atleast_1d(np.asarray(epsilons, dtype=np.float64))
    if sequence.size == 0 or not bool(np.all((sequence >= 0.0) & (sequence < np.inf))):
        raise InvalidValue("epsilons", epsilons, "must be finite numbers of at least 0")
    return _EpsilonSums.of(sequence).composed(delta)


def homogeneous_composition(*, epsilon: float, steps: int, delta: float) -> float:
    """Return ``composition`` of k steps with the same ε, for any k.

    Theorem:     [KOV17, Thm 3.5], arXiv:1311.0776v4.
    Neighbours:  those for which the steps are DP.
    Rounding:    up.

    >>> round(homogeneous_composition(epsilon=0.01, steps=1000, delta=1e-6), 4)
    1.6415
    """
    validate.non_negative(epsilon=epsilon)
    validate.count(steps=steps)
    validate.open_unit(delta=delta)
    return _EpsilonSums.of(np.array([epsilon]), steps).composed(delta)


def replacement_steps(*, local_epsilon: float, slots: int, largest_weight: float) -> Steps:
    """Return the steps of random replacement, with w = ``largest_weight``.

    w bounds the probability that the record is used. It is the participation p₀ for the fixed
    window of m slots, and 1 for the sliding window.

        εᵢ = log(1 + w e^ε₀(e^ε₀ − 1)/(i − 1 + e^ε₀(m − i + 1))),     i = 1..m

    Theorem:     proof of [BKMTT20, Thm A.4], arXiv:2007.06605v2; [KOV17, Thm 3.5].
    Neighbours:  replace-one, at index 1.
    Rounding:    steps to nearest, their composition up.

    >>> replacement_steps(local_epsilon=1.0, slots=3, largest_weight=1.0).epsilons().round(3)
    array([0.453, 0.546, 0.688])
    >>> steps = replacement_steps(local_epsilon=1.0, slots=1000, largest_weight=1.0)
    >>> round(steps.composed(delta=1e-6), 4)
    0.4308
    """
    validate.count(slots=slots)
    validate.probability(largest_weight=largest_weight)
    gap = _exp_minus_one(local_epsilon)
    return Steps(
        local_epsilon,
        gap=gap * largest_weight if largest_weight > 0.0 else 0.0,
        last=1.0 + (slots - 1) * math.exp(-local_epsilon),
        slope=-math.expm1(-local_epsilon),
        count=slots,
        count_argument="slots",
    )


def swapping_steps(*, local_epsilon: float, clients: int) -> Steps:
    """Return the steps of swapping, and therefore of shuffling n adaptive reports.

        εᵢ = log(1 + e^2ε₀(e^ε₀ − 1)/(e^2ε₀ + (i − 1) + (n − i)e^ε₀)),     i = 1..n

    Theorem:     proof of [BKMTT20, Thm A.7], arXiv:2007.06605v2; [KOV17, Thm 3.5].
    Neighbours:  replace-one, at index 1 (any index after a shuffle).
    Rounding:    steps to nearest, their composition up.

    >>> swapping_steps(local_epsilon=1.0, clients=3).epsilons().round(3)
    array([0.688, 0.762, 0.855])
    >>> round(swapping_steps(local_epsilon=1.0, clients=1000).composed(delta=1e-6), 4)
    1.2319
    """
    validate.count(clients=clients)
    inverse = math.exp(-local_epsilon)
    return Steps(
        local_epsilon,
        gap=_exp_minus_one(local_epsilon),
        last=1.0 + (clients - 1) * inverse * inverse,
        slope=-inverse * math.expm1(-local_epsilon),
        count=clients,
        count_argument="clients",
    )


def bins_epsilons(*, local_epsilon: float, loads: Loads) -> NDArray[np.float64]:
    """Return the steps εᵢ = log(1 + pᵢ(e^ε₀ − 1)) of averages within bins of ℓᵢ records.

        pᵢ = ℓᵢ/(ℓᵢ + e^−2ε₀ Σ_{k<i} ℓₖ + e^−ε₀ Σ_{k>i} ℓₖ)

    Theorem:     proof of [BKMTT20, Thm A.5], arXiv:2007.06605v2, without the proof's relaxation
                 pᵢ ≤ e^2ε₀ ℓᵢ/n.
    Neighbours:  replace-one, at index 1, given the loads.
    Rounding:    to nearest.

    >>> bins_epsilons(local_epsilon=1.0, loads=[2, 0, 1]).round(3).tolist()
    [0.897, 0.0, 0.855]
    >>> steps = bins_epsilons(local_epsilon=1.0, loads=[10] * 1000)
    >>> round(composition(steps, delta=1e-6), 4)
    1.2319
    """
    validate.non_negative(local_epsilon=local_epsilon)
    sizes = checked_loads(loads)
    before = np.cumsum(sizes) - sizes
    after = sizes.sum() - before - sizes
    inverse = math.exp(-local_epsilon)
    probabilities = sizes / np.maximum(
        sizes + inverse * inverse * before + inverse * after, np.finfo(float).tiny
    )
    if local_epsilon > _MAX_LOCAL_EPSILON:
        # e^ε₀ may overflow. Because pᵢ ≤ 1, every step is at most ε₀.
        return (sizes > 0.0) * np.full_like(sizes, local_epsilon)
    steps: NDArray[np.float64] = np.log1p(probabilities * math.expm1(local_epsilon))
    return steps


@dataclass(frozen=True, slots=True)
class _EpsilonSums:
    """The sums Σεᵢ, Σεᵢ tanh(εᵢ/2) and Σεᵢ²."""

    total: float
    mean_loss: float
    squares: float

    @classmethod
    def of(cls, values: NDArray[np.float64], weights: ArrayLike = 1.0) -> _EpsilonSums:
        with np.errstate(over="ignore"):  # an infinite sum is a valid bound, not an error
            weighted = values * np.asarray(weights)
            return cls(
                total=float(weighted.sum()),
                mean_loss=float((weighted * np.tanh(values / 2.0)).sum()),
                squares=float((weighted * values).sum()),
            )

    def composed(self, delta: float) -> float:
        log_inverse_delta = -math.log(delta)
        log_alternative = math.log(math.e + math.sqrt(self.squares) / delta)
        tail = math.sqrt(2.0 * self.squares * min(log_inverse_delta, log_alternative))
        return min(self.total, self.mean_loss + tail) * ROUND_UP


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps εᵢ = log(1 + gap/tᵢ) with tᵢ = last + slope · (count − i), for i = 1..count.

    Every step is at most ε₀. ``count_argument`` is the name of the argument that ``count`` came
    from, for error messages.
    """

    local_epsilon: float
    gap: float
    last: float
    slope: float
    count: int
    count_argument: str

    def epsilons(self) -> NDArray[np.float64]:
        """Return all εᵢ in order."""
        validate.count(most=_MAX_LISTED_STEPS, **{self.count_argument: self.count})
        return np.minimum(self._all_epsilons(), self.local_epsilon)

    def composed(self, *, delta: float) -> float:
        """Return ε of all steps together, rounded up.

        If there are more than 2¹⁷ steps, all but the last 2¹⁷ are summed by the trapezoid rule. For
        a convex function, its result is larger than the sum, here by less than a relative 1e-7.
        """
        validate.open_unit(delta=delta)
        if math.isinf(self.gap):
            return math.inf
        if self.count <= _MAX_SUMMED_STEPS:
            return _EpsilonSums.of(self._all_epsilons()).composed(delta)
        last_epsilons = self._epsilons_at(np.arange(_MAX_SUMMED_STEPS, dtype=np.float64))
        values, weights = self._trapezoid_rule(_MAX_SUMMED_STEPS)
        values_and_weights = (
            np.concatenate((last_epsilons, values)),
            np.concatenate((np.ones_like(last_epsilons), weights)),
        )
        return _EpsilonSums.of(*values_and_weights).composed(delta)

    def _epsilons_at(self, from_end: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the εᵢ at these distances ``count − i`` from the last step."""
        return np.log1p(self.gap / (self.last + self.slope * from_end))

    def _all_epsilons(self) -> NDArray[np.float64]:
        return self._epsilons_at(np.arange(self.count - 1, -1, -1, dtype=np.float64))

    def _trapezoid_rule(self, start: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return εᵢ and weights of the trapezoid rule, for all steps except the last ``start``.

        For convex f, the sum over integers is at most the integral of f over unit intervals around
        them, and the integral is at most the trapezoid rule. Here f is εᵢ, εᵢ² or εᵢ tanh(εᵢ/2), as
        a function of t. Its factors, εᵢ = log(1 + gap/t) and tanh(εᵢ/2) = gap/(2t + gap), are
        positive, decreasing and convex in t, so f is convex too. The nodes are nearly geometric in
        t.
        """
        lowest = self.last + self.slope * (start - 0.5)
        growth = math.log1p(self.slope * (self.count - start) / lowest)
        share = np.linspace(0.0, 1.0, _MAX_SUMMED_STEPS + 1)
        if growth > 1e-6:
            share = np.expm1(share * growth) / math.expm1(growth)
        nodes = share * (self.count - start) + (start - 0.5)
        halves = np.diff(nodes) / 2.0
        weights = np.concatenate((halves, [0.0])) + np.concatenate(([0.0], halves))
        return self._epsilons_at(nodes), weights


def _exp_minus_one(local_epsilon: float) -> float:
    validate.non_negative(local_epsilon=local_epsilon)
    return math.inf if local_epsilon > _MAX_LOCAL_EPSILON else math.expm1(local_epsilon)
