"""The specification of a run: its sealed campaign, protocol rules and schedule."""

from __future__ import annotations

from dataclasses import dataclass, field

from checkins.campaign import Campaign
from checkins.errors import InvalidValue
from checkins.protocol.rules import MOST_ENROLLED, Rules, rules_of, sampler_of
from checkins.protocol.schedule import RunSchedule
from checkins.protocol.wire import run_id
from checkins.randomizers import DeviceSampler
from checkins.tasks.tensors import Shapes, size


def population_of(campaign: Campaign) -> str:
    """Return the key of a campaign's ledger: its population_id, or else its seal."""
    if campaign.population_id is None:
        return f"seal {campaign.seal}"
    return f"population {campaign.population_id}"


@dataclass(frozen=True, slots=True, eq=False)
class RunSpec:
    """One run of a campaign; everything here is public."""

    campaign: Campaign
    number: int
    shapes: Shapes
    affordable: int
    seal: str = field(init=False)
    rules: Rules = field(init=False)
    sampler: DeviceSampler = field(init=False)
    times: RunSchedule = field(init=False)

    def __post_init__(self) -> None:
        if self.campaign.schedule is None or self.campaign.task is None:
            raise InvalidValue("campaign", self.campaign.name, "needs a [task] and a [schedule]")
        dimension = size(self.shapes)
        rules = rules_of(self.campaign, dimension=dimension, affordable=self.affordable)
        object.__setattr__(self, "seal", self.campaign.seal)
        object.__setattr__(self, "rules", rules)
        object.__setattr__(self, "sampler", sampler_of(self.campaign, dimension=dimension))
        object.__setattr__(self, "times", RunSchedule.of(self.campaign, self.number))

    @property
    def id(self) -> str:
        return run_id(self.seal, self.number)

    @property
    def population(self) -> str:
        return population_of(self.campaign)

    @property
    def dimension(self) -> int:
        return self.rules.form.dimension

    @property
    def most_enrolled(self) -> int:
        """The largest number of clients that may enrol: that of the declared population."""
        population = self.campaign.design.population
        return MOST_ENROLLED if population is None else min(population.most, MOST_ENROLLED)
