"""An HTTP/1.1 client for load tests, with thousands of concurrent requests.

A request takes about 0.1 ms of CPU time. httpx takes ten times as long, and longer with more
connections. This client talks to one service at one address, without proxies, redirects or
compression.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from urllib.parse import urlsplit

from checkins.client.actions import Request
from checkins.client.bounded_http import check_encoding, check_length, check_size

CONNECT_S = 10.0
"""Longest time in seconds to open a connection."""
IDLE_S = 3.0
"""Seconds after which an idle connection is closed. The service closes it later."""
MAX_HEAD_BYTES = 65_536
"""Largest size in bytes of the status line and headers of a response."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A raw response. The names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Connections:
    """A pool of keep-alive connections to one service. Each carries one request at a time."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if secure else 80)
        self._ssl = ssl.create_default_context() if secure else None
        self._prefix = parts.path.rstrip("/")
        shown = f"[{self._host}]" if ":" in self._host else self._host
        named = {"Host": f"{shown}:{self._port}" if parts.port else shown, **headers}
        self._head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        self._idle: list[tuple[float, asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def send(self, request: Request) -> Reply:
        """Send a request and return the reply; raise OSError or EOFError if none comes.

        If a reused connection turns out to be closed, the request is sent again on a new
        connection. This is safe because every request to the service is idempotent.
        """
        async with asyncio.timeout(request.timeout_s):
            idle = self._idle_connection()
            if idle is not None:
                try:
                    return await self._exchange(request, *idle)
                except TimeoutError:
                    raise
                except (OSError, EOFError):
                    pass
            return await self._exchange(request, *await self._connect())

    def _idle_connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        oldest = monotonic() - IDLE_S
        while self._idle:
            since, reader, writer = self._idle.pop()
            if since >= oldest and not reader.at_eof():
                return reader, writer
            writer.close()
        return None

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with asyncio.timeout(CONNECT_S):
            return await asyncio.open_connection(
                self._host, self._port, ssl=self._ssl, limit=MAX_HEAD_BYTES
            )

    async def _exchange(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Reply:
        keep = False
        try:
            writer.write(self._bytes(request))
            reply, keep = await _read(reader, request.max_bytes)
            return reply
        finally:
            if keep:
                self._idle.append((monotonic(), reader, writer))
            else:
                writer.close()

    def _bytes(self, request: Request) -> bytes:
        head = f"{request.method} {self._prefix}{request.path} HTTP/1.1\r\n{self._head}"
        head += "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
        body = request.body or b""
        if body or request.method in ("POST", "PUT"):
            head += f"Content-Length: {len(body)}\r\n"
        return head.encode("latin-1") + b"\r\n" + body

    async def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            _, _, writer = self._idle.pop()
            writer.close()


async def _read(reader: asyncio.StreamReader, max_bytes: int) -> tuple[Reply, bool]:
    """Return one reply and whether the connection can be reused.

    Raises ``ResponseRejected`` if the reply exceeds a limit, and OSError if it is not HTTP.
    """
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.LimitOverrunError as error:
        raise OSError("the head of the response is too long") from error
    first, *lines = head.split("\r\n")[:-2]
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise OSError("the response is not HTTP")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    status = int(rest[:3])
    check_encoding(headers.get("content-encoding"))
    check_length(headers.get("content-length"), max_bytes)
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = await _chunks(reader, max_bytes)
    elif status == 204:
        body = b""
    else:
        length = headers.get("content-length", "")
        if not length.isdigit():
            raise OSError("the response has no length")
        body = await reader.readexactly(int(length))
    keep = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
    return Reply(status, headers, body), keep


async def _chunks(reader: asyncio.StreamReader, max_bytes: int) -> bytes:
    chunks: list[bytes] = []
    total = 0
    while True:
        size = int((await reader.readline()).partition(b";")[0], 16)
        if size < 0:
            raise OSError("a chunk of the response has no size")
        total += size
        check_size(total, max_bytes)
        chunk = await reader.readexactly(size + 2)
        if size == 0:
            return b"".join(chunks)
        chunks.append(chunk[:-2])
