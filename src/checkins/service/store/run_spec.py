"""The specification of a run: its sealed campaign, protocol rules and schedule."""

from __future__ import annotations

from dataclasses import dataclass, field

from checkins.campaign import Campaign, Schedule
from checkins.errors import InvalidValue, OutOfOrder
from checkins.protocol.factories import rules_of, sampler_of
from checkins.protocol.rules import MOST_ENROLLED, Rules
from checkins.randomizers import DeviceSampler
from checkins.tasks.tensors import Shapes, size

ID_DIGITS = 12
"""Number of digits of the seal in the id of a run."""
RELEASE_DELAY_S = 0.25
"""Most seconds between the end of a slot and the time at which its release is public."""


def run_id(seal: str, number: int) -> str:
    """Return the id of a run, which its URLs contain.

    >>> run_id("sha256:" + "ab" * 32, 2)
    'abababababab-2'
    """
    return f"{seal.removeprefix('sha256:')[:ID_DIGITS]}-{number}"


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

    def __post_init__(self) -> None:
        if self.campaign.schedule is None or self.campaign.task is None:
            raise InvalidValue("campaign", self.campaign.name, "needs a [task] and a [schedule]")
        dimension = size(self.shapes)
        rules = rules_of(self.campaign, dimension=dimension, affordable=self.affordable)
        object.__setattr__(self, "seal", self.campaign.seal)
        object.__setattr__(self, "rules", rules)
        object.__setattr__(self, "sampler", sampler_of(self.campaign, dimension=dimension))

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

    @property
    def slot_s(self) -> float:
        return self._schedule.slot_s

    @property
    def choose_s(self) -> float:
        return self._schedule.choose_s

    def begins(self, slot: int) -> float:
        """Return when a slot begins, in seconds since 1970; repeats follow each other."""
        before = (self.number - 1) * self.rules.slots + slot - 1
        return self._schedule.start.timestamp() + before * self.slot_s

    def chooses(self, slot: int) -> float:
        """Return when the check-ins of a slot end."""
        return self.begins(slot) + self.choose_s

    def ends(self, slot: int) -> float:
        """Return when the reports of a slot end."""
        return self.begins(slot + 1)

    def public_at(self, slot: int) -> float:
        """Return when the release of a slot is public: a fixed time after its end."""
        return self.ends(slot) + min(RELEASE_DELAY_S, self.choose_s / 2)

    @property
    def _schedule(self) -> Schedule:
        schedule = self.campaign.schedule
        if schedule is None:
            raise OutOfOrder("a run has a schedule")
        return schedule
