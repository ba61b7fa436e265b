"""Compare the rate of durable check-ins with a bare endpoint, and measure waiting times."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.load import Found, Order, send
from bench.measure import Section
from tests.support.campaigns import long_campaign
from tests.support.coordinator import UNLIMITED, Coordinator, serving
from tests.support.crowd import wait_together
from tests.support.postgres import open_postgres

LEAST = 0.4
"""Least share of the rate of the bare endpoint."""
CONNECTIONS, ROUNDS, PER_ROUND = 256, 7, 8_000
CROWD = 5_000
UVICORN: dict[str, Any] = {
    "http": "httptools",
    "loop": "uvloop",
    "ws": "none",
    "timeout_keep_alive": 75,
    "server_header": False,
    "date_header": False,
}
"""Settings of uvicorn in ``checkins.service.server``. The bare endpoint has the same."""
HEAD = "POST {path} HTTP/1.1\r\nHost: bench\r\n{header}\r\nContent-Length: 0\r\n\r\n"


@dataclass(slots=True)
class Side:
    """A service to compare, and the result of each round."""

    name: str
    host: str
    port: int
    path: str
    tokens: list[list[str]] = field(default_factory=list)
    found: list[Found] = field(default_factory=list)

    def measure(self, number: int) -> None:
        head = HEAD.format(path=self.path, header="Authorization: Bearer {}")
        found = send(Order(self.host, self.port, CONNECTIONS, head, self.tokens[number]))
        if found.statuses != {"202": PER_ROUND}:
            raise RuntimeError(f"{self.name}: not every check-in was taken: {found.statuses}")
        self.found.append(found)

    def share_of(self, bare: Side) -> float:
        """Return the median ratio to the bare rate of the same round."""
        return median(a.rate / b.rate for a, b in zip(self.found, bare.found, strict=True))

    def row(self, bare: Side) -> list[str]:
        return [
            self.name,
            f"{median(one.rate for one in self.found):,.0f}",
            f"{max(one.rate for one in self.found):,.0f}",
            f"{100 * self.share_of(bare):.0f} %",
            f"{1e3 * median(one.p50_s for one in self.found):.1f} ms",
            f"{1e3 * median(one.p99_s for one in self.found):.1f} ms",
        ]


@contextmanager
def bare(name: str, **options: Any) -> Iterator[Side]:
    """Run the endpoint that does nothing in a separate process."""
    command = [sys.executable, "-m", "bench.bare_service", json.dumps(options)]
    root = Path(__file__).resolve().parents[1]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        try:
            assert process.stdout is not None
            side = Side(name, "127.0.0.1", int(process.stdout.readline()), "/check-ins")
            side.tokens = [[f"{one:032x}" for one in range(PER_ROUND)]] * ROUNDS
            yield side
        finally:
            process.terminate()


@contextmanager
def ours(name: str, folder: Path, store: str | None = None) -> Iterator[Side]:
    """Run `checkins serve` in its first slot, with the tokens of all clients that check in."""
    folder.mkdir()
    text = long_campaign("bench", slots=10, slot_s=7200.0, choose_s=7000.0)
    with serving(folder, text, *UNLIMITED, store=store) as running:
        host, port = running.address
        side = Side(name, host, port, f"/campaigns/{running.campaign}/slots/1/check-ins")
        for number in range(ROUNDS):
            side.tokens.append(_enrolled(running, number))
        yield side


def _enrolled(running: Coordinator, number: int) -> list[str]:
    host, port = running.address
    path = f"/campaigns/{running.campaign}/enrolments"
    head = HEAD.format(path=path, header="Idempotency-Key: bench-{}")
    keys = [f"{number}-{one:08d}" for one in range(PER_ROUND)]
    found = send(Order(host, port, CONNECTIONS, head, keys, keep=True))
    if found.statuses != {"201": PER_ROUND}:
        raise RuntimeError(f"not everyone was enrolled: {found.statuses}")
    return [json.loads(body)["token"] for body in found.bodies]


def check_ins() -> Section:
    """Measure all services in turn in each round, so that they share the machine's state."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(open_postgres())
        sides = [
            stack.enter_context(bare("one endpoint of FastAPI that does nothing", **UVICORN)),
            stack.enter_context(ours("**checkins**, SQLite, synchronous FULL", folder / "sqlite")),
            stack.enter_context(
                ours("**checkins**, PostgreSQL, fsync on", folder / "postgres", cluster.create())
            ),
            stack.enter_context(
                bare("a socket that answers anything: the load's own limit", empty=True)
            ),
        ]
        for number in range(ROUNDS):
            for side in sides:
                side.measure(number)
        rows = [side.row(sides[0]) for side in sides]
        holds = all(side.share_of(sides[0]) >= LEAST for side in sides[1:3])
    return Section(
        "The service: check-ins acknowledged durably",
        f"At least {100 * LEAST:.0f}% of the requests per second of a bare endpoint with the same"
        f" uvicorn settings. Each has one worker and {CONNECTIONS} connections with one request at"
        f" a time. The values are medians of {ROUNDS} rounds of {PER_ROUND:,} requests.",
        holds,
        ("service", "requests a second", "best round", "of the bare", "p50", "p99"),
        rows,
    )


def waiting() -> Section:
    """Measure how long after the selection all waiting clients have received it."""
    choose_s = 40.0
    text = long_campaign("crowd", slots=3, slot_s=2 * choose_s, choose_s=choose_s, capacity=64)
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder), text, *UNLIMITED) as running,
    ):
        crowd = asyncio.run(wait_together(running.address, running.campaign, clients=CROWD, slot=1))
    lost = CROWD - crowd.outcomes["chosen"] - crowd.outcomes["dismissed"]
    row = [f"{CROWD:,}", str(lost), f"{crowd.first_told_s:.2f} s", f"{crowd.last_told_s:.2f} s"]
    return Section(
        f"The service: {CROWD:,} clients wait for one slot",
        "Every client receives its outcome. There is one worker with SQLite, and one connection for"
        " each client. Times are in seconds after the choice.",
        lost == 0,
        ("clients", "lost", "the first knows after", "the last knows after"),
        [row],
    )
