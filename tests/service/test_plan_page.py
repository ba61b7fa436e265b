"""The planner's page in a real browser: against a stand-in, and against a real coordinator."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pytest

from checkins.campaign import parse_campaign
from tests.service.plan_double import planning
from tests.service.test_page import CONTRAST, HOSTILE
from tests.service.test_page_live import CAMPAIGN
from tests.support.browser import DESK, PHONE, overflow, text, wait_for_text, watching
from tests.support.coordinator import serving
from tests.support.forks import Forked

if TYPE_CHECKING:
    from tests.support.browser import Browser, Page

PICTURES = Path(__file__).resolve().parents[2] / "out" / "page"


def answered(page: Page) -> None:
    """Wait until what stands there is the answer to what is asked."""
    page.wait_for_selector("#plan:not([hidden]):not(.stale)")


def curve(page: Page, name: str) -> str:
    """The first line of a figure, once it stands still."""
    page.wait_for_function(
        """async (name) => {
          const line = () => document.querySelector(`#${name} path.line`)?.getAttribute("d");
          const first = line();
          await new Promise((done) => setTimeout(done, 60));
          return first && first === line();
        }""",
        arg=name,
    )
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


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_the_page_fits_complains_of_nothing_and_asks_no_other_host(
    browser: Browser, size: tuple[int, int], dark: bool
) -> None:
    with (
        planning() as double,
        watching(browser, f"{double.url}/plan", size=size, dark=dark) as seen,
    ):
        answered(seen.page)
        for summary in seen.page.locator("summary:visible").all():
            summary.click()
        assert overflow(seen.page) <= 0
        assert seen.page.evaluate(CONTRAST) == []
    assert (seen.errors, seen.asked) == ([], [])


def test_sliders_recommendation_and_curves_are_on_the_first_screen(browser: Browser) -> None:
    with planning() as double, watching(browser, f"{double.url}/plan") as seen:
        answered(seen.page)
        for name in ("epsilon-slider", "population-slider", "slots-slider", "label", "download"):
            box = seen.page.locator(f"#{name}").bounding_box()
            assert box is not None
            assert box["y"] + box["height"] <= DESK[1], name
        for name in ("by-slots", "by-budget"):
            box = seen.page.locator(f"#{name} path.line").first.bounding_box()
            assert box is not None
            assert box["y"] + box["height"] <= DESK[1], name


def test_moving_the_budget_moves_the_noise_and_the_curves(browser: Browser) -> None:
    with planning() as double, watching(browser, f"{double.url}/plan") as seen:
        page = seen.page
        answered(page)
        noise, line = number(page, "noise"), curve(page, "by-slots")
        slide(page, "epsilon", -60)
        answered(page)
        assert float(page.locator("#epsilon").input_value()) < 0.9
        assert double.asked[-1]["epsilon"] == page.locator("#epsilon").input_value()
        assert float(number(page, "noise")) > float(noise)
        assert moved(page, "by-slots", line) != line
        assert len(double.asked) < 20  # not one for each press
    assert seen.errors == []


@pytest.mark.slow
def test_small_steps_of_a_slider_add_up(browser: Browser) -> None:
    with planning() as double, watching(browser, f"{double.url}/plan") as seen:
        page = seen.page
        answered(page)
        for _ in range(12):
            slide(page, "epsilon", 1)
            answered(page)
        assert float(page.locator("#epsilon").input_value()) > 1.3


def test_moving_the_population_moves_both_ends(browser: Browser) -> None:
    with planning() as double, watching(browser, f"{double.url}/plan") as seen:
        page = seen.page
        answered(page)
        slide(page, "population", 40)
        answered(page)
        low, _, high = double.asked[-1]["population"].partition("..")
        assert int(high) > 20_000
        assert 1.8 < int(high) / int(low) < 2.2


def test_slots_are_chosen_until_the_slider_fixes_them(browser: Browser) -> None:
    with planning() as double, watching(browser, f"{double.url}/plan") as seen:
        page = seen.page
        answered(page)
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


def test_the_last_answer_stays_dimmed_while_the_next_is_computed(browser: Browser) -> None:
    with planning() as double, watching(browser, f"{double.url}/plan") as seen:
        page = seen.page
        answered(page)
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


def test_a_superseded_question_is_cancelled(browser: Browser) -> None:
    with planning() as double, watching(browser, f"{double.url}/plan") as seen:
        page = seen.page
        answered(page)
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


def test_going_back_to_an_answered_question_asks_nobody(browser: Browser) -> None:
    with planning() as double, watching(browser, f"{double.url}/plan") as seen:
        page = seen.page
        answered(page)
        page.locator("#epsilon").fill("2")
        wait_for_text(page, "budget-said", "budget ε 2")
        asked = len(double.asked)
        page.locator("#epsilon").fill("1")
        wait_for_text(page, "budget-said", "budget ε 1")
        assert len(double.asked) == asked


def test_an_error_stands_beside_its_input_and_goes_with_its_cause(browser: Browser) -> None:
    detail = "delta: must be a number from 1e-15 to 0.1"
    with planning() as double, watching(browser, f"{double.url}/plan") as seen:
        page = seen.page
        answered(page)
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


def test_the_campaign_file_can_be_downloaded(browser: Browser) -> None:
    with planning() as double, watching(browser, f"{double.url}/plan") as seen:
        answered(seen.page)
        with seen.page.expect_download() as waiting:
            seen.page.locator("#download").click()
        assert waiting.value.suggested_filename == "campaign.toml"
        saved = tomllib.loads(Path(waiting.value.path()).read_text(encoding="utf-8"))
        assert saved["protocol"]["slots"] == int(seen.page.locator("#slots").input_value())
    assert seen.errors == []


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


def test_a_point_of_a_figure_tells_its_value(browser: Browser) -> None:
    with planning() as double, watching(browser, f"{double.url}/plan") as seen:
        answered(seen.page)
        for figure, told in (("by-slots", "10 slots: proxy"), ("by-budget", "ε = 0.1: proxy")):
            box = seen.page.locator(f"#{figure} svg").bounding_box()
            assert box is not None
            seen.page.mouse.move(box["x"] + 48, box["y"] + 60)
            wait_for_text(seen.page, f"{figure}-read", told)


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


@pytest.mark.parametrize("nothing", [None, {}, [], "words"], ids=repr)
def test_missing_values_are_dashes_and_never_nan(browser: Browser, nothing: object) -> None:
    with planning() as double:
        names = ("front", "reasons", "sensitivity", "curves", "certificate", "seconds", "question")
        double.changes = dict.fromkeys(names, nothing) | {"recommended": {"slots": 3}}
        with watching(browser, f"{double.url}/plan", size=PHONE) as seen:
            answered(seen.page)
            body = seen.page.locator("body").inner_text()
            for wrong in ("NaN", "undefined", "null", "[object", "Infinity"):
                assert wrong not in body
    assert seen.errors == []


@pytest.mark.slow
def test_a_real_coordinator_plans_while_it_runs_a_campaign(
    browser: Browser, tmp_path: Path
) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    (tmp_path / "again").mkdir()
    with serving(tmp_path, CAMPAIGN, start="+3600", real=False) as served:
        with watching(browser, served.url) as seen:
            seen.page.get_by_role("link", name="Plan a campaign").click()
            page = seen.page
            answered(page)
            before = (number(page, "noise"), curve(page, "by-budget"))
            page.screenshot(path=PICTURES / "plan-light.png", full_page=True)
            slide(page, "epsilon", -60)
            answered(page)
            assert float(number(page, "noise")) > float(before[0])
            assert moved(page, "by-budget", before[1]) != before[1]
            page.locator("#task").select_option("patients")
            answered(page)
            assert page.locator("#dimension").input_value() == "14"
            slide(page, "slots", -10)
            answered(page)
            assert asked_in_address(page)["slots"] == [page.locator("#slots").input_value()]
            with page.expect_download() as waiting:
                page.locator("#download").click()
            saved = Path(waiting.value.path()).read_text(encoding="utf-8")
            planned = parse_campaign(saved).campaign
            assert planned.budget.epsilon == float(page.locator("#epsilon").input_value())
            with Forked(shlex.split(text(page, "again"))[1:], cwd=tmp_path / "again") as planner:
                planner.communicate(timeout=300)
            assert planner.returncode == 0
            assert (tmp_path / "again" / "campaign.toml").read_text(encoding="utf-8") == saved
            page.locator("#delta").fill("7")
            wait_for_text(page, "delta-error", "must be a number")
            page.screenshot(path=PICTURES / "plan-refused.png")
            shared = page.url.replace("delta=7", "delta=1e-5")
        assert [one for one in seen.errors if "422" not in one] == []
        for name, look in {"dark": {"dark": True}, "phone": {"size": PHONE}}.items():
            with watching(browser, shared, **look) as seen:
                answered(seen.page)
                assert overflow(seen.page) <= 0
                assert seen.page.evaluate(CONTRAST) == []
                seen.page.screenshot(path=PICTURES / f"plan-{name}.png", full_page=True)
            assert (seen.errors, seen.asked) == ([], [])
