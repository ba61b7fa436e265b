"""Every request a device makes: nothing else leaves it."""

from __future__ import annotations

from checkins.client.actions import Kind, Request
from checkins.protocol.report import MEDIA_TYPE

ANSWER_S = 20.0
"""How long an ordinary answer may take."""
VIEW_BYTES = 8 * 2**20
"""What a campaign's view may have: a sealed text is at most two megabytes."""
LISTING_BYTES = 16 * 2**20
"""What a list of campaigns may have: a line of about three hundred bytes for each run."""


def look(campaign: str) -> Request:
    """The same for everyone, and it says nothing of who asks."""
    path = f"/campaigns/{campaign}"
    return Request(Kind.LOOK, "GET", path, ANSWER_S, most_bytes=VIEW_BYTES)


def listing() -> Request:
    """All campaigns, newest first."""
    return Request(Kind.LOOK, "GET", "/campaigns", ANSWER_S, most_bytes=LISTING_BYTES)


def ledger_head(campaign: str, entries: int, *, timeout_s: float = ANSWER_S) -> Request:
    """The head of the ledger when it had so many entries."""
    path = f"/campaigns/{campaign}/ledger/heads/{entries}"
    return Request(Kind.LEDGER, "GET", path, timeout_s)


def enrol(campaign: str, *, idempotency: str, key: str | None) -> Request:
    """The same ``idempotency`` gets the same token."""
    headers = {"Idempotency-Key": idempotency} | ({} if key is None else _bearer(key))
    return Request(Kind.ENROL, "POST", f"/campaigns/{campaign}/enrolments", ANSWER_S, headers)


def withdraw(campaign: str, *, token: str) -> Request:
    """Spends the token, and erases what the running slot holds of it."""
    path = f"/campaigns/{campaign}/enrolments"
    return Request(Kind.WITHDRAW, "DELETE", path, ANSWER_S, _bearer(token))


def check_in(campaign: str, slot: int, *, token: str, timeout_s: float) -> Request:
    """A retry gets the same receipt."""
    path = f"/campaigns/{campaign}/slots/{slot}/check-ins"
    return Request(Kind.CHECK_IN, "POST", path, timeout_s, _bearer(token))


def outcome(campaign: str, receipt: str, *, wait_s: int, timeout_s: float) -> Request:
    """Waits at the service for ``wait_s`` at most, and then ``timeout_s`` for the answer."""
    path = f"/campaigns/{campaign}/check-ins/{receipt}?wait={wait_s}"
    return Request(Kind.OUTCOME, "GET", path, wait_s + timeout_s)


def model(campaign: str, slot: int, *, receipt: str, most_bytes: int, timeout_s: float) -> Request:
    """For a chosen device: the model before its slot."""
    path = f"/campaigns/{campaign}/slots/{slot}/model"
    headers = _bearer(receipt)
    return Request(Kind.MODEL, "GET", path, timeout_s, headers, most_bytes=most_bytes)


def report(campaign: str, slot: int, *, receipt: str, report: bytes, timeout_s: float) -> Request:
    """The same bytes, however often."""
    path = f"/campaigns/{campaign}/slots/{slot}/report"
    headers = _bearer(receipt) | {"Content-Type": MEDIA_TYPE}
    return Request(Kind.REPORT, "PUT", path, timeout_s, headers, report)


def _bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}
