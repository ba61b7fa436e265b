"""A design without its noise: everything that is searched before a budget is spent on it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from checkins.accounting import (
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Population,
    Protocol,
)
from checkins.campaign import RandomizerKind
from checkins.randomizers import Laplace, PrivUnit


@dataclass(frozen=True, slots=True)
class DesignCandidate:
    """One point of the search; ``capacity`` None means every check-in is used.

    ``population`` is declared only where a certificate uses it. ``level`` of a shape is the noise
    multiplier of Gaussian noise, or the local epsilon of a pure randomizer.
    """

    protocol: Protocol
    slots: int
    participation: float
    capacity: int | None
    window: int | None
    minibatch: int
    repeats: int
    randomizer: RandomizerKind
    noise_at: NoiseAt
    population: Population | None = None

    @property
    def is_gaussian(self) -> bool:
        return self.randomizer is RandomizerKind.GAUSSIAN

    @property
    def choices(self) -> int:
        """Among how many slots one client draws."""
        return self.slots if self.window is None else self.window

    @property
    def steps(self) -> int:
        """Model steps of all runs: a sliding window releases nothing while it warms up."""
        active = self.slots if self.window is None else self.slots - self.window + 1
        return max(1, active // self.minibatch) * self.repeats

    @property
    def priced_as(self) -> DesignCandidate:
        """The simplest shape that spends the same at every level: what is found for one holds."""
        averaged = self.protocol is Protocol.AVERAGED
        if self.is_gaussian:
            slots = 1 if averaged else self.choices
            protocol = self.protocol if averaged else Protocol.FIXED
            return replace(self, protocol=protocol, slots=slots, window=None, minibatch=1)
        pure = replace(self, randomizer=RandomizerKind.LAPLACE, capacity=None, minibatch=1)
        if averaged:
            return replace(pure, slots=1)
        return replace(
            pure, protocol=Protocol.FIXED, slots=self.choices, window=None, population=None
        )

    def design(self, level: float) -> Design:
        """What the accountant prices, at this much noise or local epsilon."""
        if self.is_gaussian:
            promise: LocalRandomizer | GaussianNoise = GaussianNoise(level, self.noise_at)
        else:
            promise = LocalRandomizer(level)
        return Design(
            self.protocol,
            slots=self.slots,
            participation=self.participation,
            randomizer=promise,
            capacity=self.capacity,
            window=self.window,
            population=self.population,
        )

    def report_variance(self, level: float, *, dimension: int) -> float:
        """Squared error of one report per coordinate, in clips of the L2 norm.

        Laplace noise protects the L1 norm, which is up to √dimension times the L2 norm: its clip is
        taken as much wider, so that it cuts as little. Gaussian noise at the server: that of a sum.
        """
        if self.is_gaussian:
            return level * level
        if self.randomizer is RandomizerKind.LAPLACE:
            wide = Laplace(math.sqrt(dimension), level)
            return wide.variance(dimension=dimension) / dimension
        unit = PrivUnit(1.0, max(level, 1e-6), dimension)
        return unit.variance(dimension=dimension) / dimension

    def slot_variance(self, level: float, *, dimension: int, reports: float) -> float:
        """Variance of one coordinate of a slot's sum, its dummies included, in clips."""
        one = self.report_variance(level, dimension=dimension)
        if self.noise_at is NoiseAt.SERVER:
            return one
        return one * (reports if self.capacity is None else self.capacity)
