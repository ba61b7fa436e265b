"""The requests that a device sends to the service, with retries and rollback detection.

The functions at the top build every request. ``ServiceClient`` sends them. A view is the public
description of a run. The ledger is the service's append-only list of releases, and the head of the
ledger is the hash of its last line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TypeVar

from checkins.client.actions import (
    RETRYABLE_PROBLEMS,
    CampaignRefused,
    Flow,
    NoResponse,
    Request,
    RequestKind,
    Response,
    ServiceFailed,
    SleepUntil,
)
from checkins.client.clock_and_randomness import (
    OS_RANDOMNESS,
    DeviceRandomness,
    ServerClock,
    monotonic_s,
)
from checkins.client.state import SavedState
from checkins.client.view import CampaignView, MalformedView, parse_view
from checkins.protocol import wire

RESPONSE_TIMEOUT_S = 20.0
"""Time limit in seconds of an ordinary request."""
MAX_VIEW_BYTES = 8 * 2**20
"""Largest view in bytes. The sealed campaign text in the view has at most two megabytes."""
MAX_LISTING_BYTES = 16 * 2**20
"""Largest list of campaigns in bytes. Each run takes about three hundred bytes."""


def view_request(run_id: str) -> Request:
    """Build the request for a run's view, which is the same for all devices."""
    path = wire.RUN_PATH.format(run=run_id)
    return Request(RequestKind.VIEW, "GET", path, RESPONSE_TIMEOUT_S, max_bytes=MAX_VIEW_BYTES)


def listing_request() -> Request:
    """Build the request for the list of campaigns, newest first."""
    return Request(
        RequestKind.VIEW,
        "GET",
        wire.CAMPAIGNS_PATH,
        RESPONSE_TIMEOUT_S,
        max_bytes=MAX_LISTING_BYTES,
    )


def ledger_head_request(
    run_id: str, entries: int, *, timeout_s: float = RESPONSE_TIMEOUT_S
) -> Request:
    """Build the request for the head that the ledger had when it was ``entries`` lines long."""
    path = wire.LEDGER_HEAD_PATH.format(run=run_id, entries=entries)
    return Request(RequestKind.LEDGER, "GET", path, timeout_s)


def enrol_request(run_id: str, *, idempotency_key: str, secret: str | None) -> Request:
    """Build the request for a token. A retry with the same idempotency key gets the same token.

    ``secret`` is the enrolment secret, or None if the service requires none.
    """
    authorization = {} if secret is None else wire.bearer(secret)
    headers = {"Idempotency-Key": idempotency_key} | authorization
    path = wire.ENROLMENTS_PATH.format(run=run_id)
    return Request(RequestKind.ENROL, "POST", path, RESPONSE_TIMEOUT_S, headers)


def withdraw_request(run_id: str, *, token: str) -> Request:
    """Build the request that invalidates a token and erases its check-in and report."""
    path = wire.ENROLMENTS_PATH.format(run=run_id)
    return Request(RequestKind.WITHDRAW, "DELETE", path, RESPONSE_TIMEOUT_S, wire.bearer(token))


def check_in_request(
    run_id: str, slot: int, *, token: str, timeout_s: float, wait_s: int | None = None
) -> Request:
    """Build the request to check in to a slot. A retry gets the same receipt.

    With ``wait_s``, the service waits for the outcome for at most so many seconds and sends it with
    the receipt. If None, the service responds at once, with the receipt only.
    """
    path, headers = wire.CHECK_INS_PATH.format(run=run_id, slot=slot), wire.bearer(token)
    if wait_s is None:
        return Request(RequestKind.CHECK_IN, "POST", path, timeout_s, headers)
    return Request(
        RequestKind.CHECK_IN,
        "POST",
        f"{path}?model=true&wait={wait_s}",
        wait_s + timeout_s,
        headers,
        max_bytes=wire.MAX_OUTCOME_BYTES,
    )


