"""Load shedding: refuse check-ins that the coordinator could not serve until the end of their slot.

A check-in uses up the participation of its client, so the coordinator must not accept more of them
than it can serve in the rest of the slot: it tells each client its outcome, and saves its report.
How many these are is measured. ``SavingTimes`` learns how long many messages take together, and
``SlotLoad`` how long devices take from the choice to their reports. A check-in beyond that gets the
problem ``busy`` before anything about it is saved, so its token stays unspent.

A process measures and counts only what it serves itself. The measurements include the load that
other processes put on the database and on the machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from checkins.protocol.rules import Rules, RunSchedule

MEMORY = 0.95
"""The factor by which the weight of each measurement decreases with the next one."""
FALL = 0.25
"""The part of ``SlotLoad.device_s`` that a slot removes if its own measurement is lower."""
SAVING = 0.1
"""The part of the time for reports that ``SlotLoad.device_s`` always leaves for saving them."""
LAST_MOMENT = 0.1
"""The last part of the time for reports, in which a report may arrive too late to be saved."""


@dataclass(slots=True)
class SavingTimes:
    """The time in which messages that come together are saved: a line in their number.

    The line ``fixed_s`` + count × ``message_s`` is fitted to measured times by least squares with
    exponentially decreasing weights. Each measurement is a period in which a group commit always
    had messages. It includes the time to receive messages and to send responses meanwhile. Two
    standard errors are taken off ``message_s``, because short periods say little about long ones.
    Both are 0 before the first measurement.

    >>> times = SavingTimes()
    >>> for count in (1, 10, 100):
    ...     times.record(count, 0.010 + 0.001 * count)
    >>> round(times.fixed_s, 6), round(times.message_s, 6), round(times.seconds_for(200), 6)
    (0.01, 0.001, 0.21)
    """

    _weight: float = 0.0
    _count: float = 0.0  # weighted means of count and duration, with their variances
    _duration: float = 0.0
    _count_variance: float = 0.0
    _duration_variance: float = 0.0
    _covariance: float = 0.0
    _last_count: int = 0  # the latest period
    _last_s: float = 0.0

    def record(self, count: int, seconds: float) -> None:
        """Add a period: the number of its messages, and its duration."""
        self._last_count, self._last_s = count, seconds
        self._weight = MEMORY * self._weight + 1.0
        share = 1.0 / self._weight
        count_step, duration_step = count - self._count, seconds - self._duration
        self._count += share * count_step
        self._duration += share * duration_step
        kept = 1.0 - share
        self._count_variance = kept * (self._count_variance + share * count_step**2)
        self._duration_variance = kept * (self._duration_variance + share * duration_step**2)
        self._covariance = kept * (self._covariance + share * count_step * duration_step)

    @property
    def message_s(self) -> float:
        """Seconds that each further message takes, at least."""
        if self._count_variance <= 0.0:
            return 0.0
        slope = self._covariance / self._count_variance
        residual = max(0.0, self._duration_variance - slope * self._covariance)
        error = math.sqrt(residual / (self._weight * self._count_variance))
        return max(0.0, slope - 2.0 * error)

    @property
    def fixed_s(self) -> float:
        """Seconds that any number of messages takes."""
        return max(0.0, self._duration - self.message_s * self._count)

    def seconds_for(self, count: int) -> float:
        """Return the seconds in which ``count`` messages that come together are saved.

        The line may have the slope of one old period in which the store stood still, as long as all
        later periods are equally short. So the latest period bounds the time of up to twice as many
        messages.
        """
        fitted_s = self.fixed_s + count * self.message_s
        if self._last_count == 0 or count > 2 * self._last_count:
            return fitted_s
        return min(fitted_s, self._last_s * max(1.0, count / self._last_count))


@dataclass(slots=True)
class SlotLoad:
    """How many check-ins of a slot can be served in time, as far as was measured.

    All times are seconds since 1970 on the clock of the store. ``device_s`` is the time from the
    scheduled choice until a device reports, beyond the time in which the coordinator saves
    reports. The first check-in of a slot is always accepted, and an enrolment if no other waits,
    so that an old measurement is replaced.

    Clients decide when they report, so ``device_s`` has a limit: otherwise one slow client that is
    the first in each slot could keep out all others. A report counts once, unless it is refused.
    """

    rules: Rules
    run_schedule: RunSchedule
    enrolments: SavingTimes = field(default_factory=SavingTimes)
    check_ins: SavingTimes = field(default_factory=SavingTimes)
    reports: SavingTimes = field(default_factory=SavingTimes)
    device_s: float = 0.0
    _slot: int = 0  # the slot whose reports are counted
    _expected: int = 0  # number of clients of this process that were chosen in the slot
    _arrived: set[str] = field(default_factory=set)  # receipts whose reports came in time
    _saved: set[str] = field(default_factory=set)  # receipts whose reports are durable
    _measured_s: float = 0.0  # measurement of ``device_s`` in the slot in progress
    _last_saved_s: float = 0.0  # time from the choice until the last report was durable
    _has_refused: bool = False  # whether a check-in was refused since the last slot was closed
    _proven: int = 1  # number of check-ins that are accepted whatever was measured

    def accepts_enrolment(self, *, waiting: int) -> bool:
        """Return whether one more enrolment may wait, beside ``waiting`` others.

        Enrolments share the database with check-ins and reports. Those that wait must not take
        longer than a slot gives to its check-ins, or to its reports.
        """
        schedule = self.run_schedule
        shortest_s = min(schedule.choose_s, schedule.slot_s - schedule.choose_s)
        return waiting == 0 or self.enrolments.seconds_for(waiting + 1) <= shortest_s

    def accepts_check_in(self, slot: int, *, accepted: int, waiting: int, now: float) -> bool:
        """Return whether one more check-in can be served in time.

        ``accepted`` check-ins of the slot are durable, and ``waiting`` ones are not yet. The new
        check-in must be durable before the choice, and all reports before the end of the slot.
        """
        if accepted + waiting < self._proven:
            return True
        chooses_at = self.run_schedule.chooses(slot)
        is_late = now < chooses_at < now + self.check_ins.seconds_for(waiting + 1)
        if not is_late:
            reports = self._reports_after(slot, accepted + waiting + 1)
            if reports == 0:
                return True
            remaining_s = self.run_schedule.ends(slot) - max(now, chooses_at)
            if self.device_s + self._service_s(reports) <= remaining_s:
                return True
        self._has_refused = True
        return False

    def choice_was_read(self, slot: int, *, expected: int) -> None:
        """Begin to count the reports of a slot, of which this process expects ``expected``."""
        self._slot, self._expected, self._last_saved_s = slot, expected, 0.0
        self._arrived, self._saved = set(), set()

    def report_arrived(self, slot: int, receipt: str, *, now: float) -> None:
        """Count a report that is about to be saved, unless it arrives at the last moment."""
        last_moment = self.run_schedule.ends(slot) - LAST_MOMENT * self._reports_s
        if slot == self._slot and now < last_moment:
            self._arrived.add(receipt)

    def report_was_refused(self, slot: int, receipt: str, *, now: float) -> None:
        """Do not count a report that was refused, unless its slot ended while it waited."""
        if now < self.run_schedule.ends(slot):
            self._arrived.discard(receipt)

    def report_was_saved(self, slot: int, receipt: str, *, now: float) -> None:
        """Count a report that is durable, and measure ``device_s`` at the median report of a slot.

        The median does not depend on the slowest devices.
        """
        if slot != self._slot or receipt in self._saved:
            return
        self._saved.add(receipt)
        saved, self._last_saved_s = len(self._saved), now - self.run_schedule.chooses(slot)
        if saved == (self._expected + 1) // 2:
            self._measured_s = self._last_saved_s - self._service_s(saved)

    def slot_was_closed(self, slot: int) -> None:
        """Use the measurement of a slot. A rise counts at once, and a fall slowly.

        If reports were left that had arrived in time, there was time for no more than were saved.
        If check-ins were refused, and half of the time for reports was enough for those that were
        accepted, the next slot accepts twice as many: one period in which the store stood still
        may be measured as if each message took long, and few messages do not show the opposite.
        """
        is_served = slot == self._slot and self._arrived <= self._saved
        has_time_left = is_served and self._last_saved_s <= 0.5 * self._reports_s
        self._proven = max(1, 2 * len(self._saved) if self._has_refused and has_time_left else 1)
        self._has_refused = False
        if slot == self._slot and not is_served:
            saved_s = self._service_s(len(self._saved))
            self._measured_s = max(self._measured_s, self._reports_s - saved_s)
        device_s = max(self._measured_s, (1.0 - FALL) * self.device_s)
        self.device_s = min(device_s, (1.0 - SAVING) * self._reports_s)
        self._measured_s = 0.0
        self._arrived, self._saved = set(), set()

    @property
    def _reports_s(self) -> float:
        """The seconds that a slot gives to reports."""
        return self.run_schedule.slot_s - self.run_schedule.choose_s

    def _reports_after(self, slot: int, check_ins: int) -> int:
        """Return how many reports a slot gets at most after so many check-ins."""
        if not self.rules.releases_model(slot):
            return 0
        return check_ins if self.rules.capacity is None else min(check_ins, self.rules.capacity)

    def _service_s(self, count: int) -> float:
        """Return the seconds in which ``count`` reports are saved, if they arrive together.

        Before the first reports, the times of check-ins are all that is known about them.
        """
        return max(self.reports.seconds_for(count), self.check_ins.seconds_for(count))
