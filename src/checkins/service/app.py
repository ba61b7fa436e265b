"""The app: wiring only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from sqlalchemy.exc import DBAPIError
from starlette.requests import Request
from starlette.responses import Response

from checkins import __version__
from checkins.protocol.report import MOST_HEADER_BYTES
from checkins.service import logs, problems
from checkins.service.guard import Guard
from checkins.service.metrics import Measured
from checkins.service.planner import Planner
from checkins.service.problems import Problem
from checkins.service.routes import campaigns, clients, operations, page, planning, public
from checkins.service.routes.requests import SECURITY
from checkins.service.runner import Runner
from checkins.service.settings import Settings
from checkins.service.store.database import Database

ABOUT = """\
Federated training by random check-ins: each client flips its own coin and picks its own slot; the
server calls nobody. Errors are problem documents (RFC 9457) with a `type` of `urn:checkins:...`.
"""
NO_TELEMETRY: Any = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}
"""FastAPI's spans would tell another service who came to which slot (invariant 8)."""


def create_app(settings: Settings) -> FastAPI:
    """A coordinator on the store of ``settings``, which must be migrated and in an epoch."""
    runner = Runner(settings, Database(settings.store))
    planner = Planner() if settings.plan else None

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await runner.start()
        try:
            yield
        finally:
            if planner is not None:
                await planner.close()
            await runner.stop()

    app = FastAPI(
        title="checkins",
        version=__version__,
        description=ABOUT,
        lifespan=lifespan,
        redoc_url=None,
        docs_url=None,
        redirect_slashes=False,  # it would send people to whatever Host they were made to name
        telemetry=NO_TELEMETRY,
    )
    app.state.runner = runner
    app.state.planner = planner
    for part in (clients, campaigns, public, planning, operations, page):
        app.router.routes += part.router.routes  # flat: a router of routers is slower to match
    _declare_security(app)
    problems.install(app)
    app.add_exception_handler(DBAPIError, _store_is_away)
    app.add_middleware(
        Guard,
        limits=settings.limits,
        limit_for=_limit(runner),
        trusted_proxies=settings.trusted_proxies,
        refused=runner.metrics.refused,
    )
    app.add_middleware(Measured, metrics=runner.metrics)
    return app


def _declare_security(app: FastAPI) -> None:
    """What routes ask for by hand stands in the OpenAPI document too."""
    generated = app.openapi

    def openapi() -> dict[str, Any]:
        document = generated()
        document.setdefault("components", {})["securitySchemes"] = SECURITY
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _limit(runner: Runner) -> Any:
    """How long a body may be: a report as long as its model, a campaign file, or a short text."""
    limits = runner.settings.limits

    def limit_for(scope: Any) -> int:
        path: str = scope["path"]
        if path.endswith("/report"):
            run = path.split("/", 3)[2:3]
            desk = runner.desks.get(run[0]) if run else None
            if desk is not None:
                return 8 + MOST_HEADER_BYTES + 4 * desk.terms.dimension
        if path == "/campaigns":
            return limits.campaign_bytes
        return limits.body_bytes

    return limit_for


async def _store_is_away(request: Request, error: Exception) -> Response:
    logs.failure(error)
    return Problem("busy", "the store does not answer: try again", retry_after=1).response()
