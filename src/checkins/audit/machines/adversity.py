"""Misfortunes that a promise must survive: crashes, lost answers, late and repeated messages.

None of them depends on the canary's data, and an honest coordinator with honest devices keeps its
certificate under each of them: the audits measure that too.
"""

from __future__ import annotations

from dataclasses import dataclass

from checkins.errors import InvalidValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Adversity:
    """What goes wrong in every run of a campaign; nothing, unless it is named.

    ``repeated``: each message arrives that many times more.
    ``crashes_after_draw``: a device restarts so often once its draw is durable.
    ``crashes_after_no``: the same, but only as long as it has drawn not to take part: its owner
    sees that.
    ``crashes_after_report``: a device restarts so often right after it has sent its report.
    ``crashes_while_closing``: the server restarts so often in each slot as soon as it has shown or
    recorded something of its end.
    ``crashes_at_invitation``: the server restarts, up to so often in a slot, when it has told
    others and not the canary that they are chosen: whoever sees who uploads could do that.
    ``late_report``: the network holds the canary's report back until the last slot.
    ``restorations``: once the canary is done, its device is put back from a backup that was made
    before its draw, up to so often in each later slot.
    """

    repeated: int = 0
    crashes_after_draw: int = 0
    crashes_after_no: int = 0
    crashes_after_report: int = 0
    crashes_while_closing: int = 0
    crashes_at_invitation: int = 0
    late_report: bool = False
    restorations: int = 0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not isinstance(value, int) or not 0 <= value <= 1000:
                raise InvalidValue(name, value, "must be an integer from 0 to 1,000")


SMOOTH = Adversity()
"""Nothing goes wrong."""

ORDINARY = Adversity(
    repeated=1, crashes_after_draw=1, crashes_after_report=1, crashes_while_closing=1
)
"""What happens every day: messages come twice, and everyone restarts."""
