"""A browser that watches the live page, and what it saw."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.browser import Visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Error, Page, Request

PHONE = (390, 844)
DESK = (1280, 800)


@contextmanager
def watching(
    browser: Browser, url: str, *, size: tuple[int, int] = DESK, dark: bool = False
) -> Iterator[Visit]:
    """Open an address; what is asked of another host is refused and remembered."""
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
        page.set_default_timeout(300_000)
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
