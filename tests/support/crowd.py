"""Clients in a process of their own: the SDK's swarm, with a trainer that can be recognised.

    python -m tests.support.crowd URL CAMPAIGN --clients N --journal FILE [--state DIR]

Client k has learned the whole clip in the coordinate of its number. All that it does is noted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from checkins.client import fetch_campaign
from checkins.ledger.entry import hash_model
from checkins.swarm import Swarm, Tally
from tests.support.campaigns import update_of
from tests.support.forks import Forked
from tests.support.journal import Event, Note
from tests.support.raw_http import Address, request


@dataclass(frozen=True, slots=True)
class Crowd:
    """``clients`` clients with the numbers from ``first``, and where they note what they do."""

    url: str
    campaign: str
    clients: int
    journal: Path
    first: int = 0
    state: Path | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator[Forked]:
        """Run the process of the crowd; it ends once every client has finished."""
        process = self.start()
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdout.close()

    def start(self) -> Forked:
        command = [self.url, self.campaign]
        command += ["--clients", str(self.clients), "--first", str(self.first)]
        command += ["--journal", str(self.journal)]
        if self.state is not None:
            command += ["--state", str(self.state)]
        with self.complaints.open("ab") as errors:
            return Forked(command, module=__spec__.name, stderr=errors)

    @property
    def complaints(self) -> Path:
        """The standard error of its process."""
        return self.journal.with_suffix(".err")


def finished(crowd: Crowd, process: Forked, *, timeout_s: float) -> dict[str, int]:
    """Return the outcomes of the clients of a crowd; a client that failed fails the test.

    A client that came to be enrolled only after the last slot has not failed.
    """
    said = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, crowd.complaints.read_text()[-3000:]
    result: dict[str, dict[str, int]] = json.loads(said)
    outcomes = result["outcomes"]
    for why, count in result["failures"].items():
        assert " is over" in why, result
        outcomes["too late to enrol"] = outcomes.get("too late to enrol", 0) + count
    return outcomes


class Recognisable:
    """A trainer whose update identifies its client; records the hash of the model it was given."""

    def __init__(self, client: int, note: Any) -> None:
        self._client = client
        self._note = note

    def update(self, model: Mapping[str, Any]) -> Mapping[str, Any]:
        told = hash_model(np.asarray(model["weights"], dtype=np.float64))
        self._note(Note(self._client, Event.TRAINED, model_hash=told).line())
        return {"weights": update_of(self._client)}


async def _run(crowd: Crowd, *, retry_timeout_s: float) -> dict[str, Any]:
    view = fetch_campaign(crowd.url, crowd.campaign, retry_timeout_s=retry_timeout_s)
    tally = Tally()
    with crowd.journal.open("a", encoding="utf-8") as file:

        def write(line: str) -> None:
            file.write(line)  # one write: threads train, and lines must not mix
            file.flush()

        def note(fields: Mapping[str, object]) -> None:
            write(json.dumps({**fields, "client": crowd.first + int(str(fields["client"]))}) + "\n")

        swarm = Swarm(
            url=crowd.url,
            campaign=crowd.campaign,
            seal=view.seal,
            clients=crowd.clients,
            trainer=lambda client: Recognisable(crowd.first + client, write),
            state=crowd.state,
            journal=note,
            retry_timeout_s=retry_timeout_s,
        )
        await swarm.run(tally)
    return {
        "outcomes": dict(tally.outcomes),
        "failures": dict(tally.failures),
        "requests": tally.requests,
        "seconds": tally.seconds,
        "cpu_s": tally.cpu_s,
    }


@dataclass(slots=True)
class Line:
    """The persistent connection of one client."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def to(cls, address: Address) -> Line:
        return cls(*await asyncio.open_connection(*address))

    async def ask(self, raw: bytes) -> tuple[int, bytes]:
        """Return the status and the body of the response."""
        self.writer.write(raw)
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = next(
            (
                int(line.partition(b":")[2])
                for line in head.split(b"\r\n")
                if line.lower().startswith(b"content-length:")
            ),
            0,
        )
        return int(head[9:12]), await self.reader.readexactly(length)

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


