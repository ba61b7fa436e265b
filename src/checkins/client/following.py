"""From one run of a campaign to the next."""

from __future__ import annotations

from checkins.client.actions import Flow, SleepUntil
from checkins.client.saved_state import SavedState
from checkins.client.service_client import ServiceClient

LOOKS_AFTER_THE_END = 5


def following(contact: ServiceClient, campaign: str) -> Flow[str | None]:
    """The id of the next run, as soon as there is one; None after the last."""
    after = 0
    while True:
        view = yield from contact.look(SavedState(campaign))
        if view.next is not None or view.run == view.campaign.repeats:
            return view.next
        end = view.timetable.end(view.timetable.slots)
        now = contact.server_s()
        if view.status == "stopped" or (now >= end and after >= LOOKS_AFTER_THE_END):
            return None
        after += now >= end
        wait_s = min(max(end - now, 1.0), 3600.0) + view.timetable.slot_s / 4
        yield SleepUntil(contact.clock.steady_s(now + wait_s))
