"""The planner's page in a real browser: against a stand-in, and against a real coordinator."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pytest

from checkins.campaign import parse_campaign
from tests.service.plan_double import Double, planning
from tests.service.test_page import CONTRAST, HOSTILE
from tests.service.test_page_live import CAMPAIGN
from tests.support.accessibility import barriers
from tests.support.browser import (
    DESK,
    PHONE,
    Visit,
    every_look,
    overflow,
    text,
    wait_for_text,
    watching,
)
from tests.support.coordinator import serving
from tests.support.forks import Forked

if TYPE_CHECKING:
    from tests.support.browser import Browser, Page

NUMBERS = count(2)
PICTURES = Path(__file__).resolve().parents[2] / "out" / "page"


def answered(page: Page) -> None:
    """Wait until what stands there is the answer to what is asked."""
    page.wait_for_selector("#plan:not([hidden]):not(.stale)")


def curve(page: Page, name: str) -> str:
    """The first line of a figure, once it stands still."""
    page.wait_for_selector(f"#{name}:not(.moving) path.line")
    found = page.locator(f"#{name} path.line").first.get_attribute("d")
    assert found is not None
    return found


def moved(page: Page, name: str, before: str) -> str:
    """The first line of a figure, once it is another one than before and stands still."""
    page.wait_for_function(
        """([name, before]) =>
          document.querySelector(`#${name} path.line`)?.getAttribute("d") !== before""",
        arg=[name, before],
    )
    return curve(page, name)


def number(page: Page, name: str) -> str:
    """One of the recommended design's headline numbers."""
    return page.locator("#numbers div", has_text=name).locator("dd").inner_text().split()[0]


def slide(page: Page, name: str, presses: int) -> None:
    """Move a slider as a keyboard does."""
    key = "ArrowRight" if presses > 0 else "ArrowLeft"
    page.locator(f"#{name}-slider").focus()
    for _ in range(abs(presses)):
        page.keyboard.press(key)


def asked_in_address(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).fragment)


@pytest.fixture(scope="module")
def opened(browser: Browser) -> Iterator[tuple[Double, Visit]]:
    """The page of a stand-in, loaded once for many tests."""
    with planning() as double, watching(browser, f"{double.url}/plan") as seen:
        yield double, seen


@pytest.fixture
def planned(opened: tuple[Double, Visit]) -> Iterator[tuple[Double, Page]]:
    """A page with the plan for the first question. Its delta differs, so nothing is cached."""
    double, seen = opened
    ask(seen.page, double, "delta", f"{next(NUMBERS)}e-6")
    double.asked = double.asked[-1:]
    yield double, seen.page
    assert ([one for one in seen.errors if "422" not in one], seen.asked) == ([], [])


def ask(page: Page, double: Double, name: str, value: str) -> None:
    """Ask the first question with one change, by the address: only the first one loads the page."""
    page.goto(f"{double.url}/plan#{name}={value}")
    page.wait_for_function(
        "([name, value]) => document.getElementById(name).value === value", arg=[name, value]
    )
    answered(page)


def test_the_page_fits_complains_of_nothing_and_asks_no_other_host(browser: Browser) -> None:
    with planning() as double, watching(browser, f"{double.url}/plan") as seen:
        answered(seen.page)
        for summary in seen.page.locator("summary:visible").all():
            summary.click()
        for look in every_look(seen.page):
            assert overflow(seen.page) <= 0, look
            assert seen.page.evaluate(CONTRAST) == [], look
            assert barriers(seen.page) == [], look
    assert (seen.errors, seen.asked) == ([], [])


def test_sliders_recommendation_and_curves_are_on_the_first_screen(
    planned: tuple[Double, Page],
) -> None:
    _, page = planned
    sliders = [f"#{name}-slider" for name in ("epsilon", "population", "slots")]
    for name in (*sliders, "#label", "#download", "#by-slots path.line", "#by-budget path.line"):
        box = page.locator(name).first.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= DESK[1], name


def test_the_campaign_file_can_be_downloaded(planned: tuple[Double, Page]) -> None:
    _, page = planned
    with page.expect_download() as waiting:
        page.locator("#download").click()
    assert waiting.value.suggested_filename == "campaign.toml"
    saved = tomllib.loads(Path(waiting.value.path()).read_text(encoding="utf-8"))
    assert saved["protocol"]["slots"] == int(page.locator("#slots").input_value())


