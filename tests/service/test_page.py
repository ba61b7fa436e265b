"""The live page in a real browser, against a stand-in that keeps the wire contract."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkins import formatting
from tests.service.page_double import Run, running
from tests.support.accessibility import barriers
from tests.support.browser import (
    DESK,
    PHONE,
    THREE_FRAMES,
    Visit,
    every_look,
    live,
    overflow,
    shown,
    text,
    wait_for_text,
    watching,
)

if TYPE_CHECKING:
    from tests.support.browser import Browser, Request, Route

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
CONTRAST = Path(__file__).with_name("contrast.js").read_text(encoding="utf-8")


MOMENTS = {  # made when a test begins: a campaign goes on while others run
    "before": partial(Run, status="waiting", start_in_s=4000.0),
    "while": partial(Run, closed=73, start_in_s=-73 * 3600 - 400),
    "quick": partial(Run, closed=3, slots=12, slot_s=0.5, choose_s=0.15, curve_every=1),
    "after": partial(Run, closed=200, status="completed", start_in_s=-201 * 3600),
    "stopped": partial(Run, closed=40, affordable=40, status="stopped", start_in_s=-50 * 3600),
}


@pytest.fixture(scope="module")
def midway(browser: Browser) -> Iterator[Visit]:
    """A page of a run after 73 of 200 slots, for tests that only read it."""
    with running(MOMENTS["while"]()) as double, watching(browser, double.url) as seen:
        shown(seen.page)
        yield seen
    assert (seen.errors, seen.asked) == ([], [])


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_page_fits_complains_of_nothing_and_asks_no_other_host(
    browser: Browser, moment: str
) -> None:
    with running(MOMENTS[moment]()) as double, watching(browser, double.url) as seen:
        shown(seen.page)
        for summary in seen.page.locator("summary:visible").all():
            summary.click()
        for look in every_look(seen.page):
            assert overflow(seen.page) <= 0, look
            assert seen.page.evaluate(CONTRAST) == [], look
            assert barriers(seen.page) == [], look
        assert "plotly" not in "".join(double.asked)
    assert (seen.errors, seen.asked) == ([], [])


def test_the_first_screen_answers_what_now_learned_and_cost(midway: Visit) -> None:
    for name in ("name", "lede", "now", "strip", "learned", "curve", "spent", "spending"):
        box = midway.page.locator(f"#{name}").bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= DESK[1], name
    assert text(midway.page, "now") == "Slot 74 of 200"
    assert "check-ins open" in text(midway.page, "phases")


def test_every_epsilon_names_its_rounding_delta_adjacency_and_method(midway: Visit) -> None:
    spent = MOMENTS["while"]().spent()
    assert spent is not None
    assert text(midway.page, "spent") == f"ε ≤ {formatting.up_for_page(spent['epsilon'])} of 0.5"
    for said in ("At most, rounded up", "δ = 10⁻⁶", "add/remove", "exact"):
        assert said in text(midway.page, "spent-note").replace("\N{NO-BREAK SPACE}", " ")
    certificate = text(midway.page, "certificate")
    assert "0.2506 is proven (rounded up)" in certificate
    assert "no ε below 0.2502" in certificate
    assert "by at most a factor of 1.285, and by 10⁻⁶ more" in text(midway.page, "claim")


def test_a_point_of_a_figure_tells_its_value(midway: Visit) -> None:
    for figure, told in (("curve", "After 0 slots: AUC 0.5000."), ("spending", "After 1 slot:")):
        # A figure that is drawn again in the meantime is waited for.
        midway.page.locator(f"#{figure} svg").hover(position={"x": 5, "y": 60}, force=True)
        wait_for_text(midway.page, f"{figure}-read", told)
    assert "(add/remove, rounded up)" in text(midway.page, "spending-read")


def test_what_can_be_downloaded_and_typed_is_this_servers(midway: Visit) -> None:
    url, run = midway.page.url.rstrip("/"), MOMENTS["while"]().id
    link = midway.page.get_by_role("link", name="Download ledger.jsonl")
    assert link.evaluate("(node) => node.href") == f"{url}/campaigns/{run}/ledger"
    model = midway.page.get_by_role("link", name="Download the model")
    assert model.evaluate("(node) => node.href").endswith(f"/{run}/models/latest")
    assert f"{url}/campaigns/{run}" in text(midway.page, "verify")
    assert url in text(midway.page, "join")


def test_the_page_rounds_as_the_report_does(midway: Visit) -> None:
    draw = random.Random(20)
    values = [draw.uniform(0.0, 1.0) * 10.0 ** draw.randint(-9, 9) for _ in range(400)]
    values += [0.0, 1.0, 0.25, 0.2505022389725925, 9999.5, 99995.0, 1e7, 1e300]
    values += [tenths / 10 for tenths in range(1, 101)]  # as they are asked for
    values += [round(draw.uniform(0.0, 10.0), draw.randint(1, 6)) for _ in range(200)]
    told = midway.page.evaluate(
        """async (values) => {
          const { roundUp, roundDown } = await import("/page/numbers.js");
          return values.map((value) => [roundUp(value), roundDown(value)]);
        }""",
        values,
    )
    assert told == [
        [formatting.up_for_page(value), formatting.down_for_page(value)] for value in values
    ]
    for value, (above, below) in zip(values, told, strict=True):
        if value == 0.0 or 1e-4 <= value < 1e6:  # the page writes other numbers with powers of ten
            shown = Decimal(above.replace(",", "")), Decimal(below.replace(",", ""))
            assert shown == (Decimal(formatting.up(value)), Decimal(formatting.down(value)))
            assert shown[0] == Decimal(formatting.up_in_full(value))


def test_a_release_shows_without_anything_being_read_again(browser: Browser) -> None:
    run = Run(closed=9, start_in_s=-9 * 3600 - 400)
    with running(run) as double, watching(browser, double.url) as seen:
        shown(seen.page)
        live(seen.page)
        seen.page.wait_for_load_state("networkidle")
        before = double.asked.total()
        double.release(run)
        wait_for_text(seen.page, "ledger", run.head())
        wait_for_text(seen.page, "learned-note", "After 10 slots")
        assert text(seen.page, "spent").startswith(
            f"ε ≤ {formatting.up_for_page(run.epsilon_after(10))}"
        )
        assert double.asked.total() == before
    assert seen.errors == []


def test_an_epsilon_that_is_computed_later_shows_without_a_release(browser: Browser) -> None:
    run = Run(closed=9, start_in_s=-9 * 3600 - 400)
    with running(run) as double, watching(browser, double.url) as seen:
        shown(seen.page)
        live(seen.page)
        spent = run.changes["spent"] = {"epsilon": 0.125, "slots": 9}
        double.tell(run, "state", double.state(run) | {"spent": spent})
        wait_for_text(seen.page, "spent", "ε ≤ 0.125")
    assert seen.errors == []


def test_the_end_is_no_lost_connection(browser: Browser) -> None:
    run = Run(closed=199, start_in_s=-200 * 3600 - 400)
    with running(run) as double, watching(browser, double.url) as seen:
        shown(seen.page)
        live(seen.page)
        double.release(run)
        double.end(run)
        wait_for_text(seen.page, "now", "Completed")
        with double.lock:
            for _, stream in double.listeners:
                stream.put(None)
        seen.page.wait_for_load_state("networkidle")
        assert text(seen.page, "link-text") == "Over"
        assert "This campaign is over" in text(seen.page, "part")
        assert text(seen.page, "spent").startswith("ε ≤ 0.2506")
    assert seen.errors == []


@pytest.mark.slow
def test_a_lost_connection_is_said_and_caught_up_with(browser: Browser) -> None:
    run = Run(closed=9, start_in_s=-9 * 3600 - 400)
    with running(run) as double, watching(browser, double.url) as seen:
        shown(seen.page)
        live(seen.page)
        double.stop()
        wait_for_text(seen.page, "link-text", "Connection lost. Last heard")
        wait_for_text(seen.page, "said", "Connection lost")
        assert "the last state that the server sent" in text(seen.page, "notice")
        for _ in range(6):
            double.release(run, told=False)
        double.start()
        live(seen.page)
        wait_for_text(seen.page, "ledger", run.head())
        wait_for_text(seen.page, "learned-note", "After 15 slots")
        seen.page.locator("#notice").wait_for(state="hidden")
        double.release(run)
        wait_for_text(seen.page, "ledger", run.head())
    assert seen.asked == []


def test_the_clock_is_the_servers(browser: Browser) -> None:
    run = Run(status="waiting", start_in_s=125.0, ahead_s=86_400.0)
    with running(run) as double, watching(browser, double.url) as seen:
        shown(seen.page)
        assert text(seen.page, "now").replace("\N{NO-BREAK SPACE}", " ").startswith("Begins in 2 m")


def test_ten_thousand_slots_are_few_nodes(browser: Browser) -> None:
    run = Run(
        slots=10_000, closed=6200, slot_s=10.0, choose_s=3.0, start_in_s=-62_003, curve_every=1
    )
    with running(run) as double, watching(browser, double.url) as seen:
        shown(seen.page)
        for look in every_look(seen.page):
            assert seen.page.evaluate("document.querySelectorAll('*').length") < 800, look
            path = seen.page.locator("#curve path").first.get_attribute("d")
            assert len(path) < 40_000, look
            assert overflow(seen.page) <= 0, look
        assert "of 10,000" in text(seen.page, "now")
    assert seen.errors == []


def test_all_released_slots_look_alike(browser: Browser) -> None:
    run = Run(closed=30, slots=40, start_in_s=-30 * 3600 - 400)
    with running(run) as double, watching(browser, double.url) as seen:
        shown(seen.page)
        colours = seen.page.evaluate(
            """() => {
              const strip = document.getElementById("strip");
              const pen = strip.getContext("2d");
              const pixel = (i) => pen.getImageData((i + 0.5) * strip.width / 40, 9, 1, 1).data;
              return Array.from({ length: 40 }, (_, i) => pixel(i).join());
            }"""
        )
        assert len(set(colours[:30])) == len(set(colours[31:])) == 1
        assert len({colours[0], colours[30], colours[31]}) == 3


def test_a_slot_that_is_over_and_not_released_has_a_colour_of_its_own(browser: Browser) -> None:
    run = Run(closed=29, slots=40, start_in_s=-30 * 3600 - 400)
    with running(run) as double, watching(browser, double.url) as seen:
        shown(seen.page)
        colours = seen.page.evaluate(
            """() => {
              const strip = document.getElementById("strip");
              const pen = strip.getContext("2d");
              const pixel = (i) => pen.getImageData((i + 0.5) * strip.width / 40, 9, 1, 1).data;
              return Array.from({ length: 40 }, (_, i) => pixel(i).join());
            }"""
        )
        assert len({colours[28], colours[29], colours[30], colours[31]}) == 4


def test_no_string_of_a_campaign_becomes_markup(browser: Browser) -> None:
    certificate = {
        "epsilon": 0.3,
        "delta": 1e-6,
        "adjacency": HOSTILE,
        "unit": HOSTILE,
        "method": HOSTILE,
        "rounding": HOSTILE,
        "assumptions": [HOSTILE],
        "alternatives": [{"method": HOSTILE, "epsilon": 1.0, "note": HOSTILE}],
    }
    run = Run(
        name=HOSTILE,
        closed=2,
        curve_every=1,
        changes={
            "certificate": certificate,
            "promises": [HOSTILE],
            "assumptions": [HOSTILE + "."],
            "ledger": {"entries": 3, "head": HOSTILE},
            "model_hash": HOSTILE,
            "seal": HOSTILE,
            "population_id": HOSTILE,
            "status": HOSTILE,
            "next": HOSTILE,
        },
    )
    with running(run, Run(name="other")) as double:
        for address in (f"{double.url}/#{run.id}", double.url):
            with watching(browser, address, size=PHONE) as seen:
                seen.page.get_by_text(HOSTILE, exact=True).first.wait_for()
                assert seen.page.locator("img, main script").count() == 0
                assert seen.page.title() != "owned"
                assert overflow(seen.page) <= 0
            assert (seen.errors, seen.asked) == ([], [])


def test_a_hostile_metric_name_is_only_text(browser: Browser) -> None:
    run = Run(closed=1, curve_every=None)
    with running(run) as double, watching(browser, double.url) as seen:
        shown(seen.page)
        live(seen.page)
        double.tell(run, "curve", {"slots": 1, "metrics": {HOSTILE: 0.5, "__proto__": 1.0}})
        seen.page.get_by_text(HOSTILE).first.wait_for()
        assert seen.page.locator("img").count() == 0
    assert seen.errors == []


def test_missing_values_are_dashes_and_never_nan(browser: Browser) -> None:
    kept = ("id", "status", "slots_closed")
    runs = [Run(name=f"run {i}", closed=3, curve_every=None) for i in range(5)]
    for run, nothing in zip(runs, (None, {}, [], "", "words"), strict=True):
        run.changes = {key: nothing for key in run.view() if key not in kept}
    with running(*runs) as double, watching(browser, double.url, size=PHONE) as seen:
        for run in runs:
            seen.page.goto(f"{double.url}/#{run.id}")  # loads nothing: only the fragment changes
            seen.page.wait_for_selector(f"#campaign:not([hidden]) [href*='{run.id}/ledger']")
            body = seen.page.locator("body").inner_text()
            for wrong in ("NaN", "undefined", "null", "[object", "Infinity"):
                assert wrong not in body, run.changes
            assert overflow(seen.page) <= 0
    assert seen.errors == []


def test_a_campaign_without_a_holdout_says_so(browser: Browser) -> None:
    table = {"data": {"file": "x.csv", "client_column": "who"}, "model": "logistic"}
    run = Run(closed=3, curve_every=None, task=table)
    with running(run) as double, watching(browser, double.url) as seen:
        shown(seen.page)
        assert "No public holdout is declared" in text(seen.page, "curve")


def test_one_campaign_opens_at_once_and_several_are_listed(browser: Browser) -> None:
    runs = [Run(), Run(name="second", closed=200, status="completed")]
    with running(*runs) as double, watching(browser, double.url) as seen:
        seen.page.get_by_role("link", name="second").click()
        wait_for_text(seen.page, "name", "second")
        assert seen.page.url.endswith(f"#{runs[1].id}")
        seen.page.get_by_role("link", name="All campaigns (2)").click()
        seen.page.get_by_role("link", name="patients").wait_for()
        assert seen.page.locator("#campaign").is_hidden()
        seen.page.go_back()
        wait_for_text(seen.page, "now", "Completed")
    assert seen.errors == []


def test_an_unknown_campaign_is_said_beside_those_that_there_are(browser: Browser) -> None:
    with running(Run()) as double, watching(browser, f"{double.url}/#nobody-1") as seen:
        wait_for_text(seen.page, "list-note", "There is no campaign nobody-1 here.")
        seen.page.get_by_role("link", name="patients").click()
        wait_for_text(seen.page, "name", "patients")


def test_a_server_without_campaigns_says_so(browser: Browser) -> None:
    with running() as double, watching(browser, double.url) as seen:
        wait_for_text(seen.page, "list-note", "No campaign yet")
    assert seen.errors == []


def test_the_metric_is_chosen_by_keyboard_and_stays_chosen(browser: Browser) -> None:
    run = Run(closed=20)
    with running(run) as double, watching(browser, double.url) as seen:
        shown(seen.page)
        live(seen.page)
        seen.page.keyboard.press("Tab")
        assert seen.page.evaluate("document.activeElement.textContent") == "Skip to the campaign"
        seen.page.keyboard.press("Enter")
        assert seen.page.evaluate("document.activeElement.id") == "main"
        assert "#" not in seen.page.url
        seen.page.get_by_role("button", name="loss").focus()
        seen.page.keyboard.press("Enter")
        wait_for_text(seen.page, "learned", "loss")
        assert seen.page.evaluate("document.activeElement.textContent") == "loss"
        double.release(run)
        wait_for_text(seen.page, "ledger", run.head())
        assert "loss" in text(seen.page, "learned")
        assert seen.page.locator("#curve svg").get_attribute("role") == "img"
        assert seen.page.locator("[role=status][aria-live=polite]").count() == 1


def test_a_campaign_on_hold_says_why_until_it_goes_on(browser: Browser) -> None:
    run = Run(closed=9, start_in_s=-9 * 3600 - 400)
    why = "the server's clock was set forward by 3,600 s"
    with running(run) as double, watching(browser, double.url) as seen:
        shown(seen.page)
        live(seen.page)
        run.changes["holding"] = why
        double.tell(run, "status", {"status": "running", "next": None, "holding": why})
        wait_for_text(seen.page, "notice", why)
        wait_for_text(seen.page, "now", "On hold 9 of 200 slots released")
        assert seen.page.locator("#phases").is_hidden()
        run.changes["holding"] = None
        double.tell(run, "status", {"status": "running", "next": None, "holding": None})
        wait_for_text(seen.page, "now", "Slot 10 of 200")
        seen.page.locator("#notice").wait_for(state="hidden")
    assert seen.errors == []


def test_a_response_that_comes_late_does_not_undo_a_later_one(browser: Browser) -> None:
    run = Run(closed=9, start_in_s=-9 * 3600 - 400)
    held = {"status": "running", "next": None, "holding": "the server's clock was set forward"}
    late: list[Route] = []
    with running(run) as double, watching(browser, double.url) as seen:
        address = f"{double.url}/campaigns/{run.id}"

        def read(times: int) -> Callable[[Request], bool]:
            """Whether the page has read the view and the progress so often from now on."""
            left = Counter({address: times, f"{address}/progress": times})

            def finished(request: Request) -> bool:
                left[request.url] -= 1
                return max(left.values()) <= 0

            return finished

        with seen.page.expect_event("requestfinished", read(2)):
            seen.page.reload()
        live(seen.page)
        seen.page.route(address, lambda route: late.append(route), times=1)
        double.tell(run, "status", held)
        wait_for_text(seen.page, "now", "On hold 9 of 200 slots released")
        with seen.page.expect_event("requestfinished", read(1)):
            double.tell(run, "status", {**held, "holding": None})
        wait_for_text(seen.page, "now", "Slot 10 of 200")
        with seen.page.expect_event("requestfinished", lambda request: request.url == address):
            late[0].fulfill(json=run.view() | held)
        seen.page.evaluate(THREE_FRAMES)
        assert text(seen.page, "now") == "Slot 10 of 200"
    assert seen.errors == []


def test_what_a_reader_selected_stays_selected(browser: Browser) -> None:
    run = Run(closed=20)
    with running(run) as double, watching(browser, double.url) as seen:
        shown(seen.page)
        live(seen.page)
        seen.page.evaluate(
            "getSelection().selectAllChildren(document.getElementById('certificate'))"
        )
        double.release(run)
        wait_for_text(seen.page, "ledger", run.head())
        assert "is proven" in seen.page.evaluate("getSelection().toString()")
