"""The times of the slots of a run. Service and client both use this module.

Times are seconds since 1970 on the server's clock. A campaign may have several runs, which follow
each other without a gap.
"""

from __future__ import annotations

from dataclasses import dataclass

from checkins import validate
from checkins.campaign import Campaign, Schedule
from checkins.errors import InvalidValue

RELEASE_DELAY_S = 0.25
"""Largest number of seconds from the end of a slot until its model is public."""


@dataclass(frozen=True, slots=True)
class RunSchedule:
    """The times of the slots 1, 2, ..., ``slots`` of run ``run`` of a campaign.

    >>> from datetime import UTC, datetime
    >>> schedule = Schedule(datetime(1970, 1, 1, tzinfo=UTC), slot_s=10.0, choose_s=4.0)
    >>> first, second = (RunSchedule(schedule, slots=3, run=run) for run in (1, 2))
    >>> second.begins(1), first.first_open_slot(13.9), first.first_open_slot(14.0)
    (30.0, 2, 3)
    """

    schedule: Schedule
    slots: int
    run: int = 1

    def __post_init__(self) -> None:
        validate.count(slots=self.slots, run=self.run)

    @classmethod
    def of(cls, campaign: Campaign, run: int = 1) -> RunSchedule:
        """Return the schedule of a run. Raise InvalidValue if the campaign has no schedule."""
        if campaign.schedule is None:
            raise InvalidValue("campaign", campaign.name, "has no [schedule]")
        return cls(campaign.schedule, campaign.design.slots, run)

    @property
    def slot_s(self) -> float:
        """The length of a slot in seconds."""
        return self.schedule.slot_s

    @property
    def choose_s(self) -> float:
        """The seconds from the start of a slot until the server chooses among its check-ins."""
        return self.schedule.choose_s

    def begins(self, slot: int) -> float:
        """Return when a slot begins. From then on, the server accepts its check-ins."""
        earlier_slots = (self.run - 1) * self.slots + slot - 1
        return self.schedule.start.timestamp() + earlier_slots * self.slot_s

    def chooses(self, slot: int) -> float:
        """Return when the check-ins of a slot end, and the server chooses among them."""
        return self.begins(slot) + self.choose_s

    def ends(self, slot: int) -> float:
        """Return when a slot ends and its reports are no longer accepted."""
        return self.begins(slot + 1)

    def releases(self, slot: int) -> float:
        """Return when the model of a slot is public.

        The delay after the end of the slot is fixed, so that it does not reveal how long the
        server took to save the model.
        """
        return self.ends(slot) + min(RELEASE_DELAY_S, self.choose_s / 2)

    def first_open_slot(self, moment: float) -> int:
        """Return the first slot that accepts check-ins at the time ``moment`` or later.

        If all check-ins are over at that time, the result is larger than ``slots``.
        """
        slot = max(1, int((moment - self.begins(1)) // self.slot_s) + 1)
        return slot if moment < self.chooses(slot) else slot + 1