def outcome_request(run_id: str, receipt: str, *, wait_s: int, timeout_s: float) -> Request:
    """Build the long poll for the outcome and the model, for at most ``wait_s`` seconds."""
    path = wire.OUTCOME_PATH.format(run=run_id, receipt=receipt)
    return Request(
        RequestKind.OUTCOME,
        "GET",
        f"{path}?model=true&wait={wait_s}",
        wait_s + timeout_s,
        max_bytes=wire.MAX_OUTCOME_BYTES,
    )


def model_request(
    run_id: str, slot: int, *, receipt: str, max_bytes: int, timeout_s: float
) -> Request:
    """Build the request for the model on which a chosen device computes its update."""
    path = wire.MODEL_PATH.format(run=run_id, slot=slot)
    headers = wire.bearer(receipt)
    return Request(RequestKind.MODEL, "GET", path, timeout_s, headers, max_bytes=max_bytes)


def report_request(
    run_id: str, slot: int, *, receipt: str, report: bytes, timeout_s: float
) -> Request:
    """Build the request that uploads a report. A retry sends the same bytes."""
    path = wire.REPORT_PATH.format(run=run_id, slot=slot)
    headers = wire.bearer(receipt) | {"Content-Type": wire.BYTES_TYPE}
    return Request(RequestKind.REPORT, "PUT", path, timeout_s, headers, report)


FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.25, 15.0
"""Shortest and longest delay in seconds before a retry, without jitter and Retry-After."""
ROLLBACK_CHECKS = 5
"""Number of views in a row that must show a rollback before the device reports a rollback. A single
view may come from a worker process of the service that lags behind another worker."""
NOTHING_SENT = "this device neither checks in nor reports"
"""End of error messages about a rollback."""
Parsed = TypeVar("Parsed")
_SAFE_SECRET = re.compile(r"[\w.~+/=-]{1,512}", re.ASCII)


def safe_secret(secret: object) -> str | None:
    """Return a received token or receipt, or None if it is not safe in headers and paths."""
    return secret if isinstance(secret, str) and _SAFE_SECRET.fullmatch(secret) else None


