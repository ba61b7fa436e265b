"""ASGI middleware: limits on size, encoding, time and rate of requests, and security headers.

Rates and connections are counted per client address. Each process counts only its own requests and
connections.

The app reads a request body while it arrives. If the body is too large or too slow, the client gets
a problem document (an error in JSON, RFC 9457) and not the response of the app. Every response has
headers that forbid a browser to guess its content type, to send referrers and to cache it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from checkins.service import logs
from checkins.service.http.problems import FAILED_DETAIL, Problem
from checkins.service.settings import Limits, proxy_network

MAX_ADDRESSES = 100_000
"""Largest number of client addresses whose request rate is remembered."""
Headers = list[tuple[bytes, bytes]]

CONTENT_SECURITY_POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'"
)
_COMMON_HEADERS: Headers = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]
_CONTENT_SECURITY_HEADER = (b"content-security-policy", CONTENT_SECURITY_POLICY.encode())
_NO_STORE_HEADER = (b"cache-control", b"no-store")
_CLOSE_HEADER = (b"connection", b"close")


class RequestLimits:
    """The middleware that refuses requests beyond the limits.

    ``body_limit_of`` returns the size limit of a request's body, in bytes. X-Forwarded-For is
    accepted only from ``trusted_proxies`` (addresses or networks), so uvicorn, which would also
    read it, must run with ``proxy_headers=False``. ``on_refusal`` is called with the slug (the type
    of the problem) of each refusal.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        limits: Limits,
        body_limit_of: Callable[[Scope], int],
        trusted_proxies: Iterable[str] = (),
        on_refusal: Callable[[str], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.app = app
        self.body_limit_of = body_limit_of
        self.body_s = limits.body_s
        self.rates = RequestRates(per_s=limits.requests_per_s, burst=limits.burst, clock=clock)
        self.proxies = Proxies(trusted_proxies)
        self.on_refusal = on_refusal or (lambda slug: None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        problem = None
        length: bytes | None = None
        has_body = False
        for name, value in scope["headers"]:
            if name == b"content-length":
                length = value
                has_body = has_body or value != b"0"
            elif name == b"transfer-encoding":
                has_body = True
                if value.strip().lower() != b"chunked":
                    problem = Problem("encoded", "send the body either chunked or with its length")
            elif name == b"content-encoding" and value.strip().lower() not in (b"identity", b""):
                problem = Problem("encoded", "send the body without Content-Encoding")
        wait_s = self.rates.wait_s(self._address(scope))
        if wait_s > 0:
            problem = Problem("too-many", "wait before the next request", retry_after=wait_s)
        response = _LimitedResponse(send)
        if not has_body and problem is None:
            await self._call_app(scope, receive, response)
            return
        max_bytes = self.body_limit_of(scope)
        if problem is None and length is not None:
            problem = _length_problem(length, max_bytes)
        if problem is None:
            body = _LimitedBody(receive, remaining_bytes=max_bytes, timeout_s=self.body_s)
            response.body = body
            try:
                await self._call_app(scope, body.receive, response)
            except Exception:
                if body.problem is None:
                    raise
            problem = None if response.finished else body.problem
        if problem is not None:
            self.on_refusal(problem.slug)
            if response.started:
                # Part of the response is sent already. The error closes the connection, which shows
                # the client that the response is incomplete.
                raise logs.mark_logged(ConnectionAbortedError(problem.slug))
            await response.refuse(problem)

    async def _call_app(self, scope: Scope, receive: Receive, response: _LimitedResponse) -> None:
        """Call the app. If it fails before its response has begun, send the problem ``failed``.

        The exception is always raised again, so that it is logged.
        """
        try:
            await self.app(scope, receive, response.send)
        except Exception:
            is_body_refused = response.body is not None and response.body.problem is not None
            if not response.started and not is_body_refused:
                await response.refuse(Problem("failed", FAILED_DETAIL))
            raise

    def _address(self, scope: Scope) -> str:
        """Return the key under which the rate of a client is counted.

        The key is the address of the peer. If the peer is a trusted proxy, the key is the last
        address in X-Forwarded-For that is not a trusted proxy, because a client can forge all
        addresses before that.
        """
        client = scope.get("client")
        if client is None:
            return ""
        peer: str = client[0]
        if not self.proxies:
            return address_key(peer)
        headers: Headers = scope["headers"]
        forwarded = b",".join(value for name, value in headers if name == b"x-forwarded-for")
        hops = [hop.strip() for hop in forwarded.decode("latin-1").split(",") if hop.strip()]
        while peer in self.proxies and hops and parse_address(hops[-1]) is not None:
            peer = hops.pop()
        return address_key(peer)


class _BodyRefused(ClientDisconnect):
    """Raised when the app reads a body that was refused. ``RequestLimits`` sends the response."""


@dataclass(slots=True)
class _LimitedBody:
    """The body of a request, with a size limit and a deadline.

    ``deadline`` is a time of the event loop, or None until the app begins to read. ``problem`` is
    set if the body is refused.
    """

    wrapped: Receive
    remaining_bytes: int  # bytes that may still arrive
    timeout_s: float
    deadline: float | None = None
    is_complete: bool = False
    problem: Problem | None = None

    async def receive(self) -> Message:
        if self.is_complete:
            return await self.wrapped()
        if self.problem is not None:
            raise _BodyRefused
        if self.deadline is None:
            self.deadline = asyncio.get_running_loop().time() + self.timeout_s
        try:
            async with asyncio.timeout_at(self.deadline):
                message = await self.wrapped()
        except TimeoutError:
            self.problem = Problem("too-slow", f"send the body within {self.timeout_s:g} s")
            raise _BodyRefused from None
        if message["type"] != "http.request":
            self.is_complete = True
            return message
        self.remaining_bytes -= len(message.get("body", b""))
        if self.remaining_bytes < 0:
            self.problem = Problem("too-large", "the body is longer than this address accepts")
            raise _BodyRefused
        self.is_complete = not message.get("more_body", False)
        return message


@dataclass(slots=True)
class _LimitedResponse:
    """The response of the app, with security headers added.

    Once the body of the request is refused, the response of the app is dropped.
    """

    wrapped: Send
    body: _LimitedBody | None = None
    started: bool = False
    finished: bool = False

    async def send(self, message: Message) -> None:
        body = self.body
        if body is not None and body.problem is not None:
            return  # drop the app's response to a body that was refused
        if message["type"] == "http.response.start":
            self.started = True
            is_unread = body is not None and not body.is_complete
            message = {
                **message,
                "headers": _with_security_headers(message.get("headers", ()), close=is_unread),
            }
        elif not message.get("more_body", False):
            self.finished = True
        await self.wrapped(message)

    async def refuse(self, problem: Problem) -> None:
        """Send the problem and close the connection, because the rest of the body is not read."""
        document = problem.body()
        headers: Headers = [
            *((name.encode(), value.encode()) for name, value in problem.headers().items()),
            (b"content-length", str(len(document)).encode()),
        ]
        start: Message = {"type": "http.response.start", "status": problem.status}
        start["headers"] = _with_security_headers(headers, close=True)
        await self.wrapped(start)
        await self.wrapped({"type": "http.response.body", "body": document})


def _with_security_headers(headers: Iterable[tuple[bytes, bytes]], *, close: bool) -> Headers:
    """Return the headers with security headers added; ``close`` adds ``connection: close``."""
    extended = list(headers)
    is_html = has_cache_control = False
    for name, value in extended:
        if name == b"content-type":
            is_html = value.startswith(b"text/html")
        elif name == b"cache-control":
            has_cache_control = True
    extended += _COMMON_HEADERS
    if is_html:
        extended.append(_CONTENT_SECURITY_HEADER)
    if not has_cache_control:
        extended.append(_NO_STORE_HEADER)
    if close:
        extended.append(_CLOSE_HEADER)
    return extended


def _length_problem(length: bytes, max_bytes: int) -> Problem | None:
    if not length.isdigit():
        return Problem("invalid", "Content-Length must be an integer")
    if len(length) > 18 or int(length) > max_bytes:
        return Problem("too-large", f"send at most {max_bytes:,} bytes here")
    return None


@dataclass(slots=True, kw_only=True)
class RequestRates:
    """Token buckets, one per address, with ``burst`` tokens and ``per_s`` new tokens per second.

    A request takes one token. ``full_at`` holds when each bucket is full again, as a time of
    ``clock`` in seconds times ``per_s``. At most ``max_addresses`` addresses are remembered; the
    least recently used address is dropped first.
    """

    per_s: float
    burst: int
    max_addresses: int = MAX_ADDRESSES
    clock: Callable[[], float] = time.monotonic
    full_at: dict[str, float] = field(default_factory=dict)

    def wait_s(self, address: str) -> float:
        """Count a request and return 0, or return how many seconds the client must wait."""
        if self.per_s == 0:
            return 0.0
        now = self.clock() * self.per_s
        full_at = max(self.full_at.pop(address, now), now)
        missing_tokens = full_at + 1.0 - now - self.burst
        self.full_at[address] = full_at if missing_tokens > 0 else full_at + 1.0
        if len(self.full_at) > self.max_addresses:
            del self.full_at[next(iter(self.full_at))]
        return max(0.0, missing_tokens / self.per_s)


class Proxies:
    """Addresses or networks of trusted proxies, which forward the requests of many clients."""

    def __init__(self, proxies: Iterable[str] = ()) -> None:
        self._networks = tuple(proxy_network(proxy) for proxy in proxies)

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, address: object) -> bool:
        parsed = parse_address(address) if isinstance(address, str) else None
        return parsed is not None and any(parsed in network for network in self._networks)


@dataclass(slots=True)
class ConnectionCounts:
    """The number of open connections, in total and per IPv4 address or IPv6 /64."""

    limits: Limits
    proxies: Proxies = field(default_factory=Proxies)
    """The limit per address does not apply to proxies, because a proxy serves many clients."""
    total: int = 0
    by_address: dict[str, int] = field(default_factory=dict)

    def admit(self, address: str) -> bool:
        """Count one more connection and return True, unless a limit is reached."""
        key = address_key(address)
        count = self.by_address.get(key, 0)
        if 0 < self.limits.connections <= self.total:
            return False
        if 0 < self.limits.per_address <= count and address not in self.proxies:
            return False
        self.total += 1
        self.by_address[key] = count + 1
        return True

    def release(self, address: str) -> None:
        """Stop counting a connection that was admitted."""
        key = address_key(address)
        self.total -= 1
        count = self.by_address.pop(key) - 1
        if count:
            self.by_address[key] = count


@lru_cache(maxsize=10_000)
def address_key(address: str) -> str:
    """Return the key under which an address is counted. For IPv6 it is the /64 network.

    >>> address_key("2001:db8::1:2"), address_key("::ffff:192.0.2.7")
    ('2001:db8::/64', '192.0.2.7')
    """
    parsed = parse_address(address)
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64)))
    return address if parsed is None else str(parsed)


def parse_address(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse an IP address. Return None if the text is no address. IPv4-mapped IPv6 becomes IPv4."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return None
    mapped = getattr(parsed, "ipv4_mapped", None)
    return parsed if mapped is None else mapped
