"""Routes that read their request and make their answer themselves, and routes that take HEAD."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


def also_head(endpoint: Endpoint) -> Endpoint:
    """Let a route of GET answer HEAD in the same way; the server leaves the body out.

    Not for one that waits or streams. The OpenAPI document does not name it: it would be the same
    operation twice.
    """
    endpoint.also_head = True  # type: ignore[attr-defined]
    return endpoint


class HeadRoute(APIRoute):
    """FastAPI's route, and HEAD where its endpoint is marked with ``also_head``."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.allowed = frozenset(self.methods or ())
        if getattr(self.endpoint, "also_head", False):
            self.allowed |= {"HEAD"}

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child_scope = super().matches(scope)
        if match is Match.PARTIAL and scope["method"] in self.allowed:
            return Match.FULL, child_scope
        return match, child_scope

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] in self.allowed:
            await self.app(scope, receive, send)
        else:
            await super().handle(scope, receive, send)


class PlainRoute(HeadRoute):
    """FastAPI finds it and documents it; nothing of FastAPI stands between request and answer.

    The endpoint takes the request and returns a response. FastAPI would look for dependencies, a
    body and something to validate all the same, which costs more than the rest of a check-in.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] in self.allowed:
            answer = await self.endpoint(Request(scope, receive, send))
            await answer(scope, receive, send)
        else:
            await super().handle(scope, receive, send)
