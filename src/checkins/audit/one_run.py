r"""Audit a campaign with a single run that has many canaries.

A fair coin decides for each of the k canaries whether it is included. After the run, the adversary
guesses the coins of r canaries, and v guesses are right. Every canary has its own direction, so one
run contains many attacks. With Gaussian noise, the directions are orthogonal axes. With a local
epsilon, every canary has its own category of a randomized response with this local epsilon.

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
             Markov's inequality, N >= i has probability at most 2 k δ / i, and i such canaries help
             only if v − i <= W < v. α is the worst case over all N with this mean.
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
    RandomizedResponseReports,
)
from checkins.accounting.solve import first_true
from checkins.audit.releases import LaplaceSum, RunParameters
from checkins.campaign import Campaign
from checkins.errors import InvalidValue, NotCovered

_MAX_EPSILON = 60.0


def tail_probability(
    correct: int, *, guesses: int, canaries: int, epsilon: float, delta: float
) -> float:
    """Return an upper bound on the probability of at least ``correct`` right guesses.

    The run is assumed to be (epsilon, delta)-DP.

    >>> round(tail_probability(9, guesses=10, canaries=10, epsilon=0.0, delta=0.0), 6)  # fair coins
    0.010742
    """
    if not 0 <= correct <= guesses <= canaries:
        raise InvalidValue("correct", correct, f"must be 0 to {guesses} of {canaries} canaries")
    validate.non_negative(epsilon=epsilon)
    validate.probability(delta=delta)
    if correct == 0:
        return 1.0
    right = 1.0 / (1.0 + math.exp(-epsilon))
    beta = float(bdtrc(correct - 1, guesses, right))
    if delta == 0.0:
        return beta
    below = binom.pmf(np.arange(correct - 1, -1, -1), guesses, right)
    alpha = float(np.max(np.cumsum(below) / np.arange(1, correct + 1)))
    bound = beta + 2.0 * canaries * delta * alpha
    return bound if bound < 0.5 else 1.0  # the theorem covers the upper tail only


@dataclass(frozen=True)
class GuessedBound:
    """A lower bound on epsilon at ``delta``, because ``correct`` of ``guesses`` were right.

    It is false with probability at most ``failure``.
    """

    correct: int
    guesses: int
    canaries: int
    canary: str
    delta: float
    failure: float

    @cached_property
    def epsilon(self) -> float:
        """The largest epsilon that the guesses refute."""
        known = {"guesses": self.guesses, "canaries": self.canaries}

        def refuted(epsilon: float) -> bool:
            bound = tail_probability(self.correct, **known, epsilon=epsilon, delta=self.delta)
            return bound < self.failure

        if not refuted(0.0):
            return 0.0
        return first_true(refuted, false=_MAX_EPSILON, true=0.0, width=1e-9, precision=1e-9)

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
    """Return the bounds of all strategies and deltas. All hold, except with ``failure``.

    ``order`` sorts the canaries by their scores. A strategy guesses that the canaries with the h
    highest scores were included, and that those with the l lowest scores were not. The strategies
    do not depend on the results. One of them guesses only about high scores, because an included
    canary that did not report also has a low score.
    """
    canaries = coins.size
    half, quarter, few = (max(1, canaries // part) for part in (2, 4, 32))
    strategies = [(half, canaries - half), (few, few), (0, quarter)]
    strategies = [(low, high) for low, high in strategies if low + high <= canaries]
    each = failure / (len(strategies) * len(deltas))
    found = []
    for low, high in strategies:
        right = int(coins[order[canaries - high :]].sum()) + int((~coins[order[:low]]).sum())
        found += [
            GuessedBound(right, low + high, canaries, canary, delta, each) for delta in deltas
        ]
    return tuple(found)


CANARIES = 1000
"""Default number of canaries."""
_MIN_CANARIES = 32
_MAX_VALUES = 50_000_000

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class OneRun:
    """A campaign and the number of its canaries."""

    campaign: Campaign
    canaries: int

    @classmethod
    def of(cls, campaign: Campaign, *, canaries: int = CANARIES) -> OneRun:
        """Return the audit of a campaign with at most ``canaries`` canaries.

        There are fewer if the slots, the declared population or the memory do not allow as many.
        """
        run = RunParameters.of(campaign.design, repeats=campaign.repeats)
        if run.averaged:
            why = "one run is for the fixed and the sliding protocol"
            raise NotCovered("protocol", "averaged", why)
        if campaign.design.population is not None:
            canaries = min(canaries, campaign.design.population.most)
        if run.capacity is not None:  # only chosen canaries show anything
            room = math.ceil(2 * run.places * run.repeats / max(run.participation, 1e-3))
            canaries = min(canaries, max(room, _MIN_CANARIES))
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
        """Return the bounds of all strategies. All hold, except with probability ``failure``."""
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
                total += self._by_sums(run, deviation, coins, generator)
            elif isinstance(self.campaign.design.named_randomizer, LaplaceReports):
                noise = LaplaceSum(2.0 / randomizer.local_epsilon, run.capacity or 1)
                total += self._by_laplace_sums(run, noise, coins, generator)
            else:
                total += self._by_responses(run, randomizer, coins, generator)
        return total

    def _used(
        self, run: RunParameters, coins: NDArray[np.bool_], generator: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the canaries that the slots use, and the slot of each.

        A slot uses at most as many canaries as its capacity. For add/remove, a canary takes part
        only if its coin is True.
        """
        there = coins | self._replace_one
        coin = generator.random(self.canaries) < run.participation
        slot = generator.integers(0, run.drawable_slots, self.canaries)
        who = generator.permutation(np.flatnonzero(there & coin & (slot < run.slots)))
        where = slot[who]
        order = np.argsort(where, kind="stable")
        who, where = who[order], where[order]
        if run.capacity is None:
            return who, where
        rank = np.arange(who.size) - np.searchsorted(where, where)
        chosen = rank < run.capacity
        return who[chosen], where[chosen]

    def _by_sums(
        self,
        run: RunParameters,
        deviation: float,
        coins: NDArray[np.bool_],
        generator: np.random.Generator,
    ) -> FloatArray:
        """Return log f of each canary. The other canaries do not matter: they have other axes."""
        sums = generator.standard_normal((run.slots, self.canaries)) * deviation
        who, where = self._used(run, coins, generator)
        signs = np.where(coins[who], 1.0, -1.0)
        np.add.at(sums, (where, who), signs)
        first = _log_mean(sums / deviation**2, deviation, run)
        if not self._replace_one:
            return first
        return first - _log_mean(-sums / deviation**2, deviation, run)

    def _by_laplace_sums(
        self,
        run: RunParameters,
        noise: LaplaceSum,
        coins: NDArray[np.bool_],
        generator: np.random.Generator,
    ) -> FloatArray:
        """Return log f of each canary, as ``_by_sums``. Dummies are noise, as all reports are."""
        sums = noise.draw((run.slots, self.canaries), generator)
        who, where = self._used(run, coins, generator)
        np.add.at(sums, (where, who), np.where(coins[who], 1.0, -1.0))
        scores = []
        for shift in (1.0, -1.0) if self._replace_one else (1.0,):
            ratios = np.exp(noise.log_ratio(sums, np.full(sums.shape, shift)))
            scores.append(np.log(1.0 - run.reach + run.reach * ratios.mean(axis=0)))
        return np.asarray(scores[0] - scores[1] if self._replace_one else scores[0])

    def _by_responses(
        self,
        run: RunParameters,
        randomizer: LocalRandomizer,
        coins: NDArray[np.bool_],
        generator: np.random.Generator,
    ) -> FloatArray:
        """Return the number of reports of each canary's category.

        For replace-one, subtract the number of reports of the canary's second category. If the
        randomizer has no name, every canary has a category of its own, and dummies are reports of
        one more category. Otherwise canaries share the categories, and dummies are uniform.
        """
        named = isinstance(randomizer, RandomizedResponseReports)
        first = np.arange(self.canaries)
        second = first + (1 if named else self.canaries)
        categories = self.canaries * (2 if self._replace_one else 1) + 1
        if isinstance(randomizer, RandomizedResponseReports):
            categories = randomizer.categories
            first, second = first % categories, second % categories
        places = run.places
        b = math.exp(randomizer.local_epsilon)
        who, _ = self._used(run, coins, generator)
        held = np.full(places, categories - 1)  # the category of dummies without a name
        if named:
            held = generator.integers(0, categories, places)
        held[: who.size] = np.where(coins[who] | (not self._replace_one), first[who], second[who])
        flipped = generator.random(places) < (categories - 1) / (b + categories - 1)
        steps = generator.integers(1, categories, places)
        reported = np.where(flipped, (held + steps) % categories, held)
        counts = np.bincount(reported, minlength=categories).astype(np.float64)
        return counts[first] - counts[second] if self._replace_one else counts[first]


def _log_mean(exponents: FloatArray, deviation: float, run: RunParameters) -> FloatArray:
    ratios = np.exp(exponents - 0.5 / deviation**2)
    return np.asarray(np.log(1.0 - run.reach + run.reach * ratios.mean(axis=0)))
