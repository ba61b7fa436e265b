"""HTTP/1.1 for a swarm: thousands of requests under way, a tenth of a millisecond each.

httpx takes ten times as long, and longer the more connections it has. This speaks just enough of
the protocol for one service at one address: no proxies, no redirects, no compression.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from urllib.parse import urlsplit

from checkins.client.actions import Request
from checkins.client.answers import check_encoding, check_length, check_size

CONNECT_S = 10.0
IDLE_S = 3.0
"""An idle connection is given up before the service does it, or a request could meet its end."""
LONGEST_HEAD = 65_536


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as it came; names of headers in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Connections:
    """Kept connections to one service; as many as there are requests under way."""

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
        """Send it once and read the answer; raises OSError or EOFError if none comes.

        A kept connection may turn out to be closed: then it is sent on a new one, which does no
        harm since the service takes every request any number of times.
        """
        async with asyncio.timeout(request.timeout_s):
            kept = self._kept()
            if kept is not None:
                try:
                    return await self._exchange(request, *kept)
                except TimeoutError:
                    raise
                except (OSError, EOFError):
                    pass
            return await self._exchange(request, *await self._connect())

    def _kept(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
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
                self._host, self._port, ssl=self._ssl, limit=LONGEST_HEAD
            )

    async def _exchange(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Reply:
        keep = False
        try:
            writer.write(self._bytes(request))
            reply, keep = await _read(reader, request.most_bytes)
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
        """Close what is idle."""
        while self._idle:
            _, _, writer = self._idle.pop()
            writer.close()


async def _read(reader: asyncio.StreamReader, most_bytes: int) -> tuple[Reply, bool]:
    """One answer, and whether the connection can be used again; raises beyond its limits."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.LimitOverrunError as error:
        raise OSError("the head of an answer is too long") from error
    first, *lines = head.split("\r\n")[:-2]
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise OSError("this is not HTTP")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    status = int(rest[:3])
    check_encoding(headers.get("content-encoding"))
    check_length(headers.get("content-length"), most_bytes)
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = await _chunks(reader, most_bytes)
    elif status == 204:
        body = b""
    else:
        length = headers.get("content-length", "")
        if not length.isdigit():
            raise OSError("an answer says no length")
        body = await reader.readexactly(int(length))
    keep = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
    return Reply(status, headers, body), keep


async def _chunks(reader: asyncio.StreamReader, most_bytes: int) -> bytes:
    parts: list[bytes] = []
    total = 0
    while True:
        size = int((await reader.readline()).partition(b";")[0], 16)
        if size < 0:
            raise OSError("a part of an answer has no size")
        total += size
        check_size(total, most_bytes)
        chunk = await reader.readexactly(size + 2)
        if size == 0:
            return b"".join(parts)
        parts.append(chunk[:-2])