@dataclass(frozen=True, slots=True)
class WaitResult:
    """The outcomes of all clients that waited for one slot, and their delays."""

    outcomes: Counter[str]
    """Clients by outcome; ``lost`` had no response, another status or another slot."""
    first_told_s: float
    last_told_s: float
    """Seconds from the choice until the first and the last client had its outcome."""
    left_s: float
    """Seconds from the choice to the end of the slot."""
    in_time: bool
    """Whether everyone had checked in before the choice."""

    @property
    def within_slot(self) -> bool:
        """Whether every client had its outcome before the end of the slot."""
        return self.last_told_s < self.left_s


async def wait_together(
    address: Address, campaign: str, *, clients: int, slot: int, enrolling: int = 64
) -> WaitResult:
    """Enrol, check in to one slot, and long-poll until every client has its outcome."""
    view = await campaign_view(address, campaign)
    tokens = await _enrol(address, campaign, clients=clients, lines=enrolling)
    choice = _choice(view, slot)
    left_s = float(view["schedule"]["slot_s"]) - float(view["schedule"]["choose_s"])
    told: list[float] = []
    checked_in: list[float] = []
    outcomes: Counter[str] = Counter()

    async def one(token: str) -> None:
        line = await _patiently(address)
        try:
            receipt = await _check_in(line, campaign, token, slot)
            checked_in.append(time.time())
            outcome = await _follow(line, campaign, receipt, slot)
        except Lost as lost:
            outcome = f"lost: {lost}"
        except (OSError, asyncio.IncompleteReadError, KeyError, ValueError):
            outcome = "lost"
        told.append(time.time() - choice)
        outcomes[outcome] += 1
        await line.close()

    await asyncio.gather(*(one(token) for token in tokens))
    in_time = len(checked_in) == clients and max(checked_in) < choice
    return WaitResult(outcomes, min(told), max(told), left_s, in_time)


async def campaign_view(address: Address, campaign: str) -> dict[str, Any]:
    line = await Line.to(address)
    status, body = await line.ask(request("GET", f"/campaigns/{campaign}"))
    await line.close()
    assert status == 200, body
    view: dict[str, Any] = json.loads(body)
    return view


async def _enrol(address: Address, campaign: str, *, clients: int, lines: int) -> list[str]:
    raw = request("POST", f"/campaigns/{campaign}/enrolments", body=b"", close=False)
    tokens: list[str] = []
    left: Iterator[int] = iter(range(clients))

    async def some() -> None:
        line = await Line.to(address)
        for _ in left:
            status, body = await line.ask(raw)
            assert status == 201, body
            tokens.append(json.loads(body)["token"])
        await line.close()

    await asyncio.gather(*(some() for _ in range(min(lines, clients))))
    return tokens


class Lost(Exception):
    """A client had an unexpected response."""


async def _check_in(line: Line, campaign: str, token: str, slot: int) -> str:
    """Check in one client; return its receipt."""
    path = f"/campaigns/{campaign}/slots/{slot}/check-ins"
    status, body = await line.ask(request("POST", path, token=token, body=b"", close=False))
    if status != 202:
        raise Lost(f"{status} {body[:200]!r}")
    return str(json.loads(body)["receipt"])


async def _follow(line: Line, campaign: str, receipt: str, slot: int) -> str:
    """Long-poll for one client until it has its outcome."""
    raw = request("GET", f"/campaigns/{campaign}/check-ins/{receipt}?wait=60", close=False)
    while True:
        status, body = await line.ask(raw)
        if status != 200:
            raise Lost(f"{status} {body[:200]!r}")
        answer = json.loads(body)
        if answer["slot"] != slot:
            raise Lost(f"told about slot {answer['slot']}")
        if answer["outcome"] != "waiting":
            return str(answer["outcome"])


async def _patiently(address: Address) -> Line:
    """Connect, again if thousands of clients overflow the queue of the listening socket."""
    for _ in range(5):
        with contextlib.suppress(ConnectionError):
            return await Line.to(address)
        await asyncio.sleep(0.2)
    return await Line.to(address)


def _choice(view: dict[str, Any], slot: int) -> float:
    """Return the time of the choice of a slot, on the clock of this machine."""
    schedule = view["schedule"]
    start = datetime.fromisoformat(schedule["start"]).timestamp()
    return start + (slot - 1) * float(schedule["slot_s"]) + float(schedule["choose_s"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("campaign")
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--state", type=Path)
    parser.add_argument("--patience", type=float, default=600.0)
    given = parser.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    crowd = Crowd(given.url, given.campaign, given.clients, given.journal, given.first, given.state)
    print(json.dumps(asyncio.run(_run(crowd, retry_timeout_s=given.patience))))


if __name__ == "__main__":
    main()
