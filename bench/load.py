"""Generate load for an HTTP service: a process sends prepared requests on open connections.

The program reads an ``Order`` as JSON from standard input and writes a ``Found`` as JSON to
standard output. Each connection has one request in progress at a time. A response is read up to its
Content-Length.

    python -m bench.load < order.json
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Order:
    """The requests to send: one for each of ``values``, which replaces ``{}`` in ``head``.

    ``head`` is a whole request without a body. If ``keep`` is True, the bodies of the responses are
    returned, in the order of the values.
    """

    host: str
    port: int
    connections: int
    head: str
    values: Sequence[str]
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """Responses per second, latencies in seconds, and the number of responses by status."""

    rate: float
    p50_s: float
    p99_s: float
    longest_s: float
    statuses: dict[str, int]
    bodies: list[str]


def send(order: Order) -> Found:
    """Send the requests from a separate process."""
    ended = subprocess.run(
        [sys.executable, "-m", "bench.load"],
        input=json.dumps(asdict(order)),
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).resolve().parents[1],
    )
    return Found(**json.loads(ended.stdout))


class Connection(asyncio.Protocol):
    """A connection that sends the next request as soon as the last response has arrived."""

    __slots__ = ("began", "buffer", "number", "run", "transport")

    def __init__(self, run: Run) -> None:
        self.run = run
        self.buffer = b""
        self.number = -1
        self.began = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def next(self) -> None:
        self.number = next(self.run.numbers, -1)
        if self.number < 0:
            self.transport.close()
            return
        self.began = time.perf_counter()
        self.transport.write(self.run.requests[self.number])

    def data_received(self, data: bytes) -> None:
        if self.buffer:
            data = self.buffer + data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            self.buffer = data
            return
        whole = end + 4 + self.run.length_of(data[:end])
        if len(data) < whole:
            self.buffer = data
            return
        self.buffer = b""
        self.run.answered(self.number, time.perf_counter() - self.began, data[:whole], end + 4)
        self.next()

    def connection_lost(self, error: Exception | None) -> None:
        if self.number >= 0 and not self.run.done.done():
            self.run.done.set_exception(error or ConnectionError("the service closed a connection"))


class Run:
    """All connections of one order, and the responses."""

    def __init__(self, order: Order, done: asyncio.Future[None]) -> None:
        self.requests = [order.head.replace("{}", value).encode() for value in order.values]
        self.numbers: Iterator[int] = iter(range(len(self.requests)))
        self.done = done
        self.latencies: list[float] = []
        self.statuses: Counter[bytes] = Counter()
        self.bodies = [""] * len(self.requests) if order.keep else None

    def length_of(self, head: bytes) -> int:
        """Return the length of the body. Chunked responses are not supported."""
        at = head.lower().index(b"content-length:") + 15
        return int(head[at:].split(b"\r\n", 1)[0])

    def answered(self, number: int, latency: float, whole: bytes, body_at: int) -> None:
        self.latencies.append(latency)
        self.statuses[whole[9:12]] += 1
        if self.bodies is not None:
            self.bodies[number] = whole[body_at:].decode()
        if len(self.latencies) == len(self.requests) and not self.done.done():
            self.done.set_result(None)


async def _run(order: Order) -> Found:
    loop = asyncio.get_running_loop()
    run = Run(order, loop.create_future())
    connections = []
    for _ in range(min(order.connections, len(order.values))):
        made = await loop.create_connection(lambda: Connection(run), order.host, order.port)
        connections.append(made[1])
    gc.collect()
    gc.freeze()
    began = time.perf_counter()
    for connection in connections:
        connection.next()
    await run.done
    seconds = time.perf_counter() - began
    latencies = sorted(run.latencies)
    return Found(
        rate=len(latencies) / seconds,
        p50_s=latencies[len(latencies) // 2],
        p99_s=latencies[int(0.99 * len(latencies))],
        longest_s=latencies[-1],
        statuses={status.decode(): count for status, count in run.statuses.items()},
        bodies=run.bodies or [],
    )


def main() -> None:
    order = Order(**json.load(sys.stdin))
    try:
        from uvloop import new_event_loop
    except ImportError:
        from asyncio import new_event_loop
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        json.dump(asdict(runner.run(_run(order))), sys.stdout)


if __name__ == "__main__":
    main()
