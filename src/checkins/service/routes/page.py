"""Routes of the web pages and their files. The pages load nothing from other hosts."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, HTMLResponse

from checkins.service.http.problems import Problem
from checkins.service.routes.planning import planner_of
from checkins.service.routes.requests import HeadRoute, also_head

FOLDER = Path(__file__).parent.parent / "page"
KINDS = {".css": "text/css", ".js": "text/javascript"}
FILES = {path.name: path for path in FOLDER.iterdir() if path.suffix in KINDS}
"""The only files that are served. A name from a request is never used as a path."""

PLAN_LINK = '<a class="to-plan" href="plan">Plan a campaign</a>'

router = APIRouter(include_in_schema=False, route_class=HeadRoute)


@router.get("/")
@also_head
async def page(request: Request) -> HTMLResponse:
    """Return the page of campaigns, with a link to the planner if planning is turned on."""
    text = (FOLDER / "index.html").read_text(encoding="utf-8")
    return HTMLResponse(text if request.app.state.planner else text.replace(PLAN_LINK, ""))


@router.get("/plan")
async def plan_page(request: Request) -> FileResponse:
    """Return the planner's page, and start the planner because a question will follow."""
    planner_of(request).wake()
    return FileResponse(FOLDER / "plan.html", media_type="text/html")


@router.get("/page/{name}")
async def part(name: str) -> FileResponse:
    """Return a style sheet or a script of the pages."""
    path = FILES.get(name)
    if path is None:
        raise Problem("unknown-path", "the page has no such file")
    return FileResponse(path, media_type=KINDS[path.suffix])
