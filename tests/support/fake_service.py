"""A small service that implements the protocol with devices, on a clock of the test.

It is strict where a device must be careful: a token checks in once, a report never changes, and
everything a device sends is kept to be looked at.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl

import httpx
import numpy as np

from checkins.campaign import Campaign, parse_campaign
from checkins.protocol.report import model_to_bytes, report_from_bytes
from tests.support import campaigns
from tests.support.clock import Clock
from tests.support.http_server import Handler, http_server

START = datetime(2030, 1, 1, tzinfo=UTC)
START_S = START.timestamp()
SHAPES = {"weights": (13,), "bias": ()}
DIMENSION = 14


def campaign_text(*, noise_at: str = "client", **given: Any) -> str:
    """A campaign file with Gaussian noise; for its other keys see ``campaigns.campaign_text``."""
    noise = f'kind = "gaussian"\nnoise_at = "{noise_at}"\nnoise_multiplier = 1.0'
    values = {"epsilon": 8.0, "capacity": 3, "randomizer": noise, "data": "patients"}
    return campaigns.campaign_text(**{**values, "start": START, **given})


def campaign(**given: Any) -> Campaign:
    """The campaign of ``campaign_text``."""
    return parse_campaign(campaign_text(**given)).campaign


@dataclass(frozen=True)
class Reply:
    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


def said(code: int, /, **values: object) -> Reply:
    return Reply(code, json.dumps(values).encode(), {"Content-Type": "application/json"})


def problem(status: int, slug: str, **headers: str) -> Reply:
    values = {"type": f"urn:checkins:{slug}", "title": slug, "status": status, "detail": slug}
    kind = {"Content-Type": "application/problem+json"}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, json.dumps(values).encode(), kind | named)


Override = Callable[[str, str, dict[str, str], bytes], Reply | None]


class FakeService:
    """One run of one campaign. ``now_s`` is its clock; ``choose`` says who of a slot is chosen."""

    def __init__(
        self,
        described: Campaign | None = None,
        *,
        run: int = 1,
        now_s: Callable[[], float] = lambda: START_S,
        choose: Callable[[str], bool] = lambda receipt: True,
        secret: str | None = None,
    ) -> None:
        self.campaign = described or campaign()
        self.run = run
        self.now_s = now_s
        self.choose = choose
        self.secret = secret
        self.id = f"{self.campaign.seal.removeprefix('sha256:')[:12]}-{run}"
        self.next: str | None = None
        self.epoch = 1
        self.closed_less = 0
        self.forked_after: int | None = None
        """Number of ledger lines that remained after a rollback of the store; None: no rollback."""
        self.status: str | None = None
        self.model = np.linspace(-0.1, 0.1, DIMENSION)
        self.tokens: dict[str, str] = {}
        self.withdrawn: set[str] = set()
        self.check_ins: dict[str, tuple[int, str]] = {}
        self.reports: dict[tuple[int, str], bytes] = {}
        self.received: list[tuple[str, str]] = []
        self.answers: Counter[tuple[str, int]] = Counter()
        self.chooses_at_once = False
        self.wait: Callable[[float, Callable[[], bool]], None] | None = None
        self.override: Override | None = None
        """Answers a request instead of the service, unless it returns None."""
        self.is_older = False
        """Whether it is of a version that sends no outcome with a receipt, and no model with it."""
        self.model_is_large = False
        """Whether the model is too large to be sent with the outcome."""
        self.late_s = 0.0
        """Seconds by which slots begin later than the schedule says."""

    @property
    def begins_s(self) -> float:
        schedule, slots = self.campaign.schedule, self.campaign.design.slots
        assert schedule is not None
        return schedule.start.timestamp() + (self.run - 1) * slots * schedule.slot_s

    def begin(self, slot: int) -> float:
        assert self.campaign.schedule is not None
        return self.begins_s + (slot - 1) * self.campaign.schedule.slot_s + self.late_s

    def chosen_at(self, slot: int) -> float:
        assert self.campaign.schedule is not None
        return self.begin(slot) + self.campaign.schedule.choose_s

    def has_chosen(self, slot: int) -> bool:
        return self.chooses_at_once or self.now_s() >= self.chosen_at(slot)

    def closed(self) -> int:
        assert self.campaign.schedule is not None
        passed = int((self.now_s() - self.begins_s) // self.campaign.schedule.slot_s)
        return max(0, min(self.campaign.design.slots, passed))

    def entries(self) -> int:
        return 1 + self.closed() - self.closed_less

    def head(self, entries: int) -> str:
        """The hash of a line of the ledger."""
        forked = self.forked_after is not None and entries > self.forked_after
        return hashlib.sha256(f"{self.id}/{entries}/{forked}".encode()).hexdigest()

    def view(self) -> dict[str, object]:
        schedule = self.campaign.schedule
        assert schedule is not None
        over = self.closed() == self.campaign.design.slots
        return {
            "id": self.id,
            "name": self.campaign.name,
            "seal": self.campaign.seal,
            "run": self.run,
            "repeats": self.campaign.repeats,
            "status": self.status or ("completed" if over else "running"),
            "campaign": self.campaign.canonical(),
            "schedule": {
                "start": datetime.fromtimestamp(self.begins_s, UTC).isoformat(),
                "slot_s": schedule.slot_s,
                "choose_s": schedule.choose_s,
                "slots": self.campaign.design.slots,
            },
            "server_time": datetime.fromtimestamp(self.now_s(), UTC).isoformat(),
            "slots_closed": self.closed() - self.closed_less,
            "dimension": DIMENSION,
            "tensors": [{"name": name, "shape": list(s)} for name, s in SHAPES.items()],
            "ledger": {"entries": self.entries(), "head": self.head(self.entries())},
            "epoch": self.epoch,
            "next": self.next,
        }

    def handle(self, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> Reply:
        """Return the response to one request."""
        if self.override and (reply := self.override(method, path, headers, body)) is not None:
            return reply
        headers = {name.lower(): value for name, value in headers.items()}
        path, _, query = path.partition("?")
        bearer = headers.get("authorization", "").removeprefix("Bearer ") or None
        self.received.append((method, path))
        reply = self._routed(method, path, query, bearer, headers, body)
        self.answers[(method, reply.status)] += 1
        return reply

    def _routed(
        self,
        method: str,
        path: str,
        query: str,
        bearer: str | None,
        headers: dict[str, str],
        body: bytes,
    ) -> Reply:
        if path == "/campaigns":
            summary = {"id": self.id, "run": self.run, "status": self.view()["status"]}
            return said(200, campaigns=[summary], server_time=self.view()["server_time"])
        rest = path.removeprefix(f"/campaigns/{self.id}")
        if rest == path:
            return problem(404, "unknown-campaign")
        if rest == "":
            return said(200, **self.view())
        if found := re.fullmatch(r"/ledger/heads/(\d+)", rest):
            entries = int(found[1])
            if entries > self.entries():
                return problem(404, "unknown-entry")
            return said(200, entries=entries, head=self.head(entries))
        if rest == "/models/latest":
            return self._latest_model()
        if rest == "/enrolments":
            if method == "DELETE":
                return self._withdraw(bearer)
            return self._enrol(bearer, headers)
        asked = dict(parse_qsl(query))
        wait_s = float(asked.get("wait", 30))
        with_model = asked.get("model") == "true" and not self.is_older
        if found := re.fullmatch(r"/slots/(\d+)/check-ins", rest):
            return self._check_in(int(found[1]), bearer, wait_s=wait_s, with_model=with_model)
        if found := re.fullmatch(r"/check-ins/([\w.-]+)", rest):
            return self._outcome(found[1], wait_s, with_model=with_model)
        if found := re.fullmatch(r"/slots/(\d+)/model", rest):
            return self._model(int(found[1]), bearer)
        if found := re.fullmatch(r"/slots/(\d+)/report", rest):
            return self._report(int(found[1]), bearer, body)
        return problem(404, "unknown")

    def _enrol(self, bearer: str | None, headers: dict[str, str]) -> Reply:
        if self.secret is not None and bearer != self.secret:
            return problem(401, "not-enrolled")
        key = headers.get("idempotency-key")
        assert key, "a device sends a key"
        token = "t-" + hashlib.sha256(key.encode()).hexdigest()[:20]
        self.tokens[token] = key
        return said(201, token=token)

    def _withdraw(self, token: str | None) -> Reply:
        if token not in self.tokens:
            return problem(401, "not-enrolled")
        self.withdrawn.add(token)
        return Reply(204)

    def _check_in(self, slot: int, token: str | None, *, wait_s: float, with_model: bool) -> Reply:
        reply = self._receipt(slot, token)
        if reply.status == 202 and with_model:
            outcome = self._outcome(json.loads(reply.body)["receipt"], wait_s, with_model=True)
            return Reply(202, outcome.body, outcome.headers)
        return reply

    def _receipt(self, slot: int, token: str | None) -> Reply:
        if token not in self.tokens:
            return problem(401, "not-enrolled")
        now = self.now_s()
        if token in self.check_ins:
            here, receipt = self.check_ins[token]
            if here == slot and now < self.begin(slot + 1):
                return said(202, receipt=receipt)
            return problem(409, "refused")
        if token in self.withdrawn or now >= self.chosen_at(slot):
            return problem(409, "refused")
        if now < self.begin(slot) - 2.0:
            wait = str(self.begin(slot) - now)
            return problem(409, "too-early", Retry_After=wait)
        receipt = "r-" + hashlib.sha256(f"{token}/{slot}".encode()).hexdigest()[:20]
        self.check_ins[token] = (slot, receipt)
        return said(202, receipt=receipt)

    def _slot_of(self, receipt: str | None) -> int | None:
        for slot, given in self.check_ins.values():
            if given == receipt and self.now_s() < self.begin(slot + 1):
                return slot
        return None

    def _outcome(self, receipt: str, wait_s: float, *, with_model: bool) -> Reply:
        assert 0 <= wait_s <= 60
        slot = self._slot_of(receipt)
        if slot is not None and self.wait is not None:
            self.wait(wait_s, lambda: self.has_chosen(slot))
            slot = self._slot_of(receipt)
        if slot is None:
            return problem(404, "unknown-receipt")
        outcome = "waiting"
        if self.has_chosen(slot):
            outcome = "chosen" if self.choose(receipt) else "dismissed"
        if not with_model:
            return said(200, outcome=outcome, slot=slot)
        model = None
        if outcome == "chosen" and not self.model_is_large:
            model = b64encode(self._model(slot, receipt).body).decode()
        ends = datetime.fromtimestamp(self.begin(slot + 1), UTC).isoformat()
        return said(200, receipt=receipt, outcome=outcome, slot=slot, ends=ends, model=model)

    def _invited(self, slot: int, receipt: str | None) -> bool:
        here = self._slot_of(receipt)
        chosen = here is not None and self.has_chosen(here)
        return here == slot and chosen and self.choose(str(receipt))

    def _model(self, slot: int, receipt: str | None) -> Reply:
        if not self._invited(slot, receipt):
            return problem(409, "refused")
        return self._latest_model()

    def _latest_model(self) -> Reply:
        tensors = {"weights": self.model[:13], "bias": self.model[13:].reshape(())}
        return Reply(200, model_to_bytes(tensors, {"model_hash": "x"}))

    def _report(self, slot: int, receipt: str | None, body: bytes) -> Reply:
        if not self._invited(slot, receipt):
            return problem(409, "refused")
        report_from_bytes(body, dimension=DIMENSION)
        held = self.reports.setdefault((slot, str(receipt)), body)
        return said(200, status="taken") if held == body else problem(409, "refused")


Script = Callable[[int], str]


def transport(
    service: FakeService, clock: Clock, script: Script = lambda number: "fine"
) -> httpx.MockTransport:
    """A transport to the service; ``script`` gives the fault of each request by its number."""
    numbers = iter(range(10**6))

    def handle(request: httpx.Request) -> httpx.Response:
        clock.now += 0.01
        what = script(next(numbers))
        if what == "lost":
            raise httpx.ConnectError("nobody there")
        path = request.url.raw_path.decode()
        reply = service.handle(request.method, path, dict(request.headers), request.content)
        if what == "unanswered":
            raise httpx.ReadTimeout("too slow")
        return httpx.Response(reply.status, content=reply.body, headers=reply.headers)

    return httpx.MockTransport(handle)


@contextmanager
def on_a_socket(service: FakeService) -> Iterator[str]:
    """Serve on a free port, in real time."""
    lock = threading.Lock()

    def wait(most_s: float, done: Callable[[], bool]) -> None:
        lock.release()
        until = time.monotonic() + most_s
        while not done() and time.monotonic() < until:
            time.sleep(0.005)
        lock.acquire()

    service.wait = wait

    class OfService(Handler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            with lock:
                reply = service.handle(self.command, self.path, dict(self.headers), body)
            self.say(reply.status, reply.body, reply.headers)

    with http_server(OfService) as url:
        yield url
