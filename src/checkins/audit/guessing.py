r"""A lower bound on epsilon from one run with many canaries, of which each was there or not.

Every one of k canaries is included by a fair coin of its own. After the run the adversary guesses
for r of them whether they were, and v guesses are right.

Theorem:     [SNJ23, section 5 and Appendix D], arXiv:2305.08846v1. If the run is (ε, δ)-DP with
             respect to each canary, then for v in the upper tail (a bound below ½), with
             W ~ Binomial(r, e^ε/(1 + e^ε)),

                 Pr[at least v are right] <= β + 2 k δ α,
                 β = Pr[W >= v],   α = max over i = 1..v of Pr[v − i <= W < v] / i .

             Proof of δ = 0: given the releases and the coins of the canaries before it, the odds of
             a canary's coin are at most e^ε either way, by Bayes and ε-DP; so each guess is right
             with a chance of at most e^ε/(1 + e^ε), whatever came before, and the number of right
             ones is stochastically below W. For δ > 0 (a sketch; the paper has it whole): two laws
             that are (ε, δ)-close become ε-close once each is changed on an event of chance δ. So
             the right guesses are at most W plus the number of canaries where such an event came
             true, whose mean is at most 2 k δ; by Markov's inequality i or more of them come with
             a chance of at most 2 k δ / i, and they help only where v − i <= W < v. α is the worst
             way to spend that mean.
Neighbours:  those of the certificate: a coin says whether a canary is there (add/remove), or which
             of two data it has (replace-one). The others, canaries too, may be anyone.
Rounding:    down.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtrc
from scipy.stats import binom

from checkins import validate
from checkins.errors import InvalidValue

_MOST_EPSILON = 60.0


def chance_of(correct: int, *, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """At most this is the chance of so many right guesses, if (epsilon, delta) is true.

    >>> round(chance_of(9, guesses=10, canaries=10, epsilon=0.0, delta=0.0), 6)  # fair coins
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
    chance = beta + 2.0 * canaries * delta * alpha
    return chance if chance < 0.5 else 1.0  # in the lower tail the theorem says nothing


@dataclass(frozen=True, slots=True)
class GuessedBound:
    """No epsilon below ``epsilon`` is true at ``delta``, by ``correct`` of ``guesses`` guesses."""

    epsilon: float
    delta: float
    canary: str
    canaries: int
    guesses: int
    correct: int
    failure: float

    @classmethod
    def of(
        cls, correct: int, *, guesses: int, canaries: int, delta: float, failure: float, canary: str
    ) -> GuessedBound:
        """The largest epsilon under which so many are right with less chance than ``failure``."""

        def refuted(epsilon: float) -> bool:
            chance = chance_of(
                correct, guesses=guesses, canaries=canaries, epsilon=epsilon, delta=delta
            )
            return chance < failure

        low, high = 0.0, _MOST_EPSILON
        if refuted(0.0):
            while high - low > 1e-9 * (1.0 + high):
                middle = (low + high) / 2
                low, high = (middle, high) if refuted(middle) else (low, middle)
        return cls(low, delta, canary, canaries, guesses, correct, failure)

    def at(self, delta: float) -> GuessedBound:
        """The same guesses, read at another delta."""
        if delta == self.delta:
            return self
        return GuessedBound.of(
            self.correct,
            guesses=self.guesses,
            canaries=self.canaries,
            delta=delta,
            failure=self.failure,
            canary=self.canary,
        )

    def as_dict(self) -> dict[str, object]:
        return {
            "delta": self.delta,
            "epsilon": self.epsilon,
            "canary": self.canary,
            "canaries": self.canaries,
            "guesses": self.guesses,
            "correct": self.correct,
        }
