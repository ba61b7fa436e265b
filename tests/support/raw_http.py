"""HTTP as bytes on a socket: requests that no client library sends, and their responses."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.waiting import PATIENCE_S

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Answer:
    """One response, read to its end."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def problem(self) -> str:
        """The slug of a problem (RFC 9457); empty if the response is none."""
        if self.headers.get("content-type", "").partition(";")[0] != "application/problem+json":
            return ""
        told = self.json()
        wanted = {"type": str, "title": str, "status": int, "detail": str}
        if not all(isinstance(told.get(name), kind) for name, kind in wanted.items()):
            return ""
        if told["status"] != self.status or not told["detail"] or not told["title"]:
            return ""
        kind = str(told["type"])
        return kind.removeprefix("urn:checkins:") if kind.startswith("urn:checkins:") else ""


def request(
    method: str,
    path: str,
    *,
    token: str | None = None,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    close: bool = True,
) -> bytes:
    """The bytes of a request; ``path`` is sent unchanged."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    if token is not None:
        lines.append(f"Authorization: Bearer {token}")
    if body is not None and not any(n.lower() == "transfer-encoding" for n in headers or ()):
        lines.append(f"Content-Length: {len(body)}")
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if close:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def exchange(address: Address, *pieces: bytes, retry_timeout_s: float = PATIENCE_S) -> list[Answer]:
    """Send the pieces, read until the service closes the connection; all whole answers.

    A service may answer and close before it has read everything: what it sent still counts.
    """
    with socket.create_connection(address, timeout=retry_timeout_s) as connection:
        try:
            for piece in pieces:
                connection.sendall(piece)
        except (BrokenPipeError, ConnectionResetError):
            pass
        return list(answers(read_all(connection)))


def read_all(connection: socket.socket) -> bytes:
    """Read until the other side closes or resets the connection."""
    received = bytearray()
    try:
        while piece := connection.recv(65536):
            received += piece
    except ConnectionResetError:
        pass
    return bytes(received)


def ask(address: Address, raw: bytes) -> Answer:
    """Return the single response to a request that closes the connection."""
    found = exchange(address, raw)
    assert len(found) == 1, f"{len(found)} answers to {raw[:200]!r}"
    return found[0]


def answers(received: bytes) -> Iterable[Answer]:
    """Every complete response in the bytes, without interim ones."""
    rest = received
    while rest:
        head, blank, rest = rest.partition(b"\r\n\r\n")
        if not blank:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        assert first.startswith("HTTP/1.1 "), first
        status = int(first.split(" ")[1])
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        if 100 <= status < 200:
            continue
        if "content-length" in headers:
            length = int(headers["content-length"])
            body, rest = rest[:length], rest[length:]
        elif headers.get("transfer-encoding", "").lower() == "chunked":
            body, rest = _unchunked(rest)
        else:
            body, rest = (b"", rest) if status in (204, 304) else (rest, b"")
        yield Answer(status, headers, body)


def _unchunked(data: bytes) -> tuple[bytes, bytes]:
    body = bytearray()
    while True:
        size, _, data = data.partition(b"\r\n")
        length = int(size.partition(b";")[0], 16)
        body += data[:length]
        data = data[length + 2 :]
        if length == 0:
            return bytes(body), data


def chunked(pieces: Iterable[bytes]) -> Iterable[bytes]:
    """Encode pieces as the chunks of a body, with its end."""
    for piece in pieces:
        yield b"%x\r\n%s\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"
