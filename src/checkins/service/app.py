"""The ASGI app of a coordinator: routes, web pages, middleware and error handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import FileResponse, HTMLResponse

from checkins import __version__
from checkins.protocol.report import MAX_HEADER_BYTES
from checkins.protocol.wire import ADDED_KEYS_PATH, CAMPAIGNS_PATH, REVOKED_KEYS_PATH
from checkins.service import logs
from checkins.service.http import problems
from checkins.service.http.problems import Problem
from checkins.service.http.request_limits import RequestLimits
from checkins.service.metrics import RequestMetrics
from checkins.service.routes import campaigns, clients, operators, planning, readiness
from checkins.service.routes.planning import planner_of
from checkins.service.routes.requests import SECURITY_SCHEMES, OptionalHeadRoute, also_head
from checkins.service.runs.runner import Runner
from checkins.service.settings import Settings
from checkins.service.store.database import Database, StoreError
from checkins.service.workers.epsilon_process import EpsilonProcesses
from checkins.service.workers.planner import Planner

ABOUT = """\
Federated training by random check-ins. Each client decides by itself, at random, whether and in
which slot it takes part; the server contacts no client. Errors are problem documents (RFC 9457)
with a `type` of `urn:checkins:...`.
"""
NO_TELEMETRY: Any = dict.fromkeys(
    ("tracing", "metrics", "logs", "operation_spans", "auto_configure"), False
)
"""Options that turn FastAPI's telemetry off.

Its traces would reveal which client checked in to which slot (invariant 8 of docs/invariants.md).
"""
PAGE_FOLDER = Path(__file__).parent / "page"
PAGE_TYPES = {".css": "text/css", ".js": "text/javascript"}
PAGE_FILES = {path.name: path for path in PAGE_FOLDER.iterdir() if path.suffix in PAGE_TYPES}
"""Maps the name of each style sheet and script to its path.

Besides these files, only ``index.html``, ``plan.html``, ``read.html`` and ``take-part.html`` are
served. A name from a request is never used as a path.
"""
CLIENT_PLACES = (
    Path(__file__).with_name("client.js"),  # in a wheel
    Path(__file__).parents[3] / "clients" / "js" / "client.js",  # in a checkout or an sdist
)
"""Where the device for browsers may be. It is one file, ``clients/js/client.js`` of the repository,
which a wheel contains beside this module."""
CLIENT_FILE = next((path for path in CLIENT_PLACES if path.is_file()), CLIENT_PLACES[0])

PLAN_LINK = '<a class="to-plan" href="plan">Plan a campaign</a>'
"""The link in ``index.html`` that is removed if planning is turned off."""

pages = APIRouter(include_in_schema=False, route_class=OptionalHeadRoute)


def create_app(
    settings: Settings,
    *,
    database: Database | None = None,
    epsilon_processes: EpsilonProcesses | None = None,
    planner: Planner | None = None,
) -> FastAPI:
    """Return the app of a coordinator. ``startup.prepare`` must have prepared the database.

    The keyword arguments are for tests. An argument that is None is created from ``settings``; the
    planner is not created if ``settings.plan`` is False.
    """
    runner = Runner(
        settings,
        Database(settings.store) if database is None else database,
        EpsilonProcesses(settings.store) if epsilon_processes is None else epsilon_processes,
    )
    if planner is None and settings.plan:
        planner = Planner()

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
        redirect_slashes=False,  # a redirect would go to the Host that the request names
        telemetry=NO_TELEMETRY,
    )
    app.state.runner = runner
    app.state.planner = planner
    routers = (clients.router, campaigns.router, campaigns.public_router)
    for router in (*routers, operators.router, planning.router, readiness.router, pages):
        app.router.routes += router.routes  # a flat list is faster than nested routers
    _declare_security(app)
    problems.install_handlers(app)
    app.add_exception_handler(StoreError, _store_error_response)
    app.add_middleware(
        RequestLimits,
        limits=settings.limits,
        body_limit_of=partial(_body_limit, runner),
        trusted_proxies=settings.trusted_proxies,
        on_refusal=runner.metrics.count_refusal,
    )
    app.add_middleware(RequestMetrics, metrics=runner.metrics)
    return app


def _declare_security(app: FastAPI) -> None:
    """Add the security schemes to the OpenAPI document.

    FastAPI does not know them, because the routes check credentials themselves.
    """
    openapi_without_security = app.openapi

    def openapi() -> dict[str, Any]:
        document = openapi_without_security()
        document.setdefault("components", {})["securitySchemes"] = SECURITY_SCHEMES
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _body_limit(runner: Runner, scope: Any) -> int:
    """Return the size limit of a request's body in bytes.

    The limit of a report follows from the dimension of the model. Campaign files and lists of keys
    have the limit ``campaign_bytes``, and all other bodies have ``body_bytes``.
    """
    path: str = scope["path"]
    if path.endswith("/report"):
        run = path.split("/", 3)[2:3]
        live_run = runner.live_runs.get(run[0]) if run else None
        if live_run is not None:
            return 8 + MAX_HEADER_BYTES + 4 * live_run.spec.dimension
    limits = runner.settings.limits
    is_large = path in (CAMPAIGNS_PATH, ADDED_KEYS_PATH, REVOKED_KEYS_PATH)
    return limits.campaign_bytes if is_large else limits.body_bytes


async def _store_error_response(request: Request, error: Exception) -> Response:
    logs.failure(error)
    return Problem("busy", "the store does not answer: try again", retry_after=1).response()


@pages.get("/")
@also_head
async def campaigns_page(request: Request) -> HTMLResponse:
    """Return the page that shows the campaigns, with a link to the planner if it is turned on."""
    text = (PAGE_FOLDER / "index.html").read_text(encoding="utf-8")
    return HTMLResponse(text if request.app.state.planner else text.replace(PLAN_LINK, ""))


@pages.get("/plan")
async def plan_page(request: Request) -> FileResponse:
    """Return the planner's page. Start the planner's process, because the page will need it."""
    planner_of(request).wake()
    return FileResponse(PAGE_FOLDER / "plan.html", media_type="text/html")


@pages.get("/read")
@also_head
async def read_page() -> FileResponse:
    """Return the page that reads certificates and ledgers in the browser."""
    return FileResponse(PAGE_FOLDER / "read.html", media_type="text/html")


@pages.get("/take-part")
@also_head
async def take_part_page() -> FileResponse:
    """Return the page on which a browser takes part in a campaign on public data."""
    return FileResponse(PAGE_FOLDER / "take-part.html", media_type="text/html")


@pages.get("/client.js")
@also_head
async def client_module() -> FileResponse:
    """Return the device for browsers, one JavaScript module without dependencies."""
    return FileResponse(CLIENT_FILE, media_type=PAGE_TYPES[".js"])


@pages.get("/page/{name}")
async def page_file(name: str) -> FileResponse:
    """Return a style sheet or a script of the pages."""
    path = PAGE_FILES.get(name)
    if path is None:
        raise Problem("unknown-path", "the page has no such file")
    return FileResponse(path, media_type=PAGE_TYPES[path.suffix])
