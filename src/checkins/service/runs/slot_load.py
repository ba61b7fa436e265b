"""Load shedding: refuse check-ins that the coordinator could not serve until the end of their slot.

A check-in uses up the participation of its client, so the coordinator must not accept more of them
than it can serve in the rest of the slot: it tells each client its outcome, and saves its report.
How many these are is measured. ``CommitTimes`` learns the time of group commits, and ``SlotLoad``
learns how long devices take from the choice to their reports. A check-in beyond that gets the
problem ``busy`` before anything about it is saved, so its token stays unspent.

A process measures and counts only what it serves itself. The measurements include the load that
other processes put on the database and on the machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from checkins.protocol.rules import Rules, RunSchedule
from checkins.service.runs.memory_limits import reports_per_batch
from checkins.service.store.run_state import RunSpec

MEMORY = 0.9
"""The factor by which the weight of each measured commit decreases with the next commit."""
FALL = 0.25
"""The part of ``SlotLoad.device_s`` that a slot removes if its own measurement is lower."""


@dataclass(slots=True)
class CommitTimes:
    """The time of a group commit as a function of its size: ``fixed_s`` + size × ``message_s``.

    Both are fitted to measured times by least squares with exponentially decreasing weights. Two
    standard errors are taken off ``message_s``, because small commits of varying duration say
    little about large ones. Both are 0 before the first commit.

    >>> times = CommitTimes(max_messages=500)
    >>> for size in (1, 10, 100):
    ...     times.record(size, 0.010 + 0.001 * size)
    >>> round(times.fixed_s, 6), round(times.message_s, 6), round(times.seconds_for(200), 6)
    (0.01, 0.001, 0.21)
    """

    max_messages: int  # largest number of messages in one commit
    _weight: float = 0.0
    _size: float = 0.0  # weighted means of size and duration, and of their squares and products
    _duration: float = 0.0
    _size_variance: float = 0.0
    _duration_variance: float = 0.0
    _covariance: float = 0.0

    def record(self, size: int, seconds: float) -> None:
        """Add the size of a commit and its duration."""
        self._weight = MEMORY * self._weight + 1.0
        share = 1.0 / self._weight
        size_step, duration_step = size - self._size, seconds - self._duration
        self._size += share * size_step
        self._duration += share * duration_step
        kept = 1.0 - share
        self._size_variance = kept * (self._size_variance + share * size_step**2)
        self._duration_variance = kept * (self._duration_variance + share * duration_step**2)
        self._covariance = kept * (self._covariance + share * size_step * duration_step)

    @property
    def message_s(self) -> float:
        """Seconds that each message adds to a commit, at least."""
        if self._size_variance <= 0.0:
            return 0.0
        slope = self._covariance / self._size_variance
        residual = max(0.0, self._duration_variance - slope * self._covariance)
        error = math.sqrt(residual / (self._weight * self._size_variance))
        return max(0.0, slope - 2.0 * error)

    @property
    def fixed_s(self) -> float:
        """Seconds that a commit takes whatever its size is."""
        return max(0.0, self._duration - self.message_s * self._size)

    def seconds_for(self, count: int) -> float:
        """Return the seconds in which ``count`` messages that wait together are committed."""
        return math.ceil(count / self.max_messages) * self.fixed_s + count * self.message_s


@dataclass(slots=True)
class SlotLoad:
    """How many check-ins of a slot can be served in time, as far as was measured.

    All times are seconds since 1970 on the clock of the store. ``device_s`` is the time from the
    choice to the report that a device takes, beyond the time in which the coordinator saves
    reports. The first check-in of a slot is always accepted, and an enrolment if no other waits,
    so that an old measurement is replaced.
    """

    rules: Rules
    run_schedule: RunSchedule
    enrolments: CommitTimes
    check_ins: CommitTimes
    reports: CommitTimes
    device_s: float = 0.0
    _slot: int = 0  # the slot whose reports are counted
    _chosen_at: float = 0.0
    _expected: int = 0  # number of clients of this process that were chosen in the slot
    _arrived: int = 0
    _saved: int = 0
    _measured_s: float = 0.0  # measurement of ``device_s`` in the slot in progress

    @classmethod
    def of(cls, spec: RunSpec, *, max_messages: int) -> Self:
        """Return the load of a run before anything is measured.

        ``max_messages`` is the largest number of messages in one commit, unless it is smaller for
        reports because of their size.
        """
        return cls(
            spec.rules,
            spec.run_schedule,
            enrolments=CommitTimes(max_messages),
            check_ins=CommitTimes(max_messages),
            reports=CommitTimes(min(max_messages, reports_per_batch(spec.dimension))),
        )

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
        if accepted + waiting == 0:
            return True
        chooses_at = self.run_schedule.chooses(slot)
        if now < chooses_at < now + self.check_ins.seconds_for(waiting + 1):
            return False
        reports = self._reports_after(slot, accepted + waiting + 1)
        if reports == 0:
            return True
        remaining_s = self.run_schedule.ends(slot) - max(now, chooses_at)
        return self.device_s + self._service_s(reports) <= remaining_s

    def choice_was_read(self, slot: int, *, expected: int, now: float) -> None:
        """Begin to count the reports of a slot, of which this process expects ``expected``."""
        self._slot, self._chosen_at, self._expected = slot, now, expected
        self._arrived = self._saved = 0

    def report_arrived(self, slot: int) -> None:
        """Count a report that is about to be saved."""
        self._arrived += slot == self._slot

    def report_was_saved(self, slot: int, *, now: float) -> None:
        """Count a report that is durable, and measure ``device_s`` at the median report of a slot.

        The median does not depend on the slowest devices.
        """
        if slot == self._slot:
            self._saved += 1
            if self._saved == (self._expected + 1) // 2:
                self._measured_s = now - self._chosen_at - self._service_s(self._saved)

    def slot_was_closed(self, slot: int) -> None:
        """Use the measurement of a slot. A rise counts at once, and a fall slowly.

        If reports were left that had arrived in time, there was time for no more than were saved.
        """
        if slot == self._slot and self._arrived > self._saved:
            reports_s = self.run_schedule.slot_s - self.run_schedule.choose_s
            self._measured_s = max(self._measured_s, reports_s - self._service_s(self._saved))
        self.device_s = max(self._measured_s, (1.0 - FALL) * self.device_s)
        self._measured_s = 0.0

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
