"""Bytes that arrive at a public address sooner or later: not HTTP, nearly HTTP, and too much of it.

What is meant to be read as one request holds another one behind it where a careless reader could
be made to see two: ``SMUGGLED`` must never be answered.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterator
from itertools import repeat

from tests.support.raw_http import request

SMUGGLED = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
BOMB = gzip.compress(bytes(10_000_000), 9)
MIB = 2**20


def _post(*lines: str, body: bytes = b"", path: str = "/campaigns/x/enrolments") -> bytes:
    head = [f"POST {path} HTTP/1.1", "Host: localhost", *lines, "", ""]
    return "\r\n".join(head).encode("latin-1") + body


def _get(*lines: str | bytes, first: str | bytes = "GET /healthz HTTP/1.1") -> bytes:
    parts = [first, "Host: localhost", *lines, "Connection: close", "", ""]
    return b"\r\n".join(p if isinstance(p, bytes) else p.encode("latin-1") for p in parts)


def garbage() -> dict[str, bytes]:
    """No HTTP request at all: an answer of 400 at most, and the connection is closed."""
    noise = random.Random(1)
    return {
        "random bytes": noise.randbytes(5_000),
        "random bytes with ends of lines": noise.randbytes(2_000) + b"\r\n\r\n",
        "zeros": bytes(2_000) + b"\r\n\r\n",
        "a TLS hello": bytes.fromhex("16030100c5010000c10303") + noise.randbytes(186),
        "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(50),
        "SSH": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        "a mail": b"EHLO localhost\r\nMAIL FROM:<a@b>\r\n\r\n",
        "a request of 1991": b"GET /\r\n\r\n",
        "no method": b" / HTTP/1.1\r\n\r\n",
        "no path": b"GET  HTTP/1.1\r\nHost: x\r\n\r\n",
        "a version that does not exist": b"GET / HTTP/9.7\r\nHost: x\r\n\r\n",
        "a method of a megabyte": b"A" * MIB + b" / HTTP/1.1\r\n\r\n",
        "a header without a name": b"GET / HTTP/1.1\r\nHost: x\r\n: y\r\n\r\n",
        "a header without a colon": b"GET / HTTP/1.1\r\nHost: x\r\nnonsense\r\n\r\n",
        "a header with NUL": b"GET / HTTP/1.1\r\nHost: x\r\nA: \0\r\n\r\n",
        "a header name with a blank": b"GET / HTTP/1.1\r\nHost: x\r\nA : b\r\n\r\n",
        "a path with NUL": b"GET /\0 HTTP/1.1\r\nHost: x\r\n\r\n",
        "a path with a blank": b"GET /a b c HTTP/1.1\r\nHost: x\r\n\r\n",
        "only ends of lines, then noise": b"\r\n" * 50 + noise.randbytes(100) + b"\r\n\r\n",
        "carriage returns": b"\r" * 3_000 + b"\n\n",
    }


def smuggling() -> dict[str, bytes]:
    """Lengths that two readers could read differently; nothing behind them may be answered."""
    return {
        "two lengths": _post("Content-Length: 0", f"Content-Length: {len(SMUGGLED)}") + SMUGGLED,
        "a length and chunks": _post(
            "Content-Length: 5", "Transfer-Encoding: chunked", body=b"0\r\n\r\n"
        )
        + SMUGGLED,
        "chunks and a length": _post(
            "Transfer-Encoding: chunked", f"Content-Length: {5 + len(SMUGGLED)}", body=b"0\r\n\r\n"
        )
        + SMUGGLED,
        "a length with a sign": _post("Content-Length: +0") + SMUGGLED,
        "a length below zero": _post("Content-Length: -1") + SMUGGLED,
        "a length in hexadecimal": _post("Content-Length: 0x0") + SMUGGLED,
        "a list of lengths": _post(f"Content-Length: 0, {len(SMUGGLED)}") + SMUGGLED,
        "a length of two numbers": _post("Content-Length: 0 0") + SMUGGLED,
        "a length beyond 64 bits": _post(f"Content-Length: {2**64}") + SMUGGLED,
        "an empty length": _post("Content-Length: ") + SMUGGLED,
        "a length before a colon with a blank": _post("Content-Length : 0") + SMUGGLED,
        "chunks that are not the last coding": _post("Transfer-Encoding: chunked, identity")
        + SMUGGLED,
        "an unknown coding": _post("Transfer-Encoding: xchunked") + SMUGGLED,
        "a coding with a blank": _post("Transfer-Encoding : chunked", body=b"0\r\n\r\n") + SMUGGLED,
        "a coding behind a tab": _post("Transfer-Encoding:\x0bchunked", body=b"0\r\n\r\n")
        + SMUGGLED,
        "two codings": _post(
            "Transfer-Encoding: chunked", "Transfer-Encoding: identity", body=b"0\r\n\r\n"
        )
        + SMUGGLED,
        "a chunk of no number": _post("Transfer-Encoding: chunked", body=b"zz\r\n\r\n") + SMUGGLED,
        "a chunk below zero": _post("Transfer-Encoding: chunked", body=b"-1\r\n\r\n") + SMUGGLED,
        "a chunk beyond 64 bits": _post("Transfer-Encoding: chunked", body=b"f" * 17 + b"\r\n")
        + SMUGGLED,
        "a chunk longer than it says": _post(
            "Transfer-Encoding: chunked", body=b"1\r\nabc\r\n0\r\n\r\n"
        )
        + SMUGGLED,
        "a header over two lines": _post("Content-Length: 0", " 10", "A: b") + SMUGGLED,
    }


def odd_paths(campaign: str) -> dict[str, str]:
    """Paths that lead nowhere; what they name in the file system must not be shown."""
    return {
        "up": "/../../../../etc/passwd",
        "up, in hexadecimal": "/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "up from the page": "/page/../../../pyproject.toml",
        "up from the page, in hexadecimal": "/page/%2e%2e/settings.py",
        "up from the page, slashes too": "/page/..%2f..%2fsettings.py",
        "up from the page, twice encoded": "/page/%252e%252e%252fsettings.py",
        "up from the page, backslashes": "/page/..\\..\\settings.py",
        "an absolute path in the page": "/page//etc/passwd",
        "an encoded absolute path": "/page/%2fetc%2fpasswd",
        "a file with NUL": "/page/page.css%00.py",
        "the folder of the page": "/page/",
        "another file of the page": "/page/__init__.py",
        "NUL": "/%00",
        "a campaign of NUL": "/campaigns/%00",
        "a campaign with NUL in it": f"/campaigns/{campaign}%00",
        "a campaign that is no text": "/campaigns/%ff%fe%80",
        "a campaign of a surrogate": "/campaigns/%ed%a0%80",
        "a campaign of dots": "/campaigns/..",
        "a campaign of dots, encoded": "/campaigns/%2e%2e",
        "a campaign of a quote": "/campaigns/'%20OR%201=1--",
        "a long campaign": "/campaigns/" + "a" * 5_000,
        "a campaign of many parts": "/campaigns/" + "a/" * 2_000,
        "a new line": "/campaigns/%0d%0aX-Injected:%20yes",
        "a new line in a receipt": f"/campaigns/{campaign}/check-ins/%0d%0aX-Injected:%20y?wait=0",
        "a receipt of NUL": f"/campaigns/{campaign}/check-ins/%00?wait=0",
        "a receipt of no text": f"/campaigns/{campaign}/check-ins/%ff?wait=0",
        "no receipt": f"/campaigns/{campaign}/check-ins/?wait=0",
        "a doubled slash": f"//campaigns//{campaign}",
        "broken hexadecimal": "/campaigns/%zz%1",
        "a script": "/campaigns/<script>alert(1)</script>",
        "a route that does not exist": "/admin",
        "the documentation's own pages": "/docs/oauth2-redirect/x",
    }


SLOTS = [
    *("-1", "0", "101", "102", str(2**31), str(2**63 - 1), str(2**63), str(2**64), "9" * 40),
    *("9" * 4_300, "9" * 5_000, "1.5", "1e3", "0x1", "1,5", "--1", "-", "~"),
    *("NaN", "Infinity", "true", "null", "'", "%20", "%00", "1%00", "%D9%A3", "%C2%B2"),
]
"""As the number of a slot, where 1 to 100 exist."""

WAITS = ["-1", "61", "1e9", "nan", "inf", "-inf", "", "x", "9" * 400, "9" * 5_000, "1%00", "%ff"]

AFTERS = ["-1", "1.5", "nan", "x", "%00", str(2**63), str(2**64), "9" * 40, "9" * 5_000]


def odd_heads() -> dict[str, bytes]:
    """Heads that are HTTP and more of it than anyone needs: refused, or answered as if plain."""
    return {
        "a thousand headers": _get(*(f"X-{number}: y" for number in range(1_000))),
        "five thousand headers": _get(*(f"X-{number}: y" for number in range(5_000))),
        "one name a thousand times": _get(*repeat("Cookie: a=b", 1_000)),
        "a header of a megabyte": _get("X: " + "y" * MIB),
        "a name of a megabyte": _get("X" * MIB + ": y"),
        "a path of a megabyte": _get(first="GET /" + "a" * MIB + " HTTP/1.1"),
        "a question of a megabyte": _get(first="GET /healthz?" + "a=b&" * (MIB // 4) + " HTTP/1.1"),
        "a host of no text": _get(b"Host: \xff\xfe"),
        "two hosts": _get("Host: evil"),
        "another host in the line": _get(first="GET http://evil/healthz HTTP/1.1"),
        "a star": _get(first="GET * HTTP/1.1"),
        "an unknown method": _get(first="FROB /healthz HTTP/1.1"),
        "a method in small letters": _get(first="get /healthz HTTP/1.1"),
        "TRACE": _get(first="TRACE /healthz HTTP/1.1"),
        "CONNECT": _get(first="CONNECT evil:443 HTTP/1.1"),
        "OPTIONS": _get(first="OPTIONS * HTTP/1.1"),
        "a web socket": _get(
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        ),
        "an upgrade to HTTP/2": _get("Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"),
        "an expectation that nobody knows": _get("Expect: the-spanish-inquisition"),
        "a range": _get("Range: bytes=0-0,1-1,2-2,3-3,4-99999999999999999999"),
        "a date that is none": _get("If-Modified-Since: yesterday", 'If-None-Match: "\\"'),
    }


AUTHORIZATIONS = [
    b"",
    b"Bearer",
    b"Bearer ",
    b"Bearer  ",
    b"Basic b3BlcmF0b3I6b3BlcmF0b3I=",
    b"Bearer \xff\xfe",
    b"Bearer a b c",
    b"bearer x",
    b"Bearer " + b"a" * 20_000,
    b"Bearer ' OR 1=1 --",
    b"Bearer x\r\nAuthorization: Bearer y",
    b"Digest username=x",
]


def endless_head() -> Iterator[bytes]:
    """A request whose headers never end."""
    yield b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
    for number in range(20_000):
        yield b"X-%d: %s\r\n" % (number, b"y" * 1_000)


def endless_chunks(path: str, token: str, *, method: str = "PUT") -> Iterator[bytes]:
    """A body in chunks that never ends: 100 MB are sent if nobody stops it."""
    head = {"Transfer-Encoding": "chunked", "Content-Type": "application/octet-stream"}
    yield request(method, path, token=token, body=b"", headers=head)
    for _ in range(1_600):
        yield b"10000\r\n" + bytes(0x10000) + b"\r\n"


def endless_extension(path: str, token: str) -> Iterator[bytes]:
    """One chunk whose extension never ends."""
    head = {"Transfer-Encoding": "chunked", "Content-Type": "application/octet-stream"}
    yield request("PUT", path, token=token, body=b"", headers=head)
    yield b"5;"
    yield from repeat(b"x" * 65_536, 800)


def endless_trailer(path: str, token: str) -> Iterator[bytes]:
    """A short body in chunks, and headers behind it that never end."""
    head = {"Transfer-Encoding": "chunked", "Content-Type": "application/octet-stream"}
    yield request("PUT", path, token=token, body=b"", headers=head)
    yield b"5\r\nhello\r\n0\r\n"
    for number in range(20_000):
        yield b"X-%d: %s\r\n" % (number, b"y" * 1_000)
