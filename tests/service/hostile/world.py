"""A service with campaigns in every state that an attacker could want, and honest clients in it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from checkins.protocol.report import report_to_bytes
from tests.soak import SOAK
from tests.support.campaigns import long_campaign
from tests.support.coordinator import OPERATOR, UNLIMITED, Coordinator, serving
from tests.support.raw_http import Answer, ask, request
from tests.support.waiting import wait_until

CAPACITY, GUESTS, CHOOSE_S = 6, 12, 3.0
QUICK_SLOT_S = 1.0
SOON_S = 5.0
"""Nobody can begin a campaign in the past; so long may it take to open two of them."""
ATTEMPTS = 5


@dataclass(slots=True)
class Guests:
    """Honest clients in slot 1 of a campaign whose choice is made: receipts by what they got."""

    chosen: list[str] = field(default_factory=list)
    dismissed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class World:
    """``main`` has chosen and reports are due; the others are in states of their own."""

    running: Coordinator
    main: str
    open: str
    """In slot 1, before its choice, for hours."""
    quick: str
    """A slot every second: enough for a receipt to be missed while a test waits."""
    later: str
    """Begins in a day."""
    guests: Guests
    dimension: int
    token: str
    """Enrolled in ``main``, never used."""

    def ask(self, method: str, path: str, **given: Any) -> Answer:
        """One request on a connection of its own."""
        return ask(self.running.address, request(method, path, **given))

    def enrol(self, campaign: str) -> str:
        return enrol(self.running, campaign)

    def check_in(self, campaign: str, slot: int, token: str | None = None) -> Answer:
        return check_in(self.running, campaign, slot, token or self.enrol(campaign))

    def report(self, receipt: str, body: bytes, *, campaign: str = "", slot: object = 1) -> Answer:
        """Send a report; ``main`` and its slot 1 unless told otherwise."""
        path = f"/campaigns/{campaign or self.main}/slots/{slot}/report"
        kind = {"Content-Type": "application/octet-stream"}
        return self.ask("PUT", path, token=receipt, body=body, headers=kind)

    def honest_report(self, value: int = 3) -> bytes:
        """Bytes that a client could have made."""
        return report_to_bytes(np.full(self.dimension, value, np.int32))

    def missed_receipt(self) -> str:
        """A receipt of ``quick`` whose slot is over."""
        for _ in range(ATTEMPTS):
            view = self.ask("GET", f"/campaigns/{self.quick}").json()
            slot = view["slots_closed"] + 3
            answer = self.check_in(self.quick, slot)
            if answer.status == 202:
                self.wait_for(self.quick, slot)
                return str(answer.json()["receipt"])
        raise AssertionError(f"no check-in was taken: {answer}")

    def wait_for(self, campaign: str, slot: int) -> None:
        """Until this slot is closed."""
        wait_until(
            lambda: self.ask("GET", f"/campaigns/{campaign}").json()["slots_closed"] >= slot,
            f"slot {slot} is closed",
            every_s=QUICK_SLOT_S / 4,
        )


def enrol(running: Coordinator, campaign: str) -> str:
    answer = ask(running.address, request("POST", f"/campaigns/{campaign}/enrolments", body=b""))
    assert answer.status == 201, answer
    return str(answer.json()["token"])


def check_in(running: Coordinator, campaign: str, slot: int, token: str) -> Answer:
    path = f"/campaigns/{campaign}/slots/{slot}/check-ins"
    return ask(running.address, request("POST", path, token=token, body=b""))


@contextmanager
def open_world(store: str | None = None, *, real: bool = SOAK) -> Iterator[World]:
    """Start it; where the machine was too slow for the first choice, once more."""
    for attempt in range(ATTEMPTS):
        with tempfile.TemporaryDirectory() as folder:
            text = long_campaign("hostile", slot_s=7200.0, choose_s=CHOOSE_S, capacity=CAPACITY)
            with serving(Path(folder), text, *UNLIMITED, store=store, real=real) as running:
                receipts = _checked_in(running)
                if receipts is None and attempt + 1 < ATTEMPTS:
                    continue
                assert receipts is not None, "the machine is too slow to check in before the choice"
                yield _complete(running, receipts)
                return


def _checked_in(running: Coordinator) -> list[str] | None:
    """Receipts; None when the choice came before all of them had checked in."""
    receipts = []
    for _ in range(GUESTS):
        answer = check_in(running, running.campaign, 1, enrol(running, running.campaign))
        if answer.status != 202:
            return None
        receipts.append(str(answer.json()["receipt"]))
    return receipts


def _told(running: Coordinator, receipts: list[str]) -> Guests:
    guests = Guests()
    for receipt in receipts:
        path = f"/campaigns/{running.campaign}/check-ins/{receipt}?wait=30"
        outcome = ask(running.address, request("GET", path)).json()["outcome"]
        assert outcome in ("chosen", "dismissed"), outcome
        (guests.chosen if outcome == "chosen" else guests.dismissed).append(receipt)
    assert len(guests.chosen) == CAPACITY
    return guests


def _complete(running: Coordinator, receipts: list[str]) -> World:
    soon, tomorrow = (datetime.now(UTC) + timedelta(seconds=s) for s in (SOON_S, 86_400))
    half = QUICK_SLOT_S / 2
    opened = {
        "open": long_campaign("open", slot_s=7200.0, choose_s=7000.0, start=soon),
        "quick": long_campaign("quick", slots=5000, slot_s=QUICK_SLOT_S, choose_s=half, start=soon),
        "later": long_campaign("later", start=tomorrow),
    }
    names = {}
    for name, text in opened.items():
        answer = httpx.post(
            f"{running.url}/campaigns",
            content=text,
            headers={"Authorization": f"Bearer {OPERATOR}", "Content-Type": "application/toml"},
            timeout=60,
        )
        assert answer.status_code == 201, answer.text
        names[name] = answer.json()["id"]
    view = httpx.get(f"{running.url}/campaigns/{running.campaign}", timeout=60).json()
    token = enrol(running, running.campaign)
    guests = _told(running, receipts)
    made = World(
        running,
        running.campaign,
        names["open"],
        names["quick"],
        names["later"],
        guests,
        view["dimension"],
        token,
    )
    made.wait_for(names["quick"], 1)
    return made