@dataclass(slots=True, eq=False)
class ServiceClient:
    """Sends the requests of one device, with retries, and estimates the server's clock.

    A service that cannot be reached is retried for ``retry_timeout_s`` seconds. ``monotonic``
    returns the device's monotonic time in seconds. The methods that return a ``Flow`` are
    generators: they yield requests and sleeps, which a driver performs.
    """

    url: str
    run_id: str
    retry_timeout_s: float
    _: KW_ONLY
    monotonic: Callable[[], float] = monotonic_s
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
        return self.clock.server_s(self.monotonic())

    def fetch_view(self, saved: SavedState) -> Flow[CampaignView]:
        """Fetch the view, with retries; raise ServiceFailed if it is older than the saved state."""
        for _ in range(ROLLBACK_CHECKS):
            view = yield from self.retry_until(
                view_request(self.run_id), lambda response: self._parse_view(response, saved)
            )
            if not _is_rolled_back(view, saved) and (
                yield from self._ledger_contains_saved_line(view, saved)
            ):
                return view
            yield SleepUntil(self.monotonic() + 1.0)
        raise ServiceFailed(
            self.url,
            f"was rolled back: it had closed {saved.slots_closed:,} slots in epoch {saved.epoch},"
            f" with {saved.entries:,} entries in its ledger; now {view.slots_closed:,} in epoch"
            f" {view.epoch}, with {view.entries:,} entries; {NOTHING_SENT}",
        )

    def _ledger_contains_saved_line(self, view: CampaignView, saved: SavedState) -> Flow[bool]:
        """Return True if the ledger still contains the last line that the device saved.

        Return False if the ledger is now shorter. Raise ServiceFailed if the line has changed.
        """
        if self._view_shows_saved_line(view, saved):
            return True
        request = ledger_head_request(self.run_id, saved.entries)
        return (
            yield from self.retry_until(request, lambda head: self.contains_saved_line(head, saved))
        )

    def _view_shows_saved_line(self, view: CampaignView, saved: SavedState) -> bool:
        """Return True if the view is enough to check the line of the ledger that the device saved.

        It is enough if no line was saved, or if the ledger has as many lines as when the line was
        saved. In the second case, raise ServiceFailed if the head has changed.
        """
        if saved.head is not None and view.entries == saved.entries:
            self._check_head(view.head, saved)
        return saved.head is None or view.entries == saved.entries

    def contains_saved_line(self, response: Response, saved: SavedState) -> bool | None:
        """Return True if the ledger still contains the last line that the device saved.

        ``response`` is the response to ``ledger_head_request``. Return False if the ledger is now
        shorter, and None if the response is not usable. Raise ServiceFailed if the line has
        changed, because a worker process that lags behind cannot be the reason.
        """
        if response.problem == "unknown-entry":
            return False
        if response.problem == "unknown-path":
            raise ServiceFailed(
                self.url,
                "cannot show earlier hashes of its ledger, so a rollback cannot be excluded: update"
                f" the coordinator; {NOTHING_SENT}",
            )
        line = response.parse_json(wire.LedgerPlace, 200)
        if line is None or line["entries"] != saved.entries or not isinstance(line["head"], str):
            return None
        self._check_head(line["head"], saved)
        return True

    def _check_head(self, head: str, saved: SavedState) -> None:
        if head != saved.head:
            raise ServiceFailed(
                self.url,
                f"was rolled back: entry {saved.entries:,} of its ledger had the hash {saved.head},"
                f" and now has {head[:64]}, so slots may be released twice; {NOTHING_SENT}",
            )

    def fetch_head(self, entries: int) -> Flow[str]:
        """Fetch the head that the ledger had when it was ``entries`` lines long.

        Return an empty string if the service cannot show it.
        """

        def parse_head(response: Response) -> str | None:
            if response.problem in ("unknown-entry", "unknown-path"):
                return ""
            line = response.parse_json(wire.LedgerPlace, 200)
            return None if line is None or line["entries"] != entries else str(line["head"])

        return (yield from self.retry_until(ledger_head_request(self.run_id, entries), parse_head))

    def try_fetch_view(self, saved: SavedState) -> Flow[CampaignView | None]:
        """Fetch the view without retries; return None if no usable response comes.

        If the view looks rolled back, fetch it with retries, which raises if this is confirmed.
        """
        response: Response | NoResponse = yield view_request(self.run_id)
        view = self._parse_view(response, saved) if isinstance(response, Response) else None
        if view is None:
            return None
        if _is_rolled_back(view, saved):
            return (yield from self.fetch_view(saved))
        if self._view_shows_saved_line(view, saved):
            return view
        head: Response | NoResponse = yield ledger_head_request(self.run_id, saved.entries)
        contains = self.contains_saved_line(head, saved) if isinstance(head, Response) else None
        if contains is False:
            return (yield from self.fetch_view(saved))
        return view if contains else None

    def _parse_view(self, response: Response, saved: SavedState) -> CampaignView | None:
        """Parse a view and update the clock estimate; return None if the response is no view."""
        if response.status != 200:
            return None
        try:
            view = parse_view(response.body)
        except MalformedView:
            return None
        if view.id != self.run_id:
            raise CampaignRefused("campaign", view.id, f"must be {self.run_id}")
        if saved.seal is not None and view.seal != saved.seal:
            raise CampaignRefused("seal", view.seal, f"must be {saved.seal}, as it was before")
        clock = ServerClock.estimate(
            view.server_time_s, sent_s=response.sent_s, received_s=response.received_s
        )
        self._clock = clock if self._clock is None else self._clock.more_accurate(clock)
        return view

    def with_rollback_evidence(self, saved: SavedState, view: CampaignView) -> SavedState:
        """Return the state with the seal, epoch, closed slots and ledger head of the view.

        The device compares them with later views to detect a rollback.
        """
        fields = ("seal", "epoch", "slots_closed", "entries", "head")
        return replace(saved, **{name: getattr(view, name) for name in fields})

    def enrol(self, idempotency_key: str, *, secret: str | None) -> Flow[str]:
        """Enrol, with retries, and return the token. The arguments are as in ``enrol_request``."""

        def parse_token(response: Response) -> str | None:
            body = response.parse_json(wire.Token, 200, 201)
            return body and safe_secret(body["token"])

        request = enrol_request(self.run_id, idempotency_key=idempotency_key, secret=secret)
        return (yield from self.retry_until(request, parse_token))

    def retry_until(
        self, request: Request, parse: Callable[[Response], Parsed | None]
    ) -> Flow[Parsed]:
        """Repeat a request until ``parse`` returns a value other than None; return that value.

        A busy service is retried without a limit. A service that cannot be reached or responds
        incorrectly is retried for ``retry_timeout_s`` seconds.
        """
        failing_since_s: float | None = None
        while True:
            response: Response | NoResponse = yield request
            reason = response.reason if isinstance(response, NoResponse) else response.detail
            is_busy = False
            if isinstance(response, Response):
                parsed = parse(response)
                if parsed is not None:
                    self.reset_backoff()
                    return parsed
                if self.is_final(response):
                    raise self._refusal_error(request, response)
                is_busy = response.status == 503 or response.problem in RETRYABLE_PROBLEMS
            now_s = self.monotonic()
            if is_busy:
                failing_since_s = None
            elif failing_since_s is None:
                failing_since_s = now_s
            if failing_since_s is not None and now_s - failing_since_s >= self.retry_timeout_s:
                raise ServiceFailed(self.url, f"does not respond correctly: {reason}")
            yield SleepUntil(now_s + self.backoff_s(response))

    def _refusal_error(
        self, request: Request, response: Response
    ) -> CampaignRefused | ServiceFailed:
        match response.problem:
            case "not-enrolled":
                if "Authorization" not in request.headers:
                    return CampaignRefused("key", None, "this service needs a key")
                return CampaignRefused("key", "given", f"is not valid here: {response.detail}")
            case "unknown-campaign" | "over":
                return CampaignRefused("campaign", self.run_id, response.detail)
        return ServiceFailed(self.url, f"refused to {request.kind}: {response.detail}")

    def reset_backoff(self) -> None:
        """Reset the backoff after a successful response."""
        self._attempts = 0

    def is_final(self, response: Response) -> bool:
        """Return whether the response is a refusal that a retry cannot change."""
        return response.problem is not None and response.problem not in RETRYABLE_PROBLEMS

    def backoff_s(
        self,
        response: Response | NoResponse,
        *,
        first_s: float = FIRST_BACKOFF_S,
        longest_s: float = MAX_BACKOFF_S,
    ) -> float:
        """Return the seconds before the next attempt, and count this attempt.

        The delay doubles with each attempt, from at most ``first_s`` to at most ``longest_s``. A
        random part of up to a half is taken off, and the response's Retry-After is added.
        """
        first_s, longest_s = min(FIRST_BACKOFF_S, first_s), min(MAX_BACKOFF_S, longest_s)
        delay_s = min(longest_s, first_s * 2.0 ** min(self._attempts, 20))
        self._attempts += 1
        delay_s *= 0.5 + 0.5 * self.randomness.jitter()
        retry_after_s = response.retry_after_s if isinstance(response, Response) else None
        return delay_s + (retry_after_s or 0.0)


def _is_rolled_back(view: CampaignView, saved: SavedState) -> bool:
    has_fewer = view.slots_closed < saved.slots_closed or view.entries < saved.entries
    return view.epoch < saved.epoch or has_fewer
