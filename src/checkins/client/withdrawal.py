"""Leaving a campaign: the token is spent, and nothing of the running slot keeps the device."""

from __future__ import annotations

from checkins.client import requests
from checkins.client.actions import Answer, Flow, LogEvent, Save
from checkins.client.saved_state import WITHDRAWN, SavedState
from checkins.client.service_client import ServiceClient

GONE = frozenset({"refused", "not-enrolled", "unknown-campaign", "over"})
"""Problems that say there is no such token any more: as good as withdrawn."""


def withdrawal(
    contact: ServiceClient, kept: bytes | None, *, campaign: str, key: str | None
) -> Flow[bool]:
    """Withdraw; returns whether there was anything to withdraw.

    A device whose enrolment was under way when it stopped gets its token first; one that has not
    begun keeps in mind that it has left. Nothing is erased
    on the device before the service has answered.
    """
    state = SavedState(campaign) if kept is None else SavedState.from_bytes(kept)
    if state.ended is not None:
        return False
    if state.key is None:  # it has not enrolled, and never will
        yield Save(state.over(WITHDRAWN).to_bytes())
        return False
    token = state.token
    if token is None:
        token = yield from contact.enrol(state.key, key=key)

    def gone(answer: Answer) -> bool | None:
        return True if answer.status == 204 or answer.problem in GONE else None

    yield from contact.until(requests.withdraw(campaign, token=token), gone)
    yield Save(state.over(WITHDRAWN).to_bytes())
    yield LogEvent({"event": "withdrawn", "campaign": campaign})
    return True
