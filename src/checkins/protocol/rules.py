"""The public parameters of a run: its clients' windows and sampler, its server's rules, its times.

The three protocols (fixed, sliding, averaged) differ only in these parameters. A dummy report
A_ldp(0) is the randomized report of a zero update. The server draws one dummy report in place of
each missing report. "The paper" is arXiv:2007.06605.

Service and client both compute the times of slots with ``RunSchedule``. Times are seconds since
1970 on the server's clock. A campaign may have several runs, which follow each other without a gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from checkins import validate
from checkins.accounting import Design, GaussianNoise, NoiseAt, NoiseStrategy, Protocol
from checkins.campaign import Campaign, Schedule
from checkins.campaign.model import MAX_REPORTS_PER_RUN
from checkins.errors import InvalidValue
from checkins.protocol.model_update import ModelUpdate
from checkins.protocol.report import ReportChecks
from checkins.randomizers import DeviceSampler, Grid


@dataclass(frozen=True, slots=True)
class FixedWindow:
    """The slots R_j of a client, which do not depend on when the client wakes.

    The client draws one of these slots, and does not take part if the drawn slot has passed.
    """

    slots: Sequence[int]

    def __post_init__(self) -> None:
        if not isinstance(self.slots, range):
            object.__setattr__(self, "slots", tuple(self.slots))
        if len(self.slots) == 0:
            raise InvalidValue("window", self.slots, "must contain at least one slot")
        listed = self.slots if isinstance(self.slots, tuple) else ()
        first_or_last = (self.slots[0], self.slots[-1])  # a range may have 10^12 slots
        validate.count(slots=min(listed or first_or_last))
        if any(slot >= following for slot, following in pairwise(listed)):
            raise InvalidValue("window", self.slots, "must be in increasing order, each slot once")

    @classmethod
    def whole(cls, slots: int) -> FixedWindow:
        """Return the window of all slots, R_j = [m] in the paper."""
        return cls(range(1, slots + 1))

    def __len__(self) -> int:
        return len(self.slots)

    def slot(self, pick: int, *, first_open_slot: int) -> int:
        """Return the slot at position ``pick``."""
        return self.slots[pick]


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """R_j = {j, ..., j + length − 1} for a client that wakes at slot j (paper, section 4.2)."""

    length: int

    def __post_init__(self) -> None:
        validate.count(window=self.length)

    def __len__(self) -> int:
        return self.length

    def slot(self, pick: int, *, first_open_slot: int) -> int:
        """Return the slot at position ``pick`` of the window that begins at ``first_open_slot``."""
        return first_open_slot + pick


Window = FixedWindow | SlidingWindow


MAX_ENROLLED = MAX_REPORTS_PER_RUN
"""Largest number of clients of a run. The sum of this many 32-bit reports fits 64 bits."""


class Filling(Enum):
    """How a slot's sum is completed so that it does not reveal the number of reports."""

    DUMMIES = "dummies A_ldp(0), so that dummies and reports together reach the capacity"
    NOISE = "noise that the server adds once to the sum"
    NOTHING = "nothing, because averaged updates divide by a public count"


