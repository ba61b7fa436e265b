"""One run of a campaign with many canaries, for campaigns that are too dear to repeat.

Canary j moves a direction of its own, so one run holds many attacks. With Gaussian noise these are
the axes of the model, or random directions where there are more canaries than axes. With a pure
randomizer canary j has a category of its own, in the response that has this local epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from checkins.accounting import Adjacency, GaussianNoise, LocalRandomizer
from checkins.audit.canaries.world import World
from checkins.audit.guessing import GuessedBound
from checkins.campaign import Campaign
from checkins.errors import NotCovered

CANARIES = 1000
_FEWEST = 32
_MOST_NUMBERS = 50_000_000

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class OneRun:
    """A campaign, how many canaries there are, and the dimension in which they have directions."""

    campaign: Campaign
    canaries: int
    dimension: int

    @classmethod
    def of(cls, campaign: Campaign, *, dimension: int | None, canaries: int = CANARIES) -> OneRun:
        """As many canaries as there are places for, within a declared population and memory."""
        world = World.of(campaign.design, repeats=campaign.repeats)
        if world.averaged:
            raise NotCovered(
                "protocol", "averaged", "one run is for the fixed and the sliding protocol"
            )
        if campaign.design.population is not None:
            canaries = min(canaries, campaign.design.population.most)
        if world.capacity is not None:  # a canary that finds no place shows nothing
            room = math.ceil(2 * world.places * world.repeats / max(world.participation, 1e-3))
            canaries = min(canaries, max(room, _FEWEST))
        canaries = max(1, min(canaries, _MOST_NUMBERS // world.slots))
        axes = canaries if dimension is None else min(dimension, _MOST_NUMBERS // world.slots)
        return cls(campaign, canaries, axes)

    @property
    def name(self) -> str:
        return f"{self.canaries:,} canaries"

    @property
    def explained(self) -> str:
        choice = "there or not" if not self._replace_one else "with one update or its opposite"
        return f"{self.canaries:,} canaries at once, each {choice} by a coin, and one run"

    @property
    def _replace_one(self) -> bool:
        return self.campaign.budget.adjacency is Adjacency.REPLACE_ONE

    def bounds(
        self, *, deltas: Sequence[float], failure: float, generator: np.random.Generator
    ) -> tuple[GuessedBound, ...]:
        """Every way to guess, at every delta; all hold together but with chance ``failure``."""
        coins = generator.random(self.canaries) < 0.5
        scores = self.scores(coins, generator)
        ways = _ways(self.canaries)
        each = failure / (len(ways) * len(deltas))
        order = np.lexsort((generator.random(self.canaries), scores))  # ties fall by chance
        found: list[GuessedBound] = []
        for lowest, highest in ways:
            right = int(coins[order[self.canaries - highest :]].sum())
            right += int((~coins[order[:lowest]]).sum())
            found += (
                GuessedBound.of(
                    right,
                    guesses=lowest + highest,
                    canaries=self.canaries,
                    delta=delta,
                    failure=each,
                    canary=self.name,
                )
                for delta in deltas
            )
        return tuple(found)

    def scores(self, coins: NDArray[np.bool_], generator: np.random.Generator) -> FloatArray:
        """For each canary, how much the releases speak for its coin."""
        world = World.of(self.campaign.design, repeats=self.campaign.repeats)
        randomizer = self.campaign.design.randomizer
        total = np.zeros(self.canaries)
        for _ in range(world.repeats):
            if isinstance(randomizer, GaussianNoise):
                deviation = self.campaign.design.slot_noise(randomizer)
                total += self._by_sums(world, deviation, coins, generator)
            else:
                total += self._by_responses(world, randomizer, coins, generator)
        return total

    def _used(
        self, world: World, there: NDArray[np.bool_], generator: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(canaries, their slots) of those that are chosen, at most a capacity in each slot."""
        coin = generator.random(self.canaries) < world.participation
        slot = generator.integers(0, world.choices, self.canaries)
        who = generator.permutation(np.flatnonzero(there & coin & (slot < world.slots)))
        where = slot[who]
        order = np.argsort(where, kind="stable")
        who, where = who[order], where[order]
        if world.capacity is None:
            return who, where
        rank = np.arange(who.size) - np.searchsorted(where, where)
        chosen = rank < world.capacity
        return who[chosen], where[chosen]

    def _by_sums(
        self,
        world: World,
        deviation: float,
        coins: NDArray[np.bool_],
        generator: np.random.Generator,
    ) -> FloatArray:
        """log f of each canary, as if it were alone: the others are nearly orthogonal to it."""
        sums = generator.standard_normal((world.slots, self.dimension)) * deviation
        there = np.ones(self.canaries, dtype=np.bool_) if self._replace_one else coins
        who, where = self._used(world, there, generator)
        signs = np.where(coins[who], 1.0, -1.0)
        if self.canaries <= self.dimension:
            np.add.at(sums, (where, who), signs)
            along = sums[:, : self.canaries]
        else:
            directions = generator.standard_normal((self.canaries, self.dimension))
            directions /= np.linalg.norm(directions, axis=1, keepdims=True)
            np.add.at(sums, where, signs[:, np.newaxis] * directions[who])
            along = sums @ directions.T
        first = _log_mean(along / deviation**2, deviation, world)
        if not self._replace_one:
            return first
        return first - _log_mean(-along / deviation**2, deviation, world)

    def _by_responses(
        self,
        world: World,
        randomizer: LocalRandomizer,
        coins: NDArray[np.bool_],
        generator: np.random.Generator,
    ) -> FloatArray:
        """How often each canary's category was reported; with other data it has a second one."""
        categories = self.canaries * (2 if self._replace_one else 1) + 1
        places = world.places
        b = math.exp(randomizer.local_epsilon)
        there = np.ones(self.canaries, dtype=np.bool_) if self._replace_one else coins
        who, _ = self._used(world, there, generator)
        held = np.full(places, categories - 1)  # a dummy holds the last one
        own = np.where(coins[who], who, who + self.canaries) if self._replace_one else who
        held[: who.size] = own
        lies = generator.random(places) < (categories - 1) / (b + categories - 1)
        steps = generator.integers(1, categories, places)
        reported = np.where(lies, (held + steps) % categories, held)
        counts = np.bincount(reported, minlength=categories).astype(np.float64)
        first = counts[: self.canaries]
        return first - counts[self.canaries : 2 * self.canaries] if self._replace_one else first


def _log_mean(exponents: FloatArray, deviation: float, world: World) -> FloatArray:
    ratios = np.exp(exponents - 0.5 / deviation**2)
    return np.asarray(np.log(1.0 - world.reach + world.reach * ratios.mean(axis=0)))


def _ways(canaries: int) -> list[tuple[int, int]]:
    """(how many of the least, how many of the most suspect) are guessed: few, fixed beforehand."""
    half, quarter, few = (max(1, canaries // part) for part in (2, 4, 32))
    ways = [(half, canaries - half), (few, few), (0, quarter)]
    return [(least, most) for least, most in ways if least + most <= canaries]
