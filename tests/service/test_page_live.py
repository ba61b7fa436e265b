"""The page of a real coordinator, watched from before the first slot to the certificate."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from checkins import formatting
from tests.support.browser import DESK, PHONE, Visit, overflow, shown, text, wait_for_text, watching
from tests.support.campaigns import campaign_text
from tests.support.coordinator import serving
from tests.support.forks import Forked

if TYPE_CHECKING:
    from tests.support.browser import Browser

PICTURES = Path(__file__).resolve().parents[2] / "out" / "page"
SLOTS = 12
CAMPAIGN = campaign_text(
    name="patients",
    slots=SLOTS,
    capacity=8,
    epsilon=1.0,
    randomizer='kind = "gaussian"\nnoise_at = "client"\nnoise_multiplier = 2.0',
    data="patients",
    optimizer='kind = "sgd", rate = 5.0',
    slot_s=0.5,
    choose_s=0.2,
)


@contextmanager
def swarming(url: str, folder: Path) -> Iterator[Forked]:
    """Forty clients; none of them outlives the test."""
    with Forked(["swarm", url, "--clients", "40", "--json"], cwd=folder) as clients:
        try:
            yield clients
        finally:
            clients.kill()


def fetched(address: str) -> Any:
    with urllib.request.urlopen(address, timeout=300) as answer:
        return json.load(answer)


def pictured(visits: dict[str, Visit], when: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name, seen in visits.items():
        seen.page.screenshot(path=PICTURES / f"live-{when}-{name}.png", full_page=when == "after")


@pytest.mark.slow
def test_a_campaign_is_watched_from_before_its_first_slot_to_its_certificate(
    browser: Browser, tmp_path: Path
) -> None:
    """On a busy machine clients may only be there when it is over: then with a later start."""
    for seconds in (8, 60, 240):
        folder = tmp_path / f"{seconds}"
        folder.mkdir()
        if watched(browser, folder, start=f"+{seconds}"):
            return
    raise AssertionError("the clients did not take part")


def watched(browser: Browser, folder: Path, *, start: str) -> bool:
    """Watch a campaign on three pages; whether its clients came in time."""
    looks: dict[str, Any] = {
        "light": {"size": DESK},
        "dark": {"size": DESK, "dark": True},
        "phone": {"size": PHONE},
    }
    with (
        serving(folder, CAMPAIGN, start=start, real=False, with_epsilons=True) as served,
        swarming(served.url, folder) as clients,
        ExitStack() as open_pages,
    ):
        visits = {
            name: open_pages.enter_context(watching(browser, served.url, **look))
            for name, look in looks.items()
        }
        for seen in visits.values():
            shown(seen.page)
            seen.page.evaluate("window.loaded = 'once'")
        pictured(visits, "before")
        for seen in visits.values():
            seen.page.wait_for_function(
                "() => !document.getElementById('now').textContent.startsWith('Begins')"
            )
        wait_for_text(visits["light"].page, "learned", "AUC")
        pictured(visits, "while")
        for seen in visits.values():
            wait_for_text(seen.page, "now", f"Completed {SLOTS} of {SLOTS}")
            wait_for_text(seen.page, "learned-note", f"After {SLOTS} slots")
        view = fetched(f"{served.url}/campaigns/{served.campaign}")
        for seen in visits.values():
            wait_for_text(
                seen.page, "ledger", view["ledger"]["head"]
            )  # the closing line, read again
            assert text(seen.page, "link-text") == "Over"
            epsilon = formatting.up_for_page(view["certificate"]["epsilon"])
            assert text(seen.page, "spent") == f"ε ≤ {epsilon} of 1"
            assert f"{epsilon} is proven (rounded up)" in text(seen.page, "certificate")
            assert seen.page.locator("#strip").get_attribute("aria-label") == (
                f"{SLOTS} of {SLOTS} slots released"
            )
            assert seen.page.evaluate("window.loaded") == "once"
            assert overflow(seen.page) <= 0
            assert (seen.errors, seen.asked) == ([], [])
        pictured(visits, "after")
        clients.communicate(timeout=300)
        return clients.returncode == 0


def test_the_page_of_the_service_asks_for_no_inline_script(
    browser: Browser, tmp_path: Path
) -> None:
    with serving(tmp_path, CAMPAIGN, start="+3600", real=False) as served:
        with urllib.request.urlopen(served.url, timeout=300) as answer:
            policy = answer.headers["content-security-policy"]
        assert "script-src 'self'" in policy
        assert "unsafe-eval" not in policy
        with watching(browser, served.url) as seen:
            shown(seen.page)
            assert text(seen.page, "now").startswith("Begins in")
            assert seen.page.locator("script:not([src])").count() == 0
        assert (seen.errors, seen.asked) == ([], [])
