"""A page of chromium that has loaded the device for browsers, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkins.service import app
from checkins.service.http.request_limits import CONTENT_SECURITY_POLICY
from tests.support.browser import watching
from tests.support.http_server import Handler, http_server

if TYPE_CHECKING:
    from tests.support.browser import Browser, Page

HERE = Path(__file__).parent


class Files(Handler):
    """Serves an empty page with the policy of the service, the device, and the scripts of tests."""

    def answer(self) -> None:
        if self.path == "/":
            policy = {"content-security-policy": CONTENT_SECURITY_POLICY}
            self.say(
                200,
                b"<!doctype html><title>device</title>",
                {"content-type": "text/html", **policy},
            )
            return
        name = self.path.removeprefix("/")
        path = app.CLIENT_FILE if name == "client.js" else HERE / Path(name).name
        if path.suffix != ".js" or not path.is_file():
            self.say(404, b"")
            return
        self.say(200, path.read_bytes(), {"content-type": "text/javascript"})


@pytest.fixture(scope="session")
def origin() -> Iterator[str]:
    """The address of the server of pages."""
    with http_server(Files) as url:
        yield url


@pytest.fixture(scope="module")
def page(browser: Browser, origin: str) -> Iterator[Page]:
    """The empty page, opened once for many tests."""
    with watching(browser, f"{origin}/") as seen:
        yield seen.page
    assert seen.asked == []
