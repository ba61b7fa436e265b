"""A real browser for tests: the system's chromium, driven by playwright.

Tests that look at a page fail when there is no browser; they are never skipped. Only this module
imports playwright.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Error, Page, Request, Route

NAMES = (
    "chromium-headless-shell",  # the same engine without windows, which takes a quarter less time
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)
PATIENCE_MS = 1000.0 * PATIENCE_S
PHONE = (390, 844)
DESK = (1280, 800)
THREE_FRAMES = """() => new Promise((done) => {
  let left = 3;  // one for the observer of sizes, one for the drawing that it asks for
  const next = () => (left-- > 0 ? requestAnimationFrame(next) : done());
  next();
})"""
MISSING = (
    "no chromium found, and this test looks at a page in a real browser: run `make browser`, or"
    " install the package chromium, or name the program in the variable CHROMIUM"
)


@dataclass(frozen=True, slots=True)
class Visit:
    """An open page, with its errors and warnings and its requests to other hosts."""

    page: Page
    errors: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    """Addresses of requests to other hosts."""


def find_chromium() -> str:
    """Return the path of the program, or fail the test and say how to install it."""
    named = os.environ.get("CHROMIUM")
    found = next(
        (path for name in ((named,) if named else NAMES) if (path := shutil.which(name))), None
    )
    if found is None:
        pytest.fail(f"CHROMIUM={named}: {MISSING}" if named else MISSING)
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for the tests of a module."""
    from playwright.sync_api import sync_playwright

    program = find_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program,
            args=["--disable-gpu"],  # which would be computed, in a process of its own
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def unless_crashed() -> Iterator[None]:
    """Suppress the error of an action on a tab whose process was killed."""
    from playwright.sync_api import Error

    with suppress(Error):
        yield


@contextmanager
def open_file(
    browser: Browser, path: Path, *, width: int = 1100, height: int = 900, dark: bool = False
) -> Iterator[Visit]:
    """Open a file in a profile of its own; every request to a network is refused and recorded."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
    )
    try:
        context.set_default_timeout(PATIENCE_MS)
        seen = Visit(context.new_page())
        page = seen.page
        page.on("console", lambda said: _hear(seen, said.type, said.text))
        page.on("pageerror", lambda error: seen.errors.append(str(error)))

        def refuse(route: Route, request: Request) -> None:
            if request.url.startswith(("file:", "data:", "blob:")):
                route.continue_()
            else:
                seen.asked.append(request.url)
                route.abort()

        page.route("**/*", refuse)
        page.goto(path.resolve().as_uri())
        yield seen
    finally:
        context.close()


def _hear(seen: Visit, kind: str, text: str) -> None:
    if kind in ("error", "warning"):
        seen.errors.append(f"{kind}: {text}")


@contextmanager
def watching(
    browser: Browser, url: str, *, size: tuple[int, int] = DESK, dark: bool = False
) -> Iterator[Visit]:
    """Open an address; requests to other hosts are recorded in ``asked``."""
    own = "/".join(url.split("/")[:3])
    page = _free_page(browser)
    seen = Visit(page)

    def hear(said: ConsoleMessage) -> None:
        if said.type in ("error", "warning"):
            seen.errors.append(said.text)

    def fail(error: Error) -> None:
        seen.errors.append(str(error))

    def ask(request: Request) -> None:
        if not request.url.startswith((f"{own}/", "data:")):
            seen.asked.append(request.url)

    page.on("console", hear)
    page.on("pageerror", fail)
    page.on("request", ask)
    try:
        page.set_default_timeout(PATIENCE_MS)
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.emulate_media(color_scheme="dark" if dark else "light")
        page.goto(url)
        yield seen
    finally:
        page.remove_listener("console", hear)
        page.remove_listener("pageerror", fail)
        page.remove_listener("request", ask)
        page.goto("about:blank")


def _free_page(browser: Browser) -> Page:
    """A blank page of the browser's one profile, used before or new.

    A profile and a page take more than a second of a processor to make. What pages leave behind is
    of an origin that nobody asks again: every server of these tests has a port of its own.
    """
    profile = browser.contexts[0] if browser.contexts else browser.new_context()
    blank = (page for page in profile.pages if page.url == "about:blank")
    return next(blank, None) or profile.new_page()


def text(page: Page, name: str) -> str:
    return page.locator(f"#{name}").inner_text()


def wait_for_text(page: Page, name: str, wanted: str) -> None:
    page.wait_for_function(
        "([name, wanted]) => document.getElementById(name).textContent.includes(wanted)",
        arg=[name, wanted],
    )


def shown(page: Page) -> None:
    page.wait_for_selector("#campaign:not([hidden]) .plot > *")


def live(page: Page) -> None:
    wait_for_text(page, "link-text", "Live")


def overflow(page: Page) -> int:
    return page.evaluate("document.documentElement.scrollWidth - innerWidth")


def every_look(page: Page) -> Iterator[str]:
    """Show the page on a desk and on a phone, light and dark; yield the name of each look."""
    for name, size in (("desk", DESK), ("phone", PHONE)):
        page.set_viewport_size({"width": size[0], "height": size[1]})
        for colours in ("light", "dark"):
            page.emulate_media(color_scheme=colours)
            page.evaluate(THREE_FRAMES)
            yield f"{name}-{colours}"
