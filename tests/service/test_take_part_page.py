"""The page /take-part, on a real coordinator in a real browser: one button, and an odometer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.service.test_page import CONTRAST
from tests.support.accessibility import barriers
from tests.support.browser import Visit, every_look, overflow, text, wait_for_text, watching
from tests.support.campaigns import EVERYONE, campaign_text, long_campaign
from tests.support.coordinator import Coordinator, serving

if TYPE_CHECKING:
    from tests.support.browser import Browser, Page

IS = "(id) => !document.getElementById(id).hidden"
READY = f"""() => ["join", "problem"].some({IS})
  || document.getElementById("name").textContent.startsWith("No single campaign")"""
DRAWN = f"""() => document.getElementById("steps").textContent.includes("It drew its slot")
  || ["problem"].some({IS})"""
OVER = f"""() => document.getElementById("progress").dataset.state !== undefined
  || ["problem"].some({IS})"""
STORED = """async () => {
  const { IndexedDbStore } = await import("/client.js");
  const store = new IndexedDbStore();
  const found = {};
  for (const key of await store.keys()) found[key] = JSON.parse(await store.load(key));
  return found;
}"""


SLOWER = (1.0, 4.0, 16.0)
"""How much longer the campaign is made where a busy machine came too late to its slot."""


@pytest.fixture(scope="module")
def device(
    tmp_path_factory: pytest.TempPathFactory, browser: Browser
) -> Iterator[tuple[Visit, Coordinator]]:
    """The page of a device that has taken part in a campaign on public data, and the coordinator.

    The campaign has two slots. The device is used by keyboard, and reloaded after its draw.
    """
    for slower in SLOWER:
        given = {**EVERYONE, "data": "patients", "slots": 2, "epsilon": 900.0}
        times = {"slot_s": 4.0 * slower, "choose_s": 2.0 * slower}
        written = campaign_text(**{**given, "name": "demo", **times})
        folder = tmp_path_factory.mktemp("demo")
        with (
            serving(folder, written, start=f"+{8 * slower:g}") as it,
            watching(browser, f"{it.url}/") as seen,
        ):
            take_part(seen.page)
            if seen.page.locator("#progress[data-state=reported]").count():
                yield seen, it
                assert (seen.errors, seen.asked) == ([], [])
                return
    raise AssertionError("the browser came too late to every slot")


def take_part(page: Page) -> None:
    """Follow the link of the main page, press the button, and reload the page after the draw.

    Return early if the campaign is over, because the machine is busy.
    """
    page.wait_for_selector("#part:not(:empty)")
    if not page.is_visible("#join-browser a"):
        return
    page.click("#join-browser a")
    page.wait_for_function(READY)
    if not page.is_visible("#join"):
        return
    assert text(page, "spent") == "ε = 0"
    assert "invented" in page.inner_text("main").lower()
    page.focus("#join")
    page.keyboard.press("Enter")
    page.wait_for_function(DRAWN)
    if not page.is_visible("#problem"):
        assert page.evaluate("document.activeElement.id") == "progress"
        page.reload()
        page.wait_for_function(OVER)


@pytest.fixture
def visit(device: tuple[Visit, Coordinator]) -> Visit:
    return device[0]


@pytest.fixture
def demo(device: tuple[Visit, Coordinator]) -> Coordinator:
    return device[1]


def test_one_button_takes_part_and_a_reload_goes_on(visit: Visit, demo: Coordinator) -> None:
    assert visit.page.get_attribute("#progress", "data-state") == "reported"
    assert "sent and accepted" in text(visit.page, "now")
    stored = visit.page.evaluate(STORED)
    run = demo.campaign
    assert stored[run] == {"schema": 1, "campaign": run, "ended": "REPORTED"}
    assert [charge["runs"] for charge in stored["odometer"]["charges"]] == [[run]]


def test_the_odometer_shows_the_whole_budget(visit: Visit, demo: Coordinator) -> None:
    budget = httpx.get(f"{demo.url}/campaigns/{demo.campaign}").json()["budget"]
    assert budget["epsilon"] == 900.0
    assert text(visit.page, "spent") == "ε ≤ 900, δ ≤ 10⁻⁶"
    assert "clinic" in text(visit.page, "charges")


def test_it_is_readable_on_a_desk_and_on_a_phone(visit: Visit) -> None:
    for look in every_look(visit.page):
        assert overflow(visit.page) <= 0, look
        assert visit.page.evaluate(CONTRAST) == [], look
        assert barriers(visit.page) == [], look


def test_people_who_cannot_see_it_are_told_what_happens(visit: Visit) -> None:
    page = visit.page
    assert page.get_attribute("#now", "aria-live") == "polite"
    assert page.get_attribute("#timer", "aria-live") == "off"  # not every second
    assert page.get_attribute("#problem", "role") == "alert"
    unnamed = "[...document.querySelectorAll('section:not([aria-labelledby])')].length"
    assert page.evaluate(unnamed) == 0


def test_an_address_without_encryption_is_not_joined(
    device: tuple[Visit, Coordinator], browser: Browser
) -> None:
    context = browser.new_context()
    try:
        page = context.new_page()
        page.add_init_script("Object.defineProperty(window, 'isSecureContext', { value: false })")
        page.goto(f"{device[1].url}/take-part")
        page.wait_for_function("document.getElementById('name').textContent.includes('not encr')")
        assert not page.is_visible("#join")
    finally:
        context.close()


def test_a_campaign_on_data_of_its_devices_is_not_joined(tmp_path: Path, browser: Browser) -> None:
    data = (
        '{ file = "a.csv", client_column = "c", label_column = "y", features = ["x"],'
        " ranges = { x = [0.0, 1.0] } }"
    )
    (tmp_path / "a.csv").write_text("c,y,x\n" + "".join(f"{i},{i % 2},0.5\n" for i in range(6)))
    written = long_campaign("clinic").replace('data = "synthetic"', f"data = {data}")
    with serving(tmp_path, written) as it, watching(browser, f"{it.url}/take-part") as seen:
        seen.page.wait_for_selector("#problem:not([hidden])")
        assert "devices with data of their own" in text(seen.page, "problem")
        for hidden in ("#join", "#intro", "#good-to-know"):
            assert not seen.page.is_visible(hidden)
        assert json.dumps(seen.page.evaluate(STORED)) == "{}"
        seen.page.goto(f"{it.url}/")
        seen.page.wait_for_selector("#join-how:not([hidden])")
        assert not seen.page.is_visible("#join-browser")


def test_a_device_leaves_with_the_button_and_not_with_a_link(
    tmp_path: Path, browser: Browser
) -> None:
    given = {**EVERYONE, "data": "patients", "slots": 2, "epsilon": 900.0}
    written = campaign_text(**{**given, "name": "demo", "slot_s": 900.0, "choose_s": 600.0})
    with (
        serving(tmp_path, written, start="+600") as it,
        watching(browser, f"{it.url}/take-part#leave") as seen,
    ):
        page = seen.page
        page.click("#join")
        wait_for_text(page, "steps", "It drew its slot")
        page.goto(f"{it.url}/")
        page.goto(f"{it.url}/take-part#leave")
        wait_for_text(page, "steps", "It went on where it was")
        page.click("#withdraw")
        wait_for_text(page, "now", "has left")
        assert page.evaluate(STORED)[it.campaign]["ended"] == "WITHDRAWN"
        page.reload()
        wait_for_text(page, "now", "has left")