def test_a_point_of_a_figure_tells_its_value(planned: tuple[Double, Page]) -> None:
    _, page = planned
    for figure, told in (
        ("by-slots", "10 slots: estimated error"),
        ("by-budget", "ε = 0.1: estimated error"),
    ):
        box = page.locator(f"#{figure} svg").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 48, box["y"] + 60)
        wait_for_text(page, f"{figure}-read", told)


def test_the_page_is_used_by_keyboard_alone(browser: Browser) -> None:
    with planning() as double, watching(browser, f"{double.url}/plan") as seen:
        page = seen.page
        answered(page)
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        reached = set()
        page.locator(".brand").focus()
        for _ in range(40):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("document.activeElement.id"))
        wanted = {"epsilon", "epsilon-slider", "population-slider", "slots-slider", "automatic"}
        assert wanted | {"delta", "adjacency", "download", "front-table"} <= reached
        unnamed = page.evaluate(
            """() => [...document.querySelectorAll("input, select")]
              .filter((one) => !one.labels?.length && !one.getAttribute("aria-label"))
              .map((one) => one.id)"""
        )
        assert unnamed == []
        assert page.locator("[role=status][aria-live=polite]").count() == 1
        assert page.locator("#by-slots svg").get_attribute("role") == "img"


def test_moving_the_budget_moves_the_noise_and_the_curves(planned: tuple[Double, Page]) -> None:
    double, page = planned
    noise, line = number(page, "noise"), curve(page, "by-slots")
    slide(page, "epsilon", -60)
    answered(page)
    assert float(page.locator("#epsilon").input_value()) < 0.9
    assert double.asked[-1]["epsilon"] == page.locator("#epsilon").input_value()
    assert float(number(page, "noise")) > float(noise)
    assert moved(page, "by-slots", line) != line


def test_many_moves_at_once_are_one_question(planned: tuple[Double, Page]) -> None:
    double, page = planned
    page.evaluate(
        """() => {
          const slider = document.getElementById("epsilon-slider");
          for (let press = 0; press < 60; press += 1) {
            slider.stepDown();
            slider.dispatchEvent(new Event("input", { bubbles: true }));
          }
        }"""
    )
    answered(page)
    assert [one["epsilon"] for one in double.asked[1:]] == [page.locator("#epsilon").input_value()]


@pytest.mark.slow
def test_small_steps_of_a_slider_add_up(planned: tuple[Double, Page]) -> None:
    _, page = planned
    for _ in range(12):
        slide(page, "epsilon", 1)
        answered(page)
    assert float(page.locator("#epsilon").input_value()) > 1.3


def test_moving_the_population_moves_both_ends(planned: tuple[Double, Page]) -> None:
    double, page = planned
    slide(page, "population", 40)
    answered(page)
    low, _, high = double.asked[-1]["population"].partition("..")
    assert int(high) > 20_000
    assert 1.8 < int(high) / int(low) < 2.2


def test_slots_are_chosen_until_the_slider_fixes_them(planned: tuple[Double, Page]) -> None:
    double, page = planned
    assert "slots" not in double.asked[-1]
    chosen = page.locator("#slots").input_value()
    assert chosen in text(page, "label").replace(",", "")
    slide(page, "slots", -30)
    answered(page)
    fixed = double.asked[-1]["slots"]
    assert int(fixed) < int(chosen)
    assert fixed in text(page, "label").replace(",", "")
    assert text(page, "slots-how") == "fixed"
    page.locator("#automatic").check()
    wait_for_text(page, "slots-how", "automatic")
    answered(page)
    assert page.locator("#slots").input_value() == chosen
    page.locator("#slots").fill("77")
    answered(page)
    assert double.asked[-1]["slots"] == "77"
    assert not page.locator("#automatic").is_checked()


def test_the_last_answer_stays_dimmed_while_the_next_is_computed(
    planned: tuple[Double, Page],
) -> None:
    double, page = planned
    before = text(page, "label")
    double.held.clear()
    slide(page, "epsilon", 8)
    page.wait_for_selector("#plan.stale")
    wait_for_text(page, "state-text", "Computing")
    assert page.locator("#main").get_attribute("aria-busy") == "true"
    assert text(page, "label") == before
    assert page.locator("#by-budget .mark.asked").get_attribute("visibility") == "visible"
    double.held.set()
    answered(page)
    wait_for_text(page, "state-text", "Planned")
    assert page.locator("#main").get_attribute("aria-busy") == "false"


