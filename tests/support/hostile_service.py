"""A service on a socket that sends harmful responses: too large, too slow or without end."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache

MIB = 2**20
LONGEST_S = 20.0
"""Duration of a slow response, in seconds, after which a client without a limit fails its test."""
PAUSE_S = 0.02

Attack = Callable[[socket.socket, threading.Event], None]


def _drip(connection: socket.socket, over: threading.Event, data: Iterator[bytes]) -> None:
    for piece in data:
        connection.sendall(piece)
        if over.wait(PAUSE_S):
            return


@cache
def _bomb() -> bytes:
    return gzip.compress(b" " * (64 * MIB), compresslevel=9)


def bomb(connection: socket.socket, over: threading.Event) -> None:
    """Send 64 MiB of spaces, compressed to 64 KiB."""
    body = _bomb()
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)


def endless(connection: socket.socket, over: threading.Event) -> None:
    """Send 64 MiB in chunks."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    chunk = b"100000\r\n" + b" " * MIB + b"\r\n"
    for _ in range(64):
        connection.sendall(chunk)
    connection.sendall(b"0\r\n\r\n")


def announced(connection: socket.socket, over: threading.Event) -> None:
    """Announce 64 MB and send them."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 64000000\r\n\r\n")
    for _ in range(64):
        connection.sendall(b" " * 1_000_000)


def slow_head(connection: socket.socket, over: threading.Event) -> None:
    """Send header after header, slowly."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n")
    number = int(LONGEST_S / PAUSE_S)
    _drip(connection, over, (b"X-%d: y\r\n" % index for index in range(number)))
    connection.sendall(b"\r\n{}")


def slow_body(connection: socket.socket, over: threading.Event) -> None:
    """Send single bytes, each within the timeout of a read."""
    number = int(LONGEST_S / PAUSE_S)
    connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {number}\r\n\r\n".encode())
    _drip(connection, over, (b" " for _ in range(number)))


def slow_until_closed(connection: socket.socket, over: threading.Event) -> None:
    """Send single bytes without an announced length: the body ends with the connection."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}")
    _drip(connection, over, (b" " for _ in range(int(LONGEST_S / PAUSE_S))))


ATTACKS: Mapping[str, Attack] = {
    attack.__name__: attack
    for attack in (bomb, endless, announced, slow_head, slow_body, slow_until_closed)
}
LARGE = ("bomb", "endless", "announced")
"""Attacks that a client refuses at once because of their size."""


@contextmanager
def hostile(attack: Attack, honest: Mapping[str, bytes] | None = None) -> Iterator[str]:
    """Serve the attack at every path except those in ``honest``, which get their JSON."""
    over = threading.Event()

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            heard = b""
            while True:
                while b"\r\n\r\n" not in heard:
                    more = connection.recv(65_536)
                    if not more:
                        return
                    heard += more
                path = heard.split(b" ", 2)[1].decode()
                heard = heard.partition(b"\r\n\r\n")[2]
                if honest is None or path not in honest:
                    attack(connection, over)
                    return
                body = honest[path]
                head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n"
                connection.sendall(head.encode() + body)

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            over.set()
            server.shutdown(socket.SHUT_RDWR)
