"""The page, and the files it is made of; nothing comes from another host."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse

from checkins.service.problems import Problem

FOLDER = Path(__file__).parent.parent / "page"
KINDS = {".css": "text/css", ".js": "text/javascript"}
FILES = {path.name: path for path in FOLDER.iterdir() if path.suffix in KINDS}
"""Only these: no name from outside ever becomes a path."""

router = APIRouter(include_in_schema=False)


@router.get("/")
async def page() -> FileResponse:
    """The page."""
    return FileResponse(FOLDER / "index.html", media_type="text/html")


@router.get("/page/{name}")
async def part(name: str) -> FileResponse:
    """A style sheet or a script of ours."""
    path = FILES.get(name)
    if path is None:
        raise Problem("unknown-path", "the page has no such file")
    return FileResponse(path, media_type=KINDS[path.suffix])
