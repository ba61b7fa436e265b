r"""Audit a campaign with a single run that has many canaries.

Canaries are clients whose presence the adversary tries to detect. A fair coin decides for each of
the k canaries whether it is included. After the run, the adversary guesses the coins of r canaries,
and v guesses are right. With Gaussian noise, the update of every canary has its own coordinate, so
the canaries do not disturb each other. With a local epsilon, every canary has its own category of a
randomized response with this local epsilon, unless the certificate names another randomizer.

Theorem:     [SNJ23, section 5 and Appendix D], arXiv:2305.08846v1. If the run is (ε, δ)-DP with
             respect to each canary, then for v in the upper tail (a bound below ½), with
             W ~ Binomial(r, e^ε/(1 + e^ε)),

                 Pr[at least v are right] <= β + 2 k δ α,
                 β = Pr[W >= v],   α = max over i = 1..v of Pr[v − i <= W < v] / i .

             Proof for δ = 0. Given the releases and the coins of earlier canaries, the odds of a
             canary's coin are at most e^ε in either direction, by Bayes and ε-DP. So each guess is
             right with probability at most e^ε/(1 + e^ε), given all earlier guesses, and the number
             of right guesses is stochastically below W. Sketch for δ > 0 (the whole proof is in the
             paper). Two distributions that are (ε, δ)-close become ε-close if each is changed on an
             event of probability δ. So the number of right guesses is at most W + N, where N is the
             number of canaries for which such an event happens. The mean of N is at most 2 k δ. By
             Markov's inequality, N >= i has probability at most 2 k δ / i. If N = i, at least v
             guesses can be right only if v − i <= W. α is the worst case over all N with this mean.
Neighbours:  those of the certificate: a coin decides whether a canary is present (add/remove), or
             which of two data sets it has (replace-one). The other clients may be arbitrary.
Rounding:    down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc
from scipy.stats import binom

from checkins import validate
from checkins.accounting import (
    Adjacency,
    GaussianNoise,
    LaplaceReports,
    LocalRandomizer,
    PrivUnitReports,
    RandomizedResponseReports,
)
from checkins.accounting.solve import first_true
from checkins.audit.canaries import cap_probabilities
from checkins.audit.releases import (
    GaussianSum,
    LaplaceSum,
    RunParameters,
    slot_log_ratios,
    totals_of_sums,
)
from checkins.campaign import Campaign
from checkins.errors import InvalidValue, NotCovered
from checkins.randomizers import PrivUnit

_MAX_EPSILON = 60.0  # epsilon is searched below this


def tail_probability(
    correct: int, *, guesses: int, canaries: int, epsilon: float, delta: float
) -> float:
    """Return an upper bound on the probability that at least ``correct`` guesses are right.

    The run is assumed to be (epsilon, delta)-DP with respect to each canary.

    >>> round(tail_probability(9, guesses=10, canaries=10, epsilon=0.0, delta=0.0), 6)  # fair coins
    0.010742
    """
    if not 0 <= correct <= guesses <= canaries:
        raise InvalidValue("correct", correct, f"must be 0 to {guesses} of {canaries} canaries")
    validate.non_negative(epsilon=epsilon)
    validate.probability(delta=delta)
    if correct == 0:
        return 1.0
    right_probability = 1.0 / (1.0 + math.exp(-epsilon))
    beta = float(bdtrc(correct - 1, guesses, right_probability))
    if delta == 0.0:
        return beta
    masses = binom.pmf(np.arange(correct - 1, -1, -1), guesses, right_probability)
    alpha = float(np.max(np.cumsum(masses) / np.arange(1, correct + 1)))
    bound = beta + 2.0 * canaries * delta * alpha
    return bound if bound < 0.5 else 1.0  # the theorem covers the upper tail only


@dataclass(frozen=True)
class GuessedBound:
    """A lower bound on epsilon at ``delta``, because ``correct`` of ``guesses`` were right.

    The bound is false with probability at most ``failure``.
    """

    correct: int
    guesses: int
    canaries: int
    canary: str
    delta: float
    failure: float

    @cached_property
    def epsilon(self) -> float:
        """The largest epsilon that the guesses refute, or 0 if they refute none."""
        fixed = {"guesses": self.guesses, "canaries": self.canaries}

        def is_refuted(epsilon: float) -> bool:
            bound = tail_probability(self.correct, **fixed, epsilon=epsilon, delta=self.delta)
            return bound < self.failure

        if not is_refuted(0.0):
            return 0.0
        return first_true(is_refuted, false=_MAX_EPSILON, true=0.0, width=1e-9, precision=1e-9)

    def at(self, delta: float) -> GuessedBound:
        """Return the bound from the same guesses at another delta."""
        return self if delta == self.delta else replace(self, delta=delta)

    def as_dict(self) -> dict[str, object]:
        names = ("delta", "epsilon", "canary", "canaries", "guesses", "correct")
        return {name: getattr(self, name) for name in names}


def guessed_bounds(
    coins: NDArray[np.bool_],
    order: NDArray[np.intp],
    *,
    deltas: Sequence[float],
    failure: float,
    canary: str,
) -> tuple[GuessedBound, ...]:
    """Return a bound for each strategy and delta. All hold, except with probability ``failure``.

    ``order`` sorts the canaries by their scores. A strategy guesses that the canaries with the
    highest scores were included, and that the canaries with the lowest scores were not. The
    strategies are fixed before the run. One strategy makes no guesses about low scores, because an
    included canary that did not report also has a low score.
    """
    canaries = coins.size
    half, quarter, few = (max(1, canaries // divisor) for divisor in (2, 4, 32))
    strategies = [(half, canaries - half), (few, few), (0, quarter)]
    strategies = [(low, high) for low, high in strategies if low + high <= canaries]
    failure_per_bound = failure / (len(strategies) * len(deltas))
    bounds = []
    for low, high in strategies:
        correct = int(coins[order[canaries - high :]].sum()) + int((~coins[order[:low]]).sum())
        bounds += [
            GuessedBound(correct, low + high, canaries, canary, delta, failure_per_bound)
            for delta in deltas
        ]
    return tuple(bounds)


DEFAULT_CANARIES = 1000
"""Default number of canaries."""
_MIN_CANARIES = 32  # least number of canaries, even if fewer would fill all slots
_MAX_VALUES = 50_000_000  # largest number of slots times canaries, which are all held in memory

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class OneRunAudit:
    """The audit of a campaign by one run with this number of canaries."""

    campaign: Campaign
    canaries: int

    @classmethod
    def of(cls, campaign: Campaign, *, canaries: int = DEFAULT_CANARIES) -> OneRunAudit:
        """Return the audit of a campaign with at most ``canaries`` canaries.

        There are fewer if the slots, the declared population or the memory cannot hold as many.
        """
        run = RunParameters.of(campaign.design, repeats=campaign.repeats)
        if run.averaged:
            problem = "an audit with one run needs the fixed or the sliding protocol"
            raise NotCovered("protocol", "averaged", problem)
        if campaign.design.population is not None:
            canaries = min(canaries, campaign.design.population.most)
        if run.capacity is not None:  # canaries that the slots do not use reveal nothing
            enough_canaries = math.ceil(
                2 * run.report_count * run.repeats / max(run.participation, 1e-3)
            )
            canaries = min(canaries, max(enough_canaries, _MIN_CANARIES))
        return cls(campaign, max(1, min(canaries, _MAX_VALUES // run.slots)))

    @property
    def name(self) -> str:
        return f"{self.canaries:,} canaries"

    @property
    def explained(self) -> str:
        choice = "is present" if not self._replace_one else "has an update or its opposite"
        return f"one run with {self.canaries:,} canaries. A coin decides whether a canary {choice}"

    @property
    def _replace_one(self) -> bool:
        return self.campaign.budget.adjacency is Adjacency.REPLACE_ONE

    def bounds(
        self, *, deltas: Sequence[float], failure: float, generator: np.random.Generator
    ) -> tuple[GuessedBound, ...]:
        """Make the run, and return its bounds. All hold, except with probability ``failure``."""
        coins = generator.random(self.canaries) < 0.5
        scores = self.scores(coins, generator)
        order = np.lexsort((generator.random(self.canaries), scores))  # ties are broken at random
        return guessed_bounds(coins, order, deltas=deltas, failure=failure, canary=self.name)

    def scores(self, coins: NDArray[np.bool_], generator: np.random.Generator) -> FloatArray:
        """Return one score for each canary. A larger score is evidence that its coin is True."""
        run = RunParameters.of(self.campaign.design, repeats=self.campaign.repeats)
        randomizer = self.campaign.design.randomizer
        total = np.zeros(self.canaries)
        for _ in range(run.repeats):
            if isinstance(randomizer, GaussianNoise):
                deviation = self.campaign.design.slot_noise(randomizer)
                total += self._scores_from_sums(run, deviation, coins, generator)
            elif isinstance(self.campaign.design.named_randomizer, LaplaceReports):
                noise = LaplaceSum(2.0 / randomizer.local_epsilon, run.capacity or 1)
                total += self._scores_from_laplace_sums(run, noise, coins, generator)
            elif isinstance(randomizer, PrivUnitReports):
                unit = PrivUnit(1.0, randomizer.local_epsilon, randomizer.dimension)
                total += self._scores_from_caps(run, unit, coins, generator)
            else:
                total += self._scores_from_responses(run, randomizer, coins, generator)
        return total

    def _used_canaries(
        self, run: RunParameters, coins: NDArray[np.bool_], generator: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Draw one run. Return the indices of the canaries that the slots use, and their slots.

        A slot uses at most as many canaries as its capacity. For add/remove, a canary takes part
        only if its coin is True.
        """
        exists = coins | self._replace_one
        participates = generator.random(self.canaries) < run.participation
        slot = generator.integers(0, run.drawable_slots, self.canaries)
        checks_in = np.flatnonzero(exists & participates & (slot < run.slots))
        indices = generator.permutation(checks_in)
        slots = slot[indices]
        order = np.argsort(slots, kind="stable")
        indices, slots = indices[order], slots[order]
        if run.capacity is None:
            return indices, slots
        rank_in_slot = np.arange(indices.size) - np.searchsorted(slots, slots)
        is_used = rank_in_slot < run.capacity
        return indices[is_used], slots[is_used]

    def _scores_from_sums(
        self,
        run: RunParameters,
        deviation: float,
        coins: NDArray[np.bool_],
        generator: np.random.Generator,
    ) -> FloatArray:
        """Return the log-likelihood ratio of each canary, which depends only on its coordinate."""
        noise = GaussianSum(deviation)
        drawn_noise = noise.draw((run.slots, self.canaries), generator).T
        used, slots = self._used_canaries(run, coins, generator)
        sums = np.zeros((self.canaries, run.slots))
        np.add.at(sums, (used, slots), np.where(coins[used], 1.0, -1.0))
        totals = totals_of_sums(sums, run.coefficients) + drawn_noise
        scores, p = [], run.check_in_probability
        for shift in (1.0, -1.0) if self._replace_one else (1.0,):
            ratios = slot_log_ratios(noise, totals, np.full(1, shift), run.coefficients)
            scores.append(np.log(1.0 - p + p * np.exp(ratios).mean(axis=1)))
        return np.asarray(scores[0] - scores[1] if self._replace_one else scores[0])

    def _scores_from_laplace_sums(
        self,
        run: RunParameters,
        noise: LaplaceSum,
        coins: NDArray[np.bool_],
        generator: np.random.Generator,
    ) -> FloatArray:
        """Return the log-likelihood ratio of each canary, if reports have Laplace noise.

        The noise of a slot's sum is that of all its reports and dummies.
        """
        sums = noise.draw((run.slots, self.canaries), generator)
        used, slots = self._used_canaries(run, coins, generator)
        np.add.at(sums, (slots, used), np.where(coins[used], 1.0, -1.0))
        scores, p = [], run.check_in_probability
        for shift in (1.0, -1.0) if self._replace_one else (1.0,):
            ratios = np.exp(noise.log_ratio(sums, np.full(sums.shape, shift)))
            scores.append(np.log(1.0 - p + p * ratios.mean(axis=0)))
        return np.asarray(scores[0] - scores[1] if self._replace_one else scores[0])

    def _scores_from_caps(
        self,
        run: RunParameters,
        unit: PrivUnit,
        coins: NDArray[np.bool_],
        generator: np.random.Generator,
    ) -> FloatArray:
        """Return the number of reports in each canary's cap, if reports are made by PrivUnit.

        Every second canary has the opposite update. For replace-one, subtract the number of reports
        in the opposite cap.
        """
        caps = cap_probabilities(unit, replace_one=True)
        used, _ = self._used_canaries(run, coins, generator)
        has_first = coins[used] | (not self._replace_one)
        clients = np.bincount(np.where(has_first, used, used + 1) % 2, minlength=2)
        counts = generator.multinomial(run.report_count - used.size, caps.base)
        counts += generator.multinomial(clients[0], caps.first)
        counts += generator.multinomial(clients[1], caps.other)
        own = np.arange(self.canaries) % 2
        scores = counts[own] - counts[1 - own] if self._replace_one else counts[own]
        return np.asarray(scores, np.float64)

    def _scores_from_responses(
        self,
        run: RunParameters,
        randomizer: LocalRandomizer,
        coins: NDArray[np.bool_],
        generator: np.random.Generator,
    ) -> FloatArray:
        """Return the number of reports of each canary's category.

        For replace-one, subtract the number of reports of the canary's second category. If the
        certificate names randomized response, canaries share its categories, and dummies are
        uniform. Otherwise every canary has its own category, and dummies are reports of another
        category.
        """
        is_named = isinstance(randomizer, RandomizedResponseReports)
        first = np.arange(self.canaries)
        second = first + (1 if is_named else self.canaries)
        categories = self.canaries * (2 if self._replace_one else 1) + 1
        if isinstance(randomizer, RandomizedResponseReports):
            categories = randomizer.categories
            first, second = first % categories, second % categories
        b = math.exp(randomizer.local_epsilon)
        used, _ = self._used_canaries(run, coins, generator)
        true_categories = np.full(run.report_count, categories - 1)  # the category of dummies
        if is_named:
            true_categories = generator.integers(0, categories, run.report_count)
        has_first = coins[used] | (not self._replace_one)
        true_categories[: used.size] = np.where(has_first, first[used], second[used])
        lies = generator.random(run.report_count) < (categories - 1) / (b + categories - 1)
        steps = generator.integers(1, categories, run.report_count)
        reported = np.where(lies, (true_categories + steps) % categories, true_categories)
        counts = np.bincount(reported, minlength=categories).astype(np.float64)
        return counts[first] - counts[second] if self._replace_one else counts[first]
