"""Convert complete and incomplete runs of campaigns into designs for the accountant.

The noise that devices draw on a grid differs slightly from the noise of the design. The total
variation distance between the two is counted in delta.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

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

MOST_COMPOSED_RUNS = 1000
"""Largest number of runs in one composition, after division by their common divisor."""


@dataclass(frozen=True, slots=True)
class PartialRun:
    """``times`` runs of a campaign. In each of them, ``slots`` slots are over.

    ``contributors`` is the number of reports under averaged updates. If it is None, the smallest
    declared population is used. ``stopped`` is True if fewer than ``slots`` slots were released.
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
        """Return all runs of the campaign with all their slots."""
        return cls(campaign, campaign.design.slots, times=campaign.repeats)

    @property
    def design(self) -> Design | None:
        """The design of the slots that are over. None if nothing was released."""
        if self.slots <= self.campaign.warm_up or self.contributors == 0:
            return None
        design = self.campaign.design.after(self.slots)
        if self.contributors is None:
            return design
        return replace(design, population=Population(self.contributors, self.contributors))

    @property
    def variation(self) -> float:
        """The total variation distance between these runs on devices and their design.

        It is an upper bound for all reports of whole runs, dummies included, and for the largest
        possible model.

        Theorem:     docs/theory/total-variation.md; ``checkins.randomizers.grid.variation``.
        Rounding:    up.
        """
        campaign, design, step = self.campaign, self.campaign.design, self.campaign.randomizer.grid
        if step is None:
            return 0.0
        reports_per_sum, sums = 1, design.slots
        if design.protocol is Protocol.AVERAGED:
            declared = design.population.most if design.population else 1
            sums = max(declared, self.contributors or 0)
        elif campaign.noise_at is not NoiseAt.SERVER:
            reports_per_sum = design.capacity or 1
        of_one_sum = grid.variation(
            campaign.mechanism(grid.MOST_DIMENSION),
            grid.Grid(step),
            reports=reports_per_sum,
            capacity=reports_per_sum,
            dimension=grid.MOST_DIMENSION,
        )
        return min(1.0, grid.float_rounded_up(Fraction(of_one_sum) * sums * self.times))


@dataclass(frozen=True, slots=True)
class ComposedRuns:
    """The input of the accountant: a list of designs that is repeated ``campaigns`` times."""

    designs: tuple[Design, ...]
    campaigns: int
    budget: Budget
    variation: float

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the accountant other than ``designs``."""
        return {
            "delta": self.budget.delta,
            "adjacency": self.budget.adjacency,
            "campaigns": self.campaigns,
            "variation": self.variation,
        }

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
        if length > MOST_COMPOSED_RUNS:
            raise TooManyRuns(
                "campaigns",
                max(times.values()),
                f"makes a list of {length:,} campaigns together with the other numbers of"
                f" repeats. The list may have {MOST_COMPOSED_RUNS:,}. Numbers with a common divisor"
                " shorten it",
            )
        designs = tuple(design for design, count in times.items() for _ in range(count // rounds))
        variation = sum_variations(run.variation for run in runs if run.design is not None)
        return cls(designs or (_empty_design(runs[0].campaign),), rounds, budget, variation)


def shared_budget(runs: Sequence[PartialRun]) -> Budget:
    """Return the budget of the last run.

    Raise InvalidValue if the budgets of the runs have different deltas or adjacencies.
    """
    if not runs:
        raise InvalidValue("campaigns", 0, "must be at least one")
    first = runs[0].campaign.budget
    for run in runs[1:]:
        for name in ("delta", "adjacency"):
            ours, theirs = (getattr(one, name) for one in (first, run.campaign.budget))
            if ours != theirs:
                raise InvalidValue(name, theirs, f"must be {ours}, as in the first campaign")
    return runs[-1].campaign.budget


def sum_variations(variations: Iterable[float]) -> float:
    """Return the sum of total variations, rounded up."""
    found = [variation for variation in variations if variation > 0.0]
    total = math.fsum(found)
    return total if len(found) < 2 else min(1.0, math.nextafter(total, 1.0))


def _empty_design(campaign: Campaign) -> Design:
    """Return a design without privacy loss, for a campaign before its first release."""
    randomizer = campaign.design.randomizer
    local = randomizer if isinstance(randomizer, LocalRandomizer) else None
    return Design(
        Protocol.FIXED,
        slots=1,
        participation=0.0,
        randomizer=local or GaussianNoise(1.0, NoiseAt.SERVER),
    )