def test_a_superseded_question_is_cancelled(planned: tuple[Double, Page]) -> None:
    double, page = planned
    dropped: list[str] = []
    page.on("requestfailed", lambda request: dropped.append(request.url))
    double.held.clear()
    page.locator("#epsilon").fill("3")
    page.wait_for_function("() => location.hash.includes('epsilon=3&')")
    page.locator("#epsilon").fill("4")
    page.wait_for_function("() => location.hash.includes('epsilon=4&')")
    double.held.set()
    answered(page)
    wait_for_text(page, "budget-said", "budget ε 4")
    assert any("epsilon=3&" in url for url in dropped)


def test_going_back_to_an_answered_question_asks_nobody(planned: tuple[Double, Page]) -> None:
    double, page = planned
    page.locator("#epsilon").fill("2")
    wait_for_text(page, "budget-said", "budget ε 2")
    asked = len(double.asked)
    page.locator("#epsilon").fill("1")
    wait_for_text(page, "budget-said", "budget ε 1")
    assert len(double.asked) == asked


def test_an_error_stands_beside_its_input_and_goes_with_its_cause(
    planned: tuple[Double, Page],
) -> None:
    detail = "delta: must be a number from 1e-15 to 0.1"
    double, page = planned
    double.answers.append((422, {"detail": detail}, {}))
    page.locator("#delta").fill("2")
    wait_for_text(page, "delta-error", "must be a number from 1e-15 to 0.1")
    assert page.locator("#delta").get_attribute("aria-invalid") == "true"
    assert detail in text(page, "said")
    assert page.locator("#plan.stale").count() == 1
    assert page.evaluate(CONTRAST) == []
    page.locator("#delta").fill("1e-7")
    answered(page)
    assert text(page, "delta-error") == ""
    assert page.locator("[aria-invalid]").count() == 0


def test_an_error_of_a_folded_input_opens_the_fold(browser: Browser) -> None:
    with planning() as double:
        double.answers.append((422, {"detail": "window = 9: goes with sliding only"}, {}))
        with watching(browser, f"{double.url}/plan", size=PHONE) as seen:
            wait_for_text(seen.page, "window-error", "goes with sliding only")
            assert seen.page.locator("#window").is_visible()
            assert "No plan yet" in text(seen.page, "nothing")
            assert overflow(seen.page) <= 0


def test_an_error_about_no_input_is_said_all_the_same(browser: Browser) -> None:
    with planning() as double:
        double.answers.append((500, {"detail": f"no plan {HOSTILE}"}, {}))
        with watching(browser, f"{double.url}/plan") as seen:
            wait_for_text(seen.page, "trouble", "no plan")
            assert seen.page.locator("img").count() == 0


def test_a_busy_server_is_asked_again(browser: Browser) -> None:
    with planning() as double:
        double.answers.append((503, {"detail": "other plans"}, {"retry-after": "1"}))
        with watching(browser, f"{double.url}/plan") as seen:
            wait_for_text(seen.page, "state-text", "Busy. Trying again in 1 s.")
            answered(seen.page)
            assert len(double.asked) == 2


def test_the_address_holds_the_plan(browser: Browser) -> None:
    query = (
        "population=500..2500&epsilon=0.4&delta=1e-8&adjacency=replace-one&dimension=77"
        "&dropout=0.12&duration_s=7200&slots=60&participation=0.5&uplink_bytes_per_s=20000"
    )
    with planning() as double, watching(browser, f"{double.url}/plan#{query}") as seen:
        page = seen.page
        answered(page)
        given = {name: texts[0] for name, texts in parse_qs(query).items()}
        assert double.asked[-1] == given
        assert {k: v[0] for k, v in asked_in_address(page).items()} == given
        for name, shown in (
            ("low", "500"),
            ("dropout", "12"),
            ("duration", "2"),
            ("duration-unit", "3600"),
            ("uplink", "20"),
            ("adjacency", "replace-one"),
        ):
            assert page.locator(f"#{name}").input_value() == shown, name
        assert "--slots 60" in text(page, "again")
        page.locator("#epsilon").fill("0.8")
        answered(page)
        assert asked_in_address(page)["epsilon"] == ["0.8"]
        page.evaluate("location.hash = 'epsilon=5&population=10..20'")
        wait_for_text(page, "budget-said", "budget ε 5")
        assert double.asked[-1]["population"] == "10..20"
    assert seen.errors == []


