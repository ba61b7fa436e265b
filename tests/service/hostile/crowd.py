"""Many clients at once, each on a connection of its own, who wait for the choice of one slot."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tests.service.hostile.wire import Address, request


@dataclass(slots=True)
class Line:
    """One kept connection of one client."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def to(cls, address: Address) -> Line:
        return cls(*await asyncio.open_connection(*address))

    async def ask(self, raw: bytes) -> tuple[int, bytes]:
        """Status and body of the answer."""
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
class Crowd:
    """What became of all clients of a slot."""

    outcomes: Counter[str]
    """How many were told what; ``lost`` had no answer, another status or another slot."""
    first_told_s: float
    last_told_s: float
    """Seconds after the choice until the first and the last client knew."""
    left_s: float
    """Seconds from the choice to the end of the slot."""
    in_time: bool
    """Whether everyone had checked in before the choice."""

    @property
    def within_slot(self) -> bool:
        """Whether everyone knew before the end of the slot."""
        return self.last_told_s < self.left_s


async def wait_together(
    address: Address, campaign: str, *, clients: int, slot: int, enrolling: int = 64
) -> Crowd:
    """Enrol, check in to one slot, and long-poll until every client knows."""
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
    return Crowd(outcomes, min(told), max(told), left_s, in_time)


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
    """A client had another answer than it should."""


async def _check_in(line: Line, campaign: str, token: str, slot: int) -> str:
    """The receipt of one client."""
    path = f"/campaigns/{campaign}/slots/{slot}/check-ins"
    status, body = await line.ask(request("POST", path, token=token, body=b"", close=False))
    if status != 202:
        raise Lost(f"{status} {body[:200]!r}")
    return str(json.loads(body)["receipt"])


async def _follow(line: Line, campaign: str, receipt: str, slot: int) -> str:
    """One client from its check-in until it knows."""
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
    """Thousands who connect in the same moment can outgrow the queue of the listening socket."""
    for _ in range(5):
        with contextlib.suppress(ConnectionError):
            return await Line.to(address)
        await asyncio.sleep(0.2)
    return await Line.to(address)


def _choice(view: dict[str, Any], slot: int) -> float:
    """When the choice of a slot is made, on the clock that both sides share here."""
    schedule = view["schedule"]
    start = datetime.fromisoformat(schedule["start"]).timestamp()
    return start + (slot - 1) * float(schedule["slot_s"]) + float(schedule["choose_s"])
