"""Requests of a device to its service: views, enrolment, retries and rollback detection.

The functions at the top build every request that a device sends. A view is the public description
of a run. The head of the ledger is the hash of its last line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TypeVar

from checkins.client.actions import (
    RETRYABLE,
    CampaignRefused,
    Flow,
    NoResponse,
    Request,
    RequestKind,
    Response,
    ServiceFailed,
    SleepUntil,
)
from checkins.client.clock import OS_RANDOMNESS, DeviceRandomness, ServerClock, steady_s
from checkins.client.state import SavedState
from checkins.client.view import CampaignView, MalformedView, view_from
from checkins.protocol import wire

RESPONSE_TIMEOUT_S = 20.0
"""Time limit in seconds of an ordinary request."""
VIEW_BYTES = 8 * 2**20
"""Largest campaign view in bytes. The sealed text in it has at most two megabytes."""
LISTING_BYTES = 16 * 2**20
"""Largest list of campaigns in bytes. Each run takes about three hundred bytes."""


def view_request(run_id: str) -> Request:
    """Build the request for a run's view, which is the same for all devices."""
    path = wire.RUN_PATH.format(run=run_id)
    return Request(RequestKind.VIEW, "GET", path, RESPONSE_TIMEOUT_S, max_bytes=VIEW_BYTES)


def listing_request() -> Request:
    """Build the request for the list of campaigns, newest first."""
    return Request(
        RequestKind.VIEW, "GET", wire.CAMPAIGNS_PATH, RESPONSE_TIMEOUT_S, max_bytes=LISTING_BYTES
    )


def ledger_head_request(
    run_id: str, entries: int, *, timeout_s: float = RESPONSE_TIMEOUT_S
) -> Request:
    """Build the request for the head of the ledger when it had ``entries`` lines."""
    path = wire.LEDGER_HEAD_PATH.format(run=run_id, entries=entries)
    return Request(RequestKind.LEDGER, "GET", path, timeout_s)


def enrol_request(run_id: str, *, idempotency: str, key: str | None) -> Request:
    """Build the request for a token. A retry with the same ``idempotency`` gets the same token.

    ``key`` is the enrolment secret, or None if the service requires none.
    """
    headers = {"Idempotency-Key": idempotency} | ({} if key is None else wire.bearer(key))
    path = wire.ENROLMENTS_PATH.format(run=run_id)
    return Request(RequestKind.ENROL, "POST", path, RESPONSE_TIMEOUT_S, headers)


def withdraw_request(run_id: str, *, token: str) -> Request:
    """Build the request that invalidates a token and erases its check-in and report."""
    path = wire.ENROLMENTS_PATH.format(run=run_id)
    return Request(RequestKind.WITHDRAW, "DELETE", path, RESPONSE_TIMEOUT_S, wire.bearer(token))


def check_in_request(run_id: str, slot: int, *, token: str, timeout_s: float) -> Request:
    """Build the request to check in. A retry gets the same receipt."""
    path = wire.CHECK_INS_PATH.format(run=run_id, slot=slot)
    return Request(RequestKind.CHECK_IN, "POST", path, timeout_s, wire.bearer(token))


def outcome_request(run_id: str, receipt: str, *, wait_s: int, timeout_s: float) -> Request:
    """Build the long poll for the outcome. The service responds after at most ``wait_s``."""
    path = wire.OUTCOME_PATH.format(run=run_id, receipt=receipt)
    return Request(RequestKind.OUTCOME, "GET", f"{path}?wait={wait_s}", wait_s + timeout_s)


def model_request(
    run_id: str, slot: int, *, receipt: str, max_bytes: int, timeout_s: float
) -> Request:
    """Build the request for the model that a chosen device trains in its slot."""
    path = wire.MODEL_PATH.format(run=run_id, slot=slot)
    headers = wire.bearer(receipt)
    return Request(RequestKind.MODEL, "GET", path, timeout_s, headers, max_bytes=max_bytes)


def report_request(
    run_id: str, slot: int, *, receipt: str, report: bytes, timeout_s: float
) -> Request:
    """Build the request that uploads a report. A retry sends the same bytes."""
    path = wire.REPORT_PATH.format(run=run_id, slot=slot)
    headers = wire.bearer(receipt) | {"Content-Type": wire.BYTES}
    return Request(RequestKind.REPORT, "PUT", path, timeout_s, headers, report)


FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.25, 15.0
ROLLBACK_CHECKS = 5
"""Number of views in a row that must show a rollback before it is reported. A single one may come
from a worker of the service that lags behind another."""
NOTHING_SENT = "this device neither checks in nor reports"
Found = TypeVar("Found")
_SECRET = re.compile(r"[\w.~+/=-]{1,512}", re.ASCII)


def safe_secret(secret: object) -> str | None:
    """Return a received token or receipt, or None if it is not safe in headers and paths."""
    return secret if isinstance(secret, str) and _SECRET.fullmatch(secret) else None


@dataclass(slots=True, eq=False)
class ServiceClient:
    """Sends the requests of one device, with retries, and estimates the server's clock."""

    url: str
    run_id: str
    patience_s: float
    _: KW_ONLY
    steady: Callable[[], float] = steady_s
    randomness: DeviceRandomness = OS_RANDOMNESS
    _attempts: int = field(default=0, init=False)
    _clock: ServerClock | None = field(default=None, init=False)

    @property
    def clock(self) -> ServerClock:
        """The estimate of the server's clock. Raises ServiceFailed before the first view."""
        if self._clock is None:
            raise ServiceFailed(self.url, "its clock is not known yet")
        return self._clock

    def server_s(self) -> float:
        """Return the server's current time in seconds since 1970."""
        return self.clock.server_s(self.steady())

    def fetch_view(self, saved: SavedState) -> Flow[CampaignView]:
        """Fetch the view, with retries; raise ServiceFailed if the service was rolled back."""
        for _ in range(ROLLBACK_CHECKS):
            view = yield from self.retry_until(
                view_request(self.run_id), lambda response: self._read(response, saved)
            )
            if not _rolled_back(view, saved) and (
                yield from self._ledger_contains_saved_line(view, saved)
            ):
                return view
            yield SleepUntil(self.steady() + 1.0)
        raise ServiceFailed(
            self.url,
            f"was rolled back: it had closed {saved.slots_closed:,} slots in epoch {saved.epoch},"
            f" with {saved.entries:,} entries in its ledger; now {view.slots_closed:,} in epoch"
            f" {view.epoch}, with {view.entries:,} entries; {NOTHING_SENT}",
        )

    def _ledger_contains_saved_line(self, view: CampaignView, saved: SavedState) -> Flow[bool]:
        """Return True if the ledger still contains the last line that the device saved.

        Return False if the ledger is now shorter. Raises ServiceFailed if the line differs.
        """
        if self._view_shows_saved_line(view, saved):
            return True
        head = ledger_head_request(self.run_id, saved.entries)
        return (
            yield from self.retry_until(head, lambda found: self.contains_saved_line(found, saved))
        )

    def _view_shows_saved_line(self, view: CampaignView, saved: SavedState) -> bool:
        """Return True if the view alone shows that the ledger contains the line that was saved.

        This is so if no line was saved, or if the view has the same number of entries. Raises
        ServiceFailed if it has another hash.
        """
        if saved.head is not None and view.entries == saved.entries:
            self._check_head(view.head, saved)
        return saved.head is None or view.entries == saved.entries

    def contains_saved_line(self, response: Response, saved: SavedState) -> bool | None:
        """Return True if the ledger still contains the last line that the device saved.

        ``response`` is the response to ``ledger_head_request``. Return False if the ledger is now
        shorter, and None if the response says neither. Raises ServiceFailed if the line differs,
        because a worker that lags behind cannot cause that.
        """
        if response.problem == "unknown-entry":
            return False
        if response.problem == "unknown-path":
            raise ServiceFailed(
                self.url,
                "cannot show earlier hashes of its ledger, so a rollback cannot be excluded: update"
                f" the coordinator; {NOTHING_SENT}",
            )
        place = response.read(wire.LedgerPlace, 200)
        if place is None or place["entries"] != saved.entries or not isinstance(place["head"], str):
            return None
        self._check_head(place["head"], saved)
        return True

    def _check_head(self, head: str, saved: SavedState) -> None:
        if head != saved.head:
            raise ServiceFailed(
                self.url,
                f"was rolled back: entry {saved.entries:,} of its ledger had the hash {saved.head},"
                f" and now has {head[:64]}, so slots may be released twice; {NOTHING_SENT}",
            )

    def try_fetch_view(self, saved: SavedState) -> Flow[CampaignView | None]:
        """Fetch the view without retries; None if the service does not respond correctly."""
        response: Response | NoResponse = yield view_request(self.run_id)
        view = self._read(response, saved) if isinstance(response, Response) else None
        if view is None:
            return None
        if _rolled_back(view, saved):
            return (yield from self.fetch_view(saved))
        if self._view_shows_saved_line(view, saved):
            return view
        head: Response | NoResponse = yield ledger_head_request(self.run_id, saved.entries)
        contains = self.contains_saved_line(head, saved) if isinstance(head, Response) else None
        if contains is False:
            return (yield from self.fetch_view(saved))
        return view if contains else None

    def _read(self, response: Response, saved: SavedState) -> CampaignView | None:
        if response.status != 200:
            return None
        try:
            view = view_from(response.body)
        except MalformedView:
            return None
        if view.id != self.run_id:
            raise CampaignRefused("campaign", view.id, f"must be {self.run_id}")
        if saved.seal is not None and view.seal != saved.seal:
            raise CampaignRefused("seal", view.seal, f"must be {saved.seal}, as it was before")
        found = ServerClock.read(view.server_time_s, sent=response.sent, received=response.received)
        self._clock = found if self._clock is None else self._clock.better(found)
        return view

    def with_rollback_evidence(self, saved: SavedState, view: CampaignView) -> SavedState:
        """Return the state with the seal, epoch, closed slots and ledger head of the view.

        The device compares them with later views to detect a rollback.
        """
        names = ("seal", "epoch", "slots_closed", "entries", "head")
        return replace(saved, **{name: getattr(view, name) for name in names})

    def enrol(self, idempotency: str, *, key: str | None) -> Flow[str]:
        """Enrol, with retries, and return the token."""

        def token(response: Response) -> str | None:
            found = response.read(wire.Token, 200, 201)
            return found and safe_secret(found["token"])

        request = enrol_request(self.run_id, idempotency=idempotency, key=key)
        return (yield from self.retry_until(request, token))

    def retry_until(
        self, request: Request, read: Callable[[Response], Found | None]
    ) -> Flow[Found]:
        """Repeat a request until ``read`` returns a value other than None; return that value.

        A busy service is retried without a limit. A service that cannot be reached or responds
        incorrectly is retried for ``patience_s`` seconds.
        """
        since: float | None = None
        while True:
            response: Response | NoResponse = yield request
            why = response.why if isinstance(response, NoResponse) else response.detail
            busy = False
            if isinstance(response, Response):
                found = read(response)
                if found is not None:
                    self.reset_backoff()
                    return found
                if self.is_final(response):
                    raise self._refused(request, response)
                busy = response.status == 503 or response.problem in RETRYABLE
            now = self.steady()
            since = None if busy else now if since is None else since
            if since is not None and now - since >= self.patience_s:
                raise ServiceFailed(self.url, f"does not respond correctly: {why}")
            yield SleepUntil(now + self.backoff_s(response))

    def _refused(self, request: Request, response: Response) -> CampaignRefused | ServiceFailed:
        match response.problem:
            case "not-enrolled":
                given = "given" if "Authorization" in request.headers else None
                return CampaignRefused("key", given, f"no valid enrolment key: {response.detail}")
            case "unknown-campaign" | "over":
                return CampaignRefused("campaign", self.run_id, response.detail)
        return ServiceFailed(self.url, f"refused to {request.kind}: {response.detail}")

    def reset_backoff(self) -> None:
        """Reset the backoff after a successful response."""
        self._attempts = 0

    def is_final(self, response: Response) -> bool:
        """Return whether the response is a refusal that a retry cannot change."""
        return response.problem is not None and response.problem not in RETRYABLE

    def backoff_s(
        self,
        response: Response | NoResponse,
        *,
        least_s: float = FIRST_BACKOFF_S,
        most_s: float = MAX_BACKOFF_S,
    ) -> float:
        """Return the seconds before the next attempt.

        They grow exponentially with jitter. The service's Retry-After is added to them.
        """
        first, longest = min(FIRST_BACKOFF_S, least_s), min(MAX_BACKOFF_S, most_s)
        grown = min(longest, first * 2.0 ** min(self._attempts, 20))
        self._attempts += 1
        spread = grown * (0.5 + 0.5 * self.randomness.jitter())
        asked = response.retry_after_s if isinstance(response, Response) else None
        return spread + (asked or 0.0)


def _rolled_back(view: CampaignView, saved: SavedState) -> bool:
    fewer = view.slots_closed < saved.slots_closed or view.entries < saved.entries
    return view.epoch < saved.epoch or fewer