@dataclass(frozen=True, slots=True)
class Rules:
    """The public parameters on which the server's decisions depend.

    ``capacity`` is the largest number of check-ins that a slot uses; None means all. The first
    ``warm_up`` slots accept check-ins but use none. ``affordable`` is the number of slots that the
    budget allows (invariant 10 of docs/invariants.md). An averaged slot with fewer than
    ``least_reports`` reports is skipped, as an empty slot is. How the server correlates its noise
    across slots is a parameter of ``update``, because everyone needs it to compute the model.
    """

    slots: int
    capacity: int | None
    filling: Filling
    warm_up: int
    affordable: int
    report_checks: ReportChecks
    update: ModelUpdate
    least_reports: int = 1

    def __post_init__(self) -> None:
        validate.count(slots=self.slots, least_reports=self.least_reports)
        if self.capacity is None and self.filling is Filling.DUMMIES:
            expected = "must be at least 1: dummies fill each slot up to its capacity"
            raise InvalidValue("capacity", None, expected)
        if self.capacity is not None:
            validate.count(capacity=self.capacity)
        for name in ("warm_up", "affordable"):
            if not 0 <= getattr(self, name) <= self.slots:
                raise InvalidValue(name, getattr(self, name), f"must lie in [0, {self.slots}]")
        if self.is_averaged and self.update.minibatch != 1:
            raise InvalidValue("minibatch", self.update.minibatch, "must be 1 for averaged updates")
        if self.strategy is not None and self.filling is not Filling.NOISE:
            expected = "needs noise that the server adds to the sum of every slot"
            raise InvalidValue("strategy", str(self.filling), expected)
        most_units = self.report_checks.most_units
        if most_units is not None and most_units * self._most_summed_vectors >= 2**63:
            raise InvalidValue(
                "grid", most_units, "sums of reports must fit 64 bits: use a coarser grid"
            )

    @property
    def _most_summed_vectors(self) -> int:
        """The largest number of vectors (reports, dummies, server noise) added for one step."""
        noise_vectors = self.update.minibatch if self.filling is Filling.NOISE else 0
        if self.capacity is None:
            return noise_vectors + (1 if self.report_checks.simulated else MAX_ENROLLED)
        return noise_vectors + self.capacity * self.update.minibatch

    @classmethod
    def of(
        cls, design: Design, *, affordable: int, report_checks: ReportChecks, update: ModelUpdate
    ) -> Rules:
        """Return the rules of a design. With a local randomizer, the default capacity is 1."""
        randomizer, averaged = design.randomizer, design.protocol is Protocol.AVERAGED
        at_server = isinstance(randomizer, GaussianNoise) and randomizer.at is NoiseAt.SERVER
        filling = Filling.NOISE if at_server else Filling.DUMMIES
        uses_all_check_ins = averaged or at_server
        return cls(
            slots=design.slots,
            capacity=design.capacity or (None if uses_all_check_ins else 1),
            filling=Filling.NOTHING if averaged else filling,
            warm_up=0 if design.window is None else design.window - 1,
            affordable=affordable,
            report_checks=report_checks,
            update=update,
            least_reports=design.least_reports or 1,
        )

    @property
    def is_averaged(self) -> bool:
        """True for averaged updates, which use every report and divide by their number."""
        return self.filling is Filling.NOTHING

    @property
    def strategy(self) -> NoiseStrategy | None:
        """How noise is correlated across slots. None if the noise of slots is independent."""
        return self.update.strategy

    def needed_sums(self, slot: int) -> int:
        """Return how many sums of earlier slots the total of ``slot`` contains.

        0 if the noise of slots is independent, or if the run ends before ``slot``.
        """
        if self.strategy is None or slot > self.affordable:
            return 0
        return min(self.strategy.bands - 1, max(0, slot - 1 - self.warm_up))

    def releases_model(self, slot: int) -> bool:
        """Return True if this slot releases a model. Slots of the warm-up do not."""
        return slot > self.warm_up


def window_of(design: Design) -> Window:
    """Return the window from which every client of a campaign draws its slot."""
    if design.window is not None:
        return SlidingWindow(design.window)
    return FixedWindow.whole(design.slots)


def sampler_of(campaign: Campaign, *, dimension: int) -> DeviceSampler:
    """Return the sampler of reports, dummies and server noise of a real campaign."""
    step = campaign.randomizer.grid
    if campaign.randomizer.categories is not None:
        step = 1.0  # a category is an integer, so the grid step is 1
    if step is None:
        raise InvalidValue("grid", None, "is missing: real reports are integers on a grid")
    finer = None if campaign.strategy is None else campaign.release_grid
    noise_grid = None if finer is None else Grid(finer)
    return DeviceSampler(campaign.mechanism(dimension), Grid(step), dimension, noise_grid)


def rules_of(
    campaign: Campaign, *, dimension: int, affordable: int, update: ModelUpdate | None = None
) -> Rules:
    """Return the rules of a real campaign whose budget allows ``affordable`` slots.

    If ``update`` is None, it is the update that the campaign declares.
    """
    validate.count(dimension=dimension)
    sampler = sampler_of(campaign, dimension=dimension)
    report_checks = ReportChecks(
        dimension,
        most_units=sampler.most_units,
        simulated=False,
        step=sampler.grid.step,
        norm=sampler.bound(noise_at_server=campaign.noise_at is NoiseAt.SERVER),
    )
    return Rules.of(
        campaign.design,
        affordable=affordable,
        report_checks=report_checks,
        update=ModelUpdate.of(campaign) if update is None else update,
    )


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
