"""Convert complete and incomplete runs of campaigns into designs for the accountant.

Devices draw noise on a grid, which differs slightly from the continuous noise of the design. The
total variation distance between the two distributions is charged to delta.
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

MAX_COMPOSED_RUNS = 1000
"""Largest number of runs in the list that the accountant composes.

If the numbers of runs have a common divisor d, the list is d times shorter and repeated d times.
"""


@dataclass(frozen=True, slots=True)
class PartialRun:
    """``times`` runs of a campaign. In each of them, ``slots`` slots are over.

    ``contributors`` is the number of reports under averaged updates. If it is None, the smallest
    declared population is used. ``stopped`` is True if the run was stopped before all these slots
    were released. Epsilon is computed for all of them nevertheless.
    """

    campaign: Campaign
    slots: int
    contributors: int | None = None
    times: int = 1
    stopped: bool = False

    def __post_init__(self) -> None:
        validate.count(most=validate.MAX_CAMPAIGNS, times=self.times)
        if self.slots != 0:
            validate.count(most=self.campaign.design.slots, slots=self.slots)
        if self.contributors is not None:
            if self.campaign.design.protocol is not Protocol.AVERAGED:
                raise InvalidValue("contributors", self.contributors, "requires averaged updates")
            if self.contributors != 0:
                validate.count(contributors=self.contributors)

    @classmethod
    def whole(cls, campaign: Campaign) -> PartialRun:
        """Return all ``repeats`` runs of the campaign, each with all its slots."""
        return cls(campaign, campaign.design.slots, times=campaign.repeats)

    @property
    def design(self) -> Design | None:
        """The design of the slots that are over. None if they released nothing.

        They released nothing if there are none, or if all are warm-up slots of a sliding window.
        Under averaged updates, they also released nothing if there were no reports, or fewer than
        ``least_reports`` in all of them together.
        """
        if self.slots <= self.campaign.warm_up:
            return None
        design = self.campaign.design.after(self.slots)
        if self.contributors is None:
            return design
        if self.contributors < (design.least_reports or 1):
            return None
        return replace(design, population=Population(self.contributors, self.contributors))

    @property
    def variation(self) -> float:
        """The total variation distance between the noise of devices and the noise of the design.

        It is an upper bound for all reports of complete runs, including dummy reports, and for
        models of every size.

        Theorem:     docs/theory/total-variation.md; ``checkins.randomizers.grid.variation``.
        Rounding:    up.
        """
        campaign, design, step = self.campaign, self.campaign.design, self.campaign.release_grid
        if step is None:
            return 0.0
        reports_per_sum, sums = 1, design.slots
        if design.protocol is Protocol.AVERAGED:
            population = design.population.most if design.population else 1
            # Reports of a released slot beyond the first least_reports need not hide the client.
            reports_per_sum = design.least_reports or 1
            sums = -(-max(population, self.contributors or 0) // reports_per_sum)
        elif campaign.noise_at is not NoiseAt.SERVER:
            reports_per_sum = design.reports_per_slot
        variation_of_one_sum = grid.variation(
            campaign.mechanism(grid.MAX_DIMENSION),
            grid.Grid(step),
            reports=reports_per_sum,
            capacity=reports_per_sum,
            dimension=grid.MAX_DIMENSION,
        )
        return min(1.0, grid.float_rounded_up(Fraction(variation_of_one_sum) * sums * self.times))


@dataclass(frozen=True, slots=True)
class ComposedRuns:
    """The input of the accountant: a list of designs that is repeated ``repeats`` times."""

    designs: tuple[Design, ...]
    repeats: int
    budget: Budget
    variation: float

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the accountant other than ``designs``."""
        return {
            "delta": self.budget.delta,
            "adjacency": self.budget.adjacency,
            "campaigns": self.repeats,
            "variation": self.variation,
        }

    @classmethod
    def of(cls, runs: Sequence[PartialRun]) -> ComposedRuns:
        budget = shared_budget(runs)
        releasing_runs = [(run, design) for run in runs if (design := run.design) is not None]
        run_counts: dict[Design, int] = {}
        for run, design in releasing_runs:
            run_counts[design] = run_counts.get(design, 0) + run.times
        repeats = math.gcd(*run_counts.values()) or 1
        list_length = sum(run_counts.values()) // repeats
        if repeats > validate.MAX_CAMPAIGNS:
            expected = f"must be an integer from 1 to {validate.MAX_CAMPAIGNS:,}"
            raise TooManyRuns("campaigns", repeats, expected)
        if list_length > MAX_COMPOSED_RUNS:
            raise TooManyRuns(
                "campaigns",
                max(run_counts.values()),
                f"makes a list of {list_length:,} campaigns together with the other numbers of"
                f" repeats, but at most {MAX_COMPOSED_RUNS:,} can be composed. The list is shorter"
                " if the numbers of repeats have a common divisor",
            )
        designs = tuple(
            design for design, count in run_counts.items() for _ in range(count // repeats)
        )
        variation = sum_variations(run.variation for run, _ in releasing_runs)
        return cls(designs or (_empty_design(runs[0].campaign),), repeats, budget, variation)


def shared_budget(runs: Sequence[PartialRun]) -> Budget:
    """Return the budget of the last run.

    Raise InvalidValue if the budgets of the runs have different deltas or adjacencies.
    """
    if not runs:
        raise InvalidValue("campaigns", 0, "must be at least one")
    first = runs[0].campaign.budget
    for run in runs[1:]:
        for name in ("delta", "adjacency"):
            expected, actual = getattr(first, name), getattr(run.campaign.budget, name)
            if actual != expected:
                raise InvalidValue(name, actual, f"must be {expected}, as in the first campaign")
    return runs[-1].campaign.budget


def sum_variations(variations: Iterable[float]) -> float:
    """Return the sum of total variation distances, rounded up and at most 1."""
    positive = [variation for variation in variations if variation > 0.0]
    total = math.fsum(positive)
    return total if len(positive) < 2 else min(1.0, math.nextafter(total, 1.0))


def _empty_design(campaign: Campaign) -> Design:
    """Return a design without privacy loss, for a campaign before its first release."""
    randomizer = campaign.design.randomizer
    local_randomizer = randomizer if isinstance(randomizer, LocalRandomizer) else None
    return Design(
        Protocol.FIXED,
        slots=1,
        participation=0.0,
        randomizer=local_randomizer or GaussianNoise(1.0, NoiseAt.SERVER),
    )
