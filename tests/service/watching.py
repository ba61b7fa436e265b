"""A browser that watches the live page, and what it saw."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.browser import Visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PHONE = (390, 844)
DESK = (1280, 800)


@contextmanager
def watching(
    browser: Browser, url: str, *, size: tuple[int, int] = DESK, dark: bool = False
) -> Iterator[Visit]:
    """Open an address; what is asked of another host is refused and remembered."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if dark else "light",
    )
    own = "/".join(url.split("/")[:3])
    try:
        seen = Visit(context.new_page())
        page = seen.page
        page.set_default_timeout(300_000)
        page.on(
            "console",
            lambda said: (
                seen.errors.append(said.text) if said.type in ("error", "warning") else None
            ),
        )
        page.on("pageerror", lambda error: seen.errors.append(str(error)))
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith((f"{own}/", "data:"))
                else seen.asked.append(request.url)
            ),
        )
        page.goto(url)
        yield seen
    finally:
        context.close()


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
