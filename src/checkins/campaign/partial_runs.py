"""Runs of campaigns, complete or not, as designs for the accountant.

Noise that devices draw on a grid differs from the noise of the design: the total variation between
them is charged to delta.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from checkins import validate
from checkins.accounting import (
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Population,
    Protocol,
)
from checkins.campaign.model import Budget, Campaign
from checkins.errors import InvalidValue, TooManyRuns
from checkins.randomizers import grid

MOST_IN_A_LIST = 1000
"""Largest number of runs in one composition, after dividing by a common number of repeats."""


@dataclass(frozen=True, slots=True)
class PartialRun:
    """A run of a campaign of which ``slots`` are over; ``times`` such runs.

    ``contributors`` is the number of reports of averaged updates; None: the smallest declared
    population. ``stopped``: fewer slots were released than are charged.
    """

    campaign: Campaign
    slots: int
    contributors: int | None = None
    times: int = 1
    stopped: bool = False

    def __post_init__(self) -> None:
        validate.count(most=validate.MOST_CAMPAIGNS, times=self.times)
        if self.slots != 0:
            validate.count(most=self.campaign.design.slots, slots=self.slots)
        if self.contributors is not None:
            if self.campaign.design.protocol is not Protocol.AVERAGED:
                raise InvalidValue(
                    "contributors", self.contributors, "goes with averaged updates only"
                )
            if self.contributors != 0:
                validate.count(contributors=self.contributors)

    @classmethod
    def whole(cls, campaign: Campaign) -> PartialRun:
        """Return every run of the campaign to its end."""
        return cls(campaign, campaign.design.slots, times=campaign.repeats)

    @property
    def design(self) -> Design | None:
        """The design of the slots that are over; None if nothing was released."""
        warm_up = 0 if self.campaign.design.window is None else self.campaign.design.window - 1
        if self.slots <= warm_up or self.contributors == 0:
            return None
        design = self.campaign.design.after(self.slots)
        if self.contributors is None:
            return design
        return replace(design, population=Population(self.contributors, self.contributors))

    @property
    def variation(self) -> float:
        """The total variation between these runs on devices and their design.

        Every report of a whole run is charged, dummies included, and the largest model.

        Theorem:     docs/theory/total-variation.md; ``checkins.randomizers.grid.variation``.
        Rounding:    up.
        """
        campaign, design, step = self.campaign, self.campaign.design, self.campaign.randomizer.grid
        if step is None:
            return 0.0
        together = 1  # reports that make one sum
        vectors = design.slots * self.times
        if design.protocol is Protocol.AVERAGED:
            declared = design.population.most if design.population else 1
            vectors = max(declared, self.contributors or 0) * self.times
        elif campaign.noise_at is not NoiseAt.SERVER:
            together = design.capacity or 1
        one = grid.variation(
            campaign.mechanism(grid.MOST_DIMENSION),
            grid.Grid(step),
            reports=together,
            capacity=together,
            dimension=grid.MOST_DIMENSION,
        )
        exact = Fraction(one) * vectors
        total = float(exact)
        return min(1.0, total if Fraction(total) >= exact else math.nextafter(total, math.inf))


@dataclass(frozen=True, slots=True)
class ComposedRuns:
    """Runs as the accountant composes them: a list of designs, repeated ``campaigns`` times."""

    designs: tuple[Design, ...]
    campaigns: int
    budget: Budget
    variation: float

    @classmethod
    def of(cls, runs: Sequence[PartialRun]) -> ComposedRuns:
        budget = shared_budget(runs)
        times: dict[Design, int] = {}
        for run in runs:
            if run.design is not None:
                times[run.design] = times.get(run.design, 0) + run.times
        rounds = math.gcd(*times.values()) or 1
        length = sum(times.values()) // rounds
        if rounds > validate.MOST_CAMPAIGNS:
            expected = f"must be an integer from 1 to {validate.MOST_CAMPAIGNS:,}"
            raise TooManyRuns("campaigns", rounds, expected)
        if length > MOST_IN_A_LIST:
            raise TooManyRuns(
                "campaigns",
                max(times.values()),
                f"makes a list of {length:,} campaigns with the others;"
                f" must make at most {MOST_IN_A_LIST:,}, or share a divisor with them",
            )
        designs = tuple(design for design, count in times.items() for _ in range(count // rounds))
        variation = added(run.variation for run in runs if run.design is not None)
        return cls(designs or (_nothing(runs[0].campaign),), rounds, budget, variation)


def shared_budget(runs: Sequence[PartialRun]) -> Budget:
    """The budget of the last run; refuse runs that disagree on delta or adjacency."""
    if not runs:
        raise InvalidValue("campaigns", 0, "must be at least one")
    first = runs[0].campaign.budget
    for run in runs[1:]:
        for name in ("delta", "adjacency"):
            ours, theirs = (getattr(one, name) for one in (first, run.campaign.budget))
            if ours != theirs:
                raise InvalidValue(name, theirs, f"must be {ours} as in the first of the list")
    return runs[-1].campaign.budget


def added(variations: Iterable[float]) -> float:
    """Return the sum of total variations, rounded up."""
    found = [variation for variation in variations if variation > 0.0]
    total = math.fsum(found)
    return total if len(found) < 2 else min(1.0, math.nextafter(total, 1.0))


def _nothing(campaign: Campaign) -> Design:
    """Return the design of a campaign before its first release: a participation of 0."""
    randomizer = campaign.design.randomizer
    local = randomizer if isinstance(randomizer, LocalRandomizer) else None
    return Design(
        Protocol.FIXED,
        slots=1,
        participation=0.0,
        randomizer=local or GaussianNoise(1.0, NoiseAt.SERVER),
    )
