"""What stands before the app: bodies too large, encoded or slow, and addresses in a hurry.

A pure ASGI middleware. The app reads bodies as they arrive, never more than the limit; what it
would answer to a body that was cut off is replaced by the refusal. Every answer gets the headers
that keep a browser from guessing, leaking or caching.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from starlette.requests import ClientDisconnect

from checkins.service import logs
from checkins.service.addresses import Proxies, bucket_of, parsed
from checkins.service.problems import FAILED, Problem
from checkins.service.settings import Limits

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

MOST_ADDRESSES = 100_000
CONTENT_POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'"
)
_ALWAYS: Headers = [(b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer")]
_POLICY = (b"content-security-policy", CONTENT_POLICY.encode())
_NO_STORE = (b"cache-control", b"no-store")
_CLOSE = (b"connection", b"close")


class Rates:
    """Requests per address: at most ``burst`` at once and ``per_s`` a second in the long run.

    One number per address: the request count at which its bucket would be full again. At most
    ``most`` addresses are kept; the one heard of longest ago, whose bucket is the likeliest to be
    full, is forgotten first.
    """

    __slots__ = ("burst", "clock", "due", "most", "per_s")

    def __init__(
        self,
        *,
        per_s: float,
        burst: int,
        most: int = MOST_ADDRESSES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.per_s = per_s
        self.burst = burst
        self.most = most
        self.clock = clock
        self.due: dict[str, float] = {}

    def wait_s(self, address: str) -> float:
        """0 and the request is counted, or the seconds until one would be let through."""
        if self.per_s == 0:
            return 0.0
        now = self.clock() * self.per_s
        due = max(self.due.pop(address, now), now)
        late = due + 1.0 - now - self.burst
        self.due[address] = due if late > 0 else due + 1.0
        if len(self.due) > self.most:
            del self.due[next(iter(self.due))]
        return max(0.0, late / self.per_s)


class Guard:
    """The middleware; ``limit_for`` tells how many bytes the body of a request may have.

    ``trusted_proxies`` (addresses or networks) are believed in X-Forwarded-For, nobody else is;
    uvicorn must then run with ``proxy_headers=False``. ``refused`` hears the slug of each refusal.
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
        self.rates = Rates(per_s=limits.requests_per_s, burst=limits.burst, clock=clock)
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
            body = _Body(receive, limit=limit, within_s=self.body_s)
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
                # Half an answer is out: only closing the connection says that it is not whole.
                raise logs.quiet(ConnectionAbortedError(problem.slug))
            await answer.refuse(problem)

    async def _ask(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        """The app's answer; one that fails before it began is answered here.

        Whoever stands outside hears of the failure all the same, to tell the log.
        """
        try:
            await self.app(scope, receive, answer.send)
        except Exception:
            cut_off = answer.body is not None and answer.body.problem is not None
            if not answer.started and not cut_off:
                await answer.refuse(Problem("failed", FAILED))
            raise

    def _address(self, scope: Scope) -> str:
        client = scope.get("client")
        if client is None:
            return ""
        if not self.proxies:
            return bucket_of(client[0])
        return bucket_of(self._behind_proxies(client[0], scope["headers"]))

    def _behind_proxies(self, peer: str, headers: Headers) -> str:
        """The nearest address that is no proxy of ours: what stands left of it may be invented."""
        told = b",".join(value for name, value in headers if name == b"x-forwarded-for")
        hops = [hop.strip() for hop in told.decode("latin-1").split(",") if hop.strip()]
        while peer in self.proxies and hops and parsed(hops[-1]) is not None:
            peer = hops.pop()
        return peer


class _CutOff(ClientDisconnect):
    """Raised in the app where it reads a body that is refused; the guard answers instead."""


class _Body:
    """A request's body as the app may read it: not past the limit, not past the deadline."""

    __slots__ = ("deadline", "done", "left", "problem", "within_s", "wrapped")

    def __init__(self, wrapped: Receive, *, limit: int, within_s: float) -> None:
        self.wrapped = wrapped
        self.left = limit
        self.within_s = within_s
        self.deadline: float | None = None
        self.done = False
        self.problem: Problem | None = None

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


class _Answer:
    """The way out: the app's answer with safe headers, or nothing of it once refused."""

    __slots__ = ("body", "finished", "started", "wrapped")

    def __init__(self, wrapped: Send) -> None:
        self.wrapped = wrapped
        self.body: _Body | None = None
        self.started = False
        self.finished = False

    async def send(self, message: Message) -> None:
        body = self.body
        if body is not None and body.problem is not None:
            return  # whatever the app makes of a body that was cut off
        if message["type"] == "http.response.start":
            self.started = True
            unread = body is not None and not body.done
            message = {**message, "headers": _safe(message.get("headers", ()), close=unread)}
        elif not message.get("more_body", False):
            self.finished = True
        await self.wrapped(message)

    async def refuse(self, problem: Problem) -> None:
        """The problem, and the connection closed: what is left of the body is not read."""
        document = problem.body()
        headers: Headers = [
            *((name.encode(), value.encode()) for name, value in problem.headers().items()),
            (b"content-length", str(len(document)).encode()),
        ]
        start: Message = {"type": "http.response.start", "status": problem.status}
        start["headers"] = _safe(headers, close=True)
        await self.wrapped(start)
        await self.wrapped({"type": "http.response.body", "body": document})


def _safe(headers: Iterable[tuple[bytes, bytes]], *, close: bool) -> Headers:
    safe = list(headers)
    html = cached = False
    for name, value in safe:
        if name == b"content-type":
            html = value.startswith(b"text/html")
        elif name == b"cache-control":
            cached = True
    safe += _ALWAYS
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