def test_a_known_task_brings_its_own_model(browser: Browser) -> None:
    with planning() as double, watching(browser, f"{double.url}/plan") as seen:
        page = seen.page
        answered(page)
        page.locator("#task").select_option("patients")
        answered(page)
        assert double.asked[-1]["task"] == "patients"
        assert "dimension" not in double.asked[-1]
        assert page.locator("#dimension").input_value() == "14"
        assert page.locator("#dimension").is_disabled()
        shared = page.url
        page.locator("#task").select_option("")
        answered(page)
        assert double.asked[-1]["dimension"] == "14"
        with watching(browser, shared) as again:
            answered(again.page)
            assert double.asked[-1]["task"] == "patients"
            assert again.page.locator("#dimension").is_disabled()
    assert seen.errors == []


def test_no_string_of_a_plan_becomes_markup(browser: Browser) -> None:
    with planning() as double:
        double.changes = {
            "reasons": [{"sentence": HOSTILE, "theorem": HOSTILE}],
            "sensitivity": [{"population": 5, "factor": 2, "sentence": HOSTILE}],
            "campaign": HOSTILE,
            "recommended": {"label": HOSTILE, "protocol": HOSTILE, "randomizer": HOSTILE},
            "front": [{"label": HOSTILE}],
            "certificate": {"epsilon": 1, "adjacency": HOSTILE, "assumptions": [HOSTILE]},
        }
        with watching(browser, f"{double.url}/plan", size=PHONE) as seen:
            answered(seen.page)
            assert seen.page.locator("img, main script").count() == 0
            assert seen.page.title() != "owned"
            assert overflow(seen.page) <= 0
    assert seen.errors == []


def test_missing_values_are_dashes_and_never_nan(browser: Browser) -> None:
    names = ("front", "reasons", "sensitivity", "curves", "certificate", "seconds", "question")
    with planning() as double, watching(browser, "about:blank", size=PHONE) as seen:
        for epsilon, nothing in enumerate((None, {}, [], "words"), start=2):
            double.changes = dict.fromkeys(names, nothing) | {"recommended": {"slots": 3}}
            ask(seen.page, double, "epsilon", str(epsilon))
            body = seen.page.locator("body").inner_text()
            for wrong in ("NaN", "undefined", "null", "[object", "Infinity"):
                assert wrong not in body, nothing
    assert seen.errors == []


@pytest.mark.slow
def test_a_real_coordinator_plans_while_it_runs_a_campaign(
    browser: Browser, tmp_path: Path
) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    (tmp_path / "again").mkdir()
    small = "task=patients&population=100..200"
    few_designs = f"{small}&protocol=fixed&noise_at=client&randomizer=laplace&slots=10"
    with serving(tmp_path, CAMPAIGN, start="+3600", real=False) as served:
        with watching(browser, served.url) as seen:
            page = seen.page
            link = page.get_by_role("link", name="Plan a campaign")
            page.goto(f"{link.evaluate('(node) => node.href')}#{few_designs}")
            answered(page)
            before = (number(page, "noise"), curve(page, "by-budget"))
            page.locator("#epsilon").fill("0.5")
            answered(page)
            assert float(number(page, "noise")) > float(before[0])
            assert moved(page, "by-budget", before[1]) != before[1]
            assert page.locator("#dimension").input_value() == "14"
            assert asked_in_address(page)["slots"] == [page.locator("#slots").input_value()]
            with page.expect_download() as waiting:
                page.locator("#download").click()
            saved = Path(waiting.value.path()).read_text(encoding="utf-8")
            assert parse_campaign(saved).campaign.budget.epsilon == 0.5
            with Forked(shlex.split(text(page, "again"))[1:], cwd=tmp_path / "again") as planner:
                planner.communicate(timeout=300)
            assert planner.returncode == 0
            assert (tmp_path / "again" / "campaign.toml").read_text(encoding="utf-8") == saved
            for look in every_look(page):
                assert overflow(page) <= 0, look
                assert page.evaluate(CONTRAST) == [], look
                page.screenshot(path=PICTURES / f"plan-{look}.png", full_page=True)
            page.locator("#delta").fill("7")
            wait_for_text(page, "delta-error", "must be a number")
            page.screenshot(path=PICTURES / "plan-refused.png")
        assert [one for one in seen.errors if "422" not in one] == []
        assert seen.asked == []
