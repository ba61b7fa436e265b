"""Talking to a service that may be busy, far away or gone: looks, enrolment, when to try again."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from checkins.client import requests
from checkins.client.actions import PASSING, Answer, Flow, NoResponse, Request, SleepUntil
from checkins.client.clock import ServerClock
from checkins.client.errors import CampaignRefused, ServiceFailed
from checkins.client.randomness import DeviceRandomness
from checkins.client.saved_state import SavedState
from checkins.client.view import CampaignView, NotAView, view_from

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 15.0
LOOKS_AT_A_SETBACK = 5
"""One worker of a service may be a moment behind another; a store that was set back stays so."""
NOTHING_SENT = "this device neither checks in nor reports"
Found = TypeVar("Found")
_SECRET = re.compile(r"[\w.~+/=-]{1,512}", re.ASCII)


def secret_in(answer: Answer, name: str) -> str | None:
    """A token or receipt from an answer; None unless it can stand in a header and in a path."""
    value = answer.value().get(name)
    return value if isinstance(value, str) and _SECRET.fullmatch(value) else None


class ServiceClient:
    """One device's way to its service: its clock, and its patience."""

    def __init__(
        self,
        url: str,
        campaign: str,
        patience_s: float,
        *,
        steady: Callable[[], float],
        dice: DeviceRandomness,
    ) -> None:
        self._url = url
        self._campaign = campaign
        self._patience_s = patience_s
        self._steady = steady
        self._dice = dice
        self._tries = 0
        self._clock: ServerClock | None = None

    @property
    def clock(self) -> ServerClock:
        """The server's clock; there is one after the first look."""
        if self._clock is None:
            raise ServiceFailed(self._url, "its clock is not known yet")
        return self._clock

    def server_s(self) -> float:
        """The server's seconds since 1970, now."""
        return self.clock.server_s(self._steady())

    def look(self, kept: SavedState) -> Flow[CampaignView]:
        """The campaign, as soon as the service answers; refuses a service that was set back."""
        for _ in range(LOOKS_AT_A_SETBACK):
            view = yield from self.until(
                requests.look(self._campaign), lambda answer: self._read(answer, kept)
            )
            if not _set_back(view, kept) and (yield from self._continues(view, kept)):
                return view
            yield SleepUntil(self._steady() + 1.0)
        raise ServiceFailed(
            self._url,
            f"was set back: it had closed {kept.slots_closed:,} slots in epoch {kept.epoch}, with"
            f" {kept.entries:,} entries in its ledger; now {view.slots_closed:,} in epoch"
            f" {view.epoch}, with {view.entries:,} entries; {NOTHING_SENT}",
        )

    def _continues(self, view: CampaignView, kept: SavedState) -> Flow[bool]:
        """Whether the ledger still has the line that was its last one; False if it is shorter."""
        if self._shows(view, kept):
            return True
        request = requests.ledger_head(self._campaign, kept.entries)
        return (yield from self.until(request, lambda answer: self.continues(answer, kept)))

    def _shows(self, view: CampaignView, kept: SavedState) -> bool:
        """Whether a view itself shows that the ledger goes on from what was seen of it."""
        if kept.head is not None and view.entries == kept.entries:
            self._check_head(view.head, kept)
        return kept.head is None or view.entries == kept.entries

    def continues(self, answer: Answer, kept: SavedState) -> bool | None:
        """What an answer says of the ledger: it has the line, or is shorter; None if nothing.

        Raises where the line is another one: no worker that is behind says that.
        """
        if answer.problem == "unknown-entry":
            return False
        if answer.problem == "unknown-path":
            raise ServiceFailed(
                self._url,
                "does not show the head of its ledger at earlier entries: an older coordinator must"
                f" be updated; {NOTHING_SENT}",
            )
        said = answer.value() if answer.status == 200 else {}
        head, entries = said.get("head"), said.get("entries")
        if not isinstance(head, str) or entries != kept.entries:
            return None
        self._check_head(head, kept)
        return True

    def _check_head(self, head: str, kept: SavedState) -> None:
        if head != kept.head:
            raise ServiceFailed(
                self._url,
                f"was set back: entry {kept.entries:,} of its ledger had the hash {kept.head}, and"
                f" now has {head[:64]}, so slots may be released twice; {NOTHING_SENT}",
            )

    def look_once(self, kept: SavedState) -> Flow[CampaignView | None]:
        """The campaign, or None if the service does not answer now."""
        answer: Answer | NoResponse = yield requests.look(self._campaign)
        view = self._read(answer, kept) if isinstance(answer, Answer) else None
        if view is None:
            return None
        if _set_back(view, kept):
            return (yield from self.look(kept))
        if not self._shows(view, kept):
            told: Answer | NoResponse = yield requests.ledger_head(self._campaign, kept.entries)
            continues = self.continues(told, kept) if isinstance(told, Answer) else None
            if continues is False:
                return (yield from self.look(kept))
            if continues is None:
                return None
        return view

    def _read(self, answer: Answer, kept: SavedState) -> CampaignView | None:
        if answer.status != 200:
            return None
        try:
            view = view_from(answer.body)
        except NotAView:
            return None
        if view.id != self._campaign:
            raise CampaignRefused("campaign", view.id, f"must be {self._campaign}")
        if kept.seal is not None and view.seal != kept.seal:
            raise CampaignRefused("seal", view.seal, f"must be {kept.seal}, as it was before")
        found = ServerClock.read(view.server_time_s, sent=answer.sent, received=answer.received)
        self._clock = found if self._clock is None else self._clock.better(found)
        return view

    def seen(self, kept: SavedState, view: CampaignView) -> SavedState:
        """What the device remembers of the service, so that it sees when it is set back."""
        return replace(
            kept,
            seal=view.seal,
            epoch=view.epoch,
            slots_closed=view.slots_closed,
            entries=view.entries,
            head=view.head,
        )

    def enrol(self, idempotency: str, *, key: str | None) -> Flow[str]:
        """A token, as soon as the service gives one."""
        request = requests.enrol(self._campaign, idempotency=idempotency, key=key)
        return (yield from self.until(request, self._token))

    def _token(self, answer: Answer) -> str | None:
        return secret_in(answer, "token") if answer.status in (200, 201) else None

    def until(self, request: Request, read: Callable[[Answer], Found | None]) -> Flow[Found]:
        """What ``read`` finds in an answer: the same request, until there is something.

        A busy service is waited for; one that cannot be reached, for ``patience_s``.
        """
        since: float | None = None
        while True:
            answer: Answer | NoResponse = yield request
            why = answer.why if isinstance(answer, NoResponse) else answer.detail
            busy = False
            if isinstance(answer, Answer):
                found = read(answer)
                if found is not None:
                    self.answered()
                    return found
                if self.final(answer):
                    raise self._refused(request, answer)
                busy = answer.status == 503 or answer.problem in PASSING
            now = self._steady()
            since = None if busy else now if since is None else since
            if since is not None and now - since >= self._patience_s:
                raise ServiceFailed(self._url, f"does not answer as it should: {why}")
            yield SleepUntil(now + self.pause_s(answer))

    def _refused(self, request: Request, answer: Answer) -> CampaignRefused | ServiceFailed:
        match answer.problem:
            case "not-enrolled":
                given = "given" if "Authorization" in request.headers else None
                return CampaignRefused("key", given, f"the service asks for one: {answer.detail}")
            case "unknown-campaign" | "over":
                return CampaignRefused("campaign", self._campaign, answer.detail)
        return ServiceFailed(self._url, f"refused to {request.kind}: {answer.detail}")

    def answered(self) -> None:
        """The service is there: the next pause is a short one again."""
        self._tries = 0

    def final(self, answer: Answer) -> bool:
        """Whether the service itself refuses, and time will not change that."""
        return answer.problem is not None and answer.problem not in PASSING

    def pause_s(
        self,
        answer: Answer | NoResponse,
        *,
        least_s: float = FIRST_PAUSE_S,
        most_s: float = LONGEST_PAUSE_S,
    ) -> float:
        """How long to wait before the next attempt: longer each time, and never all at once."""
        first, longest = min(FIRST_PAUSE_S, least_s), min(LONGEST_PAUSE_S, most_s)
        grown = min(longest, first * 2.0 ** min(self._tries, 20))
        self._tries += 1
        spread = grown * (0.5 + 0.5 * self._dice.jitter())
        asked = answer.retry_after_s if isinstance(answer, Answer) else None
        return spread + (asked or 0.0)


def _set_back(view: CampaignView, kept: SavedState) -> bool:
    fewer = view.slots_closed < kept.slots_closed or view.entries < kept.entries
    return view.epoch < kept.epoch or fewer
