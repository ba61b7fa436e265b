"""ASGI middleware: limits on size, encoding, time and rate of requests, and security headers.

The app reads a body as it arrives, up to the limit. If the body exceeds a limit, the response is
the refusal. Every response gets headers that keep a browser from guessing content types, sending
referrers or caching.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import ClientDisconnect

from checkins.service import logs
from checkins.service.http.problems import FAILED, Problem
from checkins.service.http.rate_limits import Proxies, RequestRates, bucket_of, parsed
from checkins.service.settings import Limits

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

CONTENT_POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'"
)
_HEADERS_OF_EVERY_RESPONSE: Headers = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]
_POLICY = (b"content-security-policy", CONTENT_POLICY.encode())
_NO_STORE = (b"cache-control", b"no-store")
_CLOSE = (b"connection", b"close")


class RequestLimits:
    """The middleware; ``limit_for`` returns the largest body of a request, in bytes.

    X-Forwarded-For is read from ``trusted_proxies`` (addresses or networks) only; uvicorn must then
    run with ``proxy_headers=False``. ``refused`` is called with the slug of each refusal.
    """

    def __init__(
        self,
        app: App,
        *,
        limits: Limits,
        limit_for: Callable[[Scope], int],
        trusted_proxies: Iterable[str] = (),
        refused: Callable[[str], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.app = app
        self.limit_for = limit_for
        self.body_s = limits.body_s
        self.rates = RequestRates(per_s=limits.requests_per_s, burst=limits.burst, clock=clock)
        self.proxies = Proxies(trusted_proxies)
        self.refused = refused or (lambda slug: None)

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
                    problem = Problem("encoded", "send the body plain: chunked or with its length")
            elif name == b"content-encoding" and value.strip().lower() not in (b"identity", b""):
                problem = Problem("encoded", "send the body without Content-Encoding")
        wait_s = self.rates.wait_s(self._address(scope))
        if wait_s > 0:
            problem = Problem("too-many", "wait before the next request", retry_after=wait_s)
        answer = _Answer(send)
        if not has_body and problem is None:
            await self._ask(scope, receive, answer)
            return
        limit = self.limit_for(scope)
        if problem is None and length is not None:
            problem = _length_problem(length, limit)
        if problem is None:
            body = _Body(receive, left=limit, within_s=self.body_s)
            answer.body = body
            try:
                await self._ask(scope, body.receive, answer)
            except Exception:
                if body.problem is None:
                    raise
            problem = None if answer.finished else body.problem
        if problem is not None:
            self.refused(problem.slug)
            if answer.started:
                # Part of a response is sent: only closing the connection marks it as incomplete.
                raise logs.quiet(ConnectionAbortedError(problem.slug))
            await answer.refuse(problem)

    async def _ask(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        """Call the app; if it fails before its response has begun, answer with a problem.

        The exception is raised again in any case, so that it is logged.
        """
        try:
            await self.app(scope, receive, answer.send)
        except Exception:
            cut_off = answer.body is not None and answer.body.problem is not None
            if not answer.started and not cut_off:
                await answer.refuse(Problem("failed", FAILED))
            raise

    def _address(self, scope: Scope) -> str:
        """Return the last address that is not a trusted proxy: those before it may be forged."""
        client = scope.get("client")
        if client is None:
            return ""
        peer: str = client[0]
        if not self.proxies:
            return bucket_of(peer)
        headers: Headers = scope["headers"]
        forwarded = b",".join(value for name, value in headers if name == b"x-forwarded-for")
        hops = [hop.strip() for hop in forwarded.decode("latin-1").split(",") if hop.strip()]
        while peer in self.proxies and hops and parsed(hops[-1]) is not None:
            peer = hops.pop()
        return bucket_of(peer)


class _CutOff(ClientDisconnect):
    """Raised in the app where it reads a refused body; the middleware answers instead."""


@dataclass(slots=True)
class _Body:
    """The body of a request, up to a size limit and a deadline."""

    wrapped: Receive
    left: int  # bytes
    within_s: float
    deadline: float | None = None
    done: bool = False
    problem: Problem | None = None

    async def receive(self) -> Message:
        if self.done:
            return await self.wrapped()
        if self.problem is not None:
            raise _CutOff
        if self.deadline is None:
            self.deadline = asyncio.get_running_loop().time() + self.within_s
        try:
            async with asyncio.timeout_at(self.deadline):
                message = await self.wrapped()
        except TimeoutError:
            self.problem = Problem("too-slow", f"send the body within {self.within_s:g} s")
            raise _CutOff from None
        if message["type"] != "http.request":
            self.done = True
            return message
        self.left -= len(message.get("body", b""))
        if self.left < 0:
            self.problem = Problem("too-large", "the body is longer than this address takes")
            raise _CutOff
        self.done = not message.get("more_body", False)
        return message


@dataclass(slots=True)
class _Answer:
    """The response of the app with security headers; dropped once the request is refused."""

    wrapped: Send
    body: _Body | None = None
    started: bool = False
    finished: bool = False

    async def send(self, message: Message) -> None:
        body = self.body
        if body is not None and body.problem is not None:
            return  # the app's response to a body that was cut off
        if message["type"] == "http.response.start":
            self.started = True
            unread = body is not None and not body.done
            message = {
                **message,
                "headers": _with_security_headers(message.get("headers", ()), close=unread),
            }
        elif not message.get("more_body", False):
            self.finished = True
        await self.wrapped(message)

    async def refuse(self, problem: Problem) -> None:
        """Send the problem and close the connection: the rest of the body is not read."""
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
    """Return the headers with those of security; ``close`` ends the connection."""
    safe = list(headers)
    html = cached = False
    for name, value in safe:
        if name == b"content-type":
            html = value.startswith(b"text/html")
        elif name == b"cache-control":
            cached = True
    safe += _HEADERS_OF_EVERY_RESPONSE
    if html:
        safe.append(_POLICY)
    if not cached:
        safe.append(_NO_STORE)
    if close:
        safe.append(_CLOSE)
    return safe


def _length_problem(length: bytes, limit: int) -> Problem | None:
    if not length.isdigit():
        return Problem("invalid", "Content-Length must be an integer")
    if len(length) > 18 or int(length) > limit:
        return Problem("too-large", f"send at most {limit:,} bytes here")
    return None
