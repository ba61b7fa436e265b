"""The specification of a run: its sealed campaign, its number, and what follows from both."""

from __future__ import annotations

from dataclasses import dataclass, field

from checkins.campaign import Campaign
from checkins.errors import InvalidValue
from checkins.protocol.rules import MOST_ENROLLED, Rules, rules_of, sampler_of
from checkins.protocol.schedule import RunSchedule
from checkins.protocol.wire import run_id
from checkins.randomizers import DeviceSampler
from checkins.tasks.model import Shapes, size


def population_of(campaign: Campaign) -> str:
    """Return the name of a campaign's population, which identifies its ledger.

    A campaign without a ``population_id`` has a population of its own, named after its seal.
    """
    if campaign.population_id is None:
        return f"seal {campaign.seal}"
    return f"population {campaign.population_id}"


@dataclass(frozen=True, slots=True, eq=False)
class RunSpec:
    """The specification of one run. Everything in it is public.

    ``affordable`` is the number of slots that the budget allows.
    """

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
        """The largest number of clients that may enrol, from the declared population if any."""
        population = self.campaign.design.population
        return MOST_ENROLLED if population is None else min(population.most, MOST_ENROLLED)
