"""The page about a simulation: what it says, and how it looks in a real browser."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.simulation.report import html as report_html
from checkins.simulation.report import numbers as report_numbers
from checkins.simulation.report import report_page, write_report
from checkins.simulation.report.axes import apart
from checkins.simulation.report.curves import band
from tests import browser
from tests.simulation import results

HOSTILE = '<script>window.hacked = 1</script><img src=x onerror="window.hacked = 2">&"\'</details>'
PLOTS = {"learning-auc", "learning-accuracy", "learning-loss", "spent", "occupancy", "dummies"}
PLOTS |= {"methods"}


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out plotly's five megabytes where nothing is drawn."""
    monkeypatch.setattr(report_html, "_plotly", lambda: "/* plotly */")


def text_of(page: str) -> str:
    """What a reader sees, tags taken away."""
    body = page.split("<body>")[1].split("<footer>")[0]
    bare = re.sub(r"<script.*?</script>|<[^>]+>", " ", body, flags=re.DOTALL)
    return re.sub(r"\s+", " ", bare.replace("\N{NO-BREAK SPACE}", " "))


def plots_of(page: str) -> dict[str, Any]:
    found = re.findall(
        r'<script type="application/json" id="plot-([^"]+)-data">(.*?)</script>', page
    )
    return {name: json.loads(data) for name, data in found}


# What it says


def test_a_page_says_that_it_is_a_simulation(light: None) -> None:
    page = report_page(results.patients())
    assert "<title>patients: a simulated campaign</title>" in page
    assert "Simulated on a computer: no device took part." in text_of(page)


def test_a_page_shows_every_plot(light: None) -> None:
    assert set(plots_of(report_page(results.patients()))) == PLOTS


def test_a_page_has_its_four_numbers(light: None) -> None:
    text = text_of(report_page(results.patients()))
    result = results.patients()
    assert f"{result['metrics']['auc']:.4f} ± {result['spread']['auc']:.4f}" in text
    assert "≤ 0.2506 at δ = 10⁻⁶ add-remove, method exact-population, rounded up" in text
    assert "17,549 in 200 slots 36.6 thousand client updates a second" in text
    assert f"Dummies {result['dummies']:,} theory {result['dummies_expected']:,.0f}" in text


def test_a_page_holds_the_certificate_in_words(light: None) -> None:
    text = text_of(report_page(results.patients()))
    assert "more than 1.285 times as likely, apart from a chance of 10⁻⁶" in text
    assert "no ε below 0.2502 is true" in text
    for assumption in results.certificate()["assumptions"]:
        assert assumption.replace("'", "&#x27;") in text
    assert "it protects nobody" in text
    assert "The holdout is public by declaration." in text
    assert "tuning on this page, are not covered" in text


def test_replace_one_neighbours_are_described_as_such(light: None) -> None:
    result = results.patients()
    result["certificate"]["adjacency"] = "replace-one"
    assert "Changing all of any one client&#x27;s data makes nothing" in report_page(result)


def test_a_page_says_how_to_repeat_it_and_holds_the_campaign(light: None) -> None:
    page = report_page(results.patients())
    assert "<code>checkins simulate campaign.toml --seeds 5</code>" in page
    assert "noise_multiplier = 0.1 " in page


def test_metrics_of_the_clients_own_rows_are_called_so(light: None) -> None:
    result = results.patients()
    result["metrics_on"] = "clients"
    text = text_of(report_page(result))
    assert "public" not in text.split("Declare a public holdout")[0].split("Who came")[0]
    assert "on the clients&#x27; own rows, which it was trained on" in text
    assert "neither protected nor a test of the model" in text


def test_what_a_result_minds_is_on_the_page(light: None) -> None:
    result = results.patients()
    result["notes"] = ["columns were left out: a, b"]
    assert "Mind: columns were left out: a, b." in report_page(result).split("<h2>")[0]


def test_other_neighbours_of_a_method_are_named(light: None) -> None:
    result = results.patients()
    result["baselines"][1]["adjacency"] = "replace-one"
    assert "adds the noise; for replace-one neighbours" in report_page(result)


def test_a_baseline_measured_once_is_a_level(light: None) -> None:
    result = results.patients()
    for curve in result["baselines"][0]["curves"]:
        curve |= {
            name: [1180] if name == "slots" else values[-1:] for name, values in curve.items()
        }
    first = plots_of(report_page(result))["learning-auc"]["data"][0]
    assert (first["x"], first["line"]["dash"]) == ([0, 200], "dot")


def test_a_method_that_was_not_run_says_why(light: None) -> None:
    text = text_of(report_page(results.patients()))
    assert "shuffling not run: its bound needs replace-one neighbours" in text


def test_methods_are_said_to_cost_the_same_only_where_they_do(light: None) -> None:
    result = results.patients()
    assert "the same ε and δ to spend" in report_page(result)
    assert "At the same price, DP-SGD" in report_page(result)
    result["baselines"][1]["epsilon"] = 0.3
    assert "the same ε and δ to spend" not in report_page(result)
    assert "For an ε of 0.3, DP-SGD" in report_page(result)


def test_the_budget_is_drawn_where_the_campaign_has_one(light: None) -> None:
    result = results.patients()
    notes = plots_of(report_page(result))["spent"]["layout"]["annotations"]
    assert [note["text"] for note in notes] == ["ε ≤ 0.2506", "budget 0.5"]
    result["campaign"]["text"] = "name = 'no budget'"
    notes = plots_of(report_page(result))["spent"]["layout"]["annotations"]
    assert [note["text"] for note in notes] == ["ε ≤ 0.2506"]


def test_the_price_under_the_pointer_is_rounded_up(light: None) -> None:
    result = results.patients()
    result["spent"]["epsilon"][-1] = 0.25054321
    (line, *_) = plots_of(report_page(result))["spent"]["data"]
    assert "ε ≤ %{customdata}" in line["hovertemplate"]
    assert line["customdata"][-1] == "0.2506"


def test_a_stopped_run_says_so_at_the_top(light: None) -> None:
    page = report_page(results.stopped())
    assert "Partial result: the simulation was stopped. 2 of 3 seeds" in page.split("<h2>")[0]
    assert "another reached slot 80 of 200" in page
    assert "Partial" not in report_page(results.patients())


def test_a_stopped_seed_does_not_shorten_the_curves_of_the_others(light: None) -> None:
    curves = plots_of(report_page(results.stopped()))["learning-auc"]["data"]
    assert all(curve["x"][-1] == 200 for curve in curves)


def test_one_seed_has_no_band_and_no_spread(light: None) -> None:
    page = report_page(results.patients(seeds=1))
    assert "One seed, so there is no band" in page
    assert "±" not in page
    assert not any("fill" in trace for trace in plots_of(page)["learning-auc"]["data"])
    several = plots_of(report_page(results.patients()))["learning-auc"]["data"]
    assert sum("fill" in trace for trace in several) == 1


def test_without_a_holdout_and_baselines_their_sections_are_a_sentence(light: None) -> None:
    page = report_page(results.without_holdout())
    assert set(plots_of(page)) == {"spent", "occupancy", "dummies"}
    text = text_of(page)
    assert "There is no public holdout, so there is no learning curve to show." in text
    assert "No other method was run beside this one." in text


@pytest.mark.parametrize("missing", [None, "absent"])
@pytest.mark.parametrize("key", sorted(results.patients()))
def test_a_result_without_one_piece_still_has_a_page(
    key: str, missing: str | None, light: None
) -> None:
    result = results.patients()
    if missing:
        del result[key]
    else:
        result[key] = None
    page = report_page(result)
    assert "nan" not in text_of(page)
    assert "None" not in text_of(page)


def test_numbers_that_are_not_finite_are_left_out(light: None) -> None:
    result = results.patients()
    result["metrics"]["auc"] = math.nan
    result["certificate"]["epsilon"] = None
    result["spent"]["epsilon"] = [None] * len(result["spent"]["slots"])
    result["occupancy"]["expected"][0] = math.inf
    for seed in result["seeds"]:
        seed["curve"]["loss"][3] = math.nan
    page = report_page(result)
    assert "Accuracy, public holdout" in page
    assert "No ε could be bounded" in page
    assert "What is spent over slots could not be bounded." in page
    assert 30 not in plots_of(page)["learning-loss"]["data"][-1]["x"]


def test_everything_from_a_result_is_escaped(light: None) -> None:
    page = report_page(hostile(results.patients()))
    assert "<img" not in page
    assert page.count("window.hacked") > 10
    assert re.findall(r"<script>(?!\n|/\* plotly \*/)", page) == []


def test_a_page_holds_plotly_once_and_names_nothing_to_load() -> None:
    page = report_page(results.patients())
    assert page.count("* plotly.js v") == 1
    ours = report_page(results.patients()).replace(report_html._plotly(), "")
    assert len(page) - len(ours) > 1_000_000
    assert "://" not in ours
    assert re.findall(r'\b(?:src|href)="(?!data:,")', ours) == []


def test_plotly_knows_every_word_of_the_figures(light: None) -> None:
    from plotly.graph_objects import Figure

    def painted(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: painted(part) for key, part in value.items()}
        if isinstance(value, list):
            return [painted(part) for part in value]
        return "#123456" if isinstance(value, str) and value.startswith("@") else value

    pages = [report_page(results.patients()), report_page(results.sweep())]
    figures = [figure for page in pages for figure in plots_of(page).values()]
    for figure in figures:
        Figure(painted(figure))  # raises for a property that it does not know
    assert len(figures) == len(PLOTS) + 2


def test_every_colour_of_a_figure_is_in_the_stylesheet(light: None) -> None:
    pages = report_page(results.patients()) + report_page(results.sweep())
    tokens = set(re.findall(r'"@([^"/]+)', pages))
    names = {part for token in tokens for part in token.split("~")[:2]}
    assert {"blue", "orange", "rule", "soft", "ink"} <= names
    for name in names:
        assert f"--{name}: #" in pages


# Over budget


def test_a_campaign_over_its_budget_says_so_at_the_top(light: None) -> None:
    page = report_page(results.over_budget())
    said = (
        "Over its budget: it costs ε ≤ 0.2506, its budget is 0.2;"
        " a real campaign would stop before its end."
    )
    assert said in text_of(page.split("<h2>")[0] + "<footer>")
    assert '<div class="marked"><dt>Privacy spent, ε</dt>' in page
    assert "over budget; add-remove" in page
    within = report_page(results.patients())
    assert "Over its budget" not in within
    assert 'class="marked"' not in within


def test_a_price_without_a_bound_is_over_any_budget(light: None) -> None:
    result = results.over_budget()
    result["certificate"]["epsilon"] = None
    assert "Over its budget: no ε could be bounded, its budget is 0.2;" in report_page(result)


def test_a_result_that_does_not_say_is_judged_by_its_numbers(light: None) -> None:
    result = results.over_budget()
    del result["within_budget"]
    assert "Over its budget" in report_page(result)
    result["budget"]["epsilon"] = result["certificate"]["epsilon"]
    assert "Over its budget" not in report_page(result)


def test_the_noise_is_said_as_the_result_says_it(light: None) -> None:
    page = report_page(results.over_budget())
    assert "Gaussian, 0.1 clips on each report, 0.98 on a sum" in page
    assert "0.1 × clip at the client" not in page
    assert "0.1 × clip at the client" in report_page(results.patients())


def test_a_model_that_diverged_is_not_blamed_on_the_holdout(light: None) -> None:
    result = results.without_holdout()
    result["diverged"] = True
    text = text_of(report_page(result))
    assert "Quality diverged" in text
    assert "no public holdout" not in text


# Labels and edges


@pytest.mark.parametrize(("capacity", "anchor"), [(60, "left"), (88, "center"), (124, "right")])
def test_the_name_of_the_capacity_stays_inside_the_plot(
    capacity: int, anchor: str, light: None
) -> None:
    result = results.patients()
    text = result["campaign"]["text"]
    result["campaign"]["text"] = text.replace("capacity = 96", f"capacity = {capacity}")
    (note,) = plots_of(report_page(result))["occupancy"]["layout"]["annotations"]
    assert (note["text"], note["xanchor"]) == (f"capacity {capacity}", anchor)


def test_large_losses_have_short_ticks_and_room(light: None) -> None:
    layout = plots_of(report_page(large_losses()))["learning-loss"]["layout"]
    assert layout["yaxis"]["automargin"] == "left"
    assert max(map(len, layout["yaxis"]["ticktext"])) <= 5
    assert "100k" in layout["yaxis"]["ticktext"]


def large_losses() -> results.Result:
    """Losses over many powers of ten, and a capacity at the right edge."""
    result = results.over_budget()
    text = result["campaign"]["text"]
    result["campaign"]["text"] = text.replace("capacity = 96", "capacity = 124")
    for seed in result["seeds"]:
        curve = seed["curve"]
        curve["loss"] = [3e6 / 10.0**k for k in range(6)] + [3.0] * (len(curve["slots"]) - 6)
    return result


# A sweep


def test_a_sweep_is_one_page_with_a_row_for_each_setting(light: None) -> None:
    page = report_page(results.sweep())
    assert set(plots_of(page)) == {"settings", "learning-auc"}
    assert page.count("<tr>") == 1 + 4
    assert "ε ≤ 0.4009" in page
    assert "4 settings of protocol.slots, on patients." in page


def test_a_setting_over_budget_is_marked_and_never_the_best(light: None) -> None:
    assert "with slots 100;" in text_of(report_page(results.sweep()))
    page = report_page(results.sweep_over_budget(over=(1,)))
    text = text_of(page)
    assert "Over budget: 1 of 4 settings cost more" in page.split("<h2>")[0]
    assert page.count('<span class="over">over budget</span>') == 1
    assert "Best AUC within budget" in text
    assert "with slots 100;" not in text
    assert "Ring: over budget." in text
    assert "slots 100 (over budget): ε ≤ 0.3007" in text


def test_a_sweep_without_a_setting_in_budget_says_so(light: None) -> None:
    text = text_of(report_page(results.sweep_over_budget(over=(0, 1, 2, 3))))
    assert "No setting is within its budget;" in text
    assert "Best AUC, over budget" in text
    assert "no setting is within its budget; with slots 100;" in text


def test_a_setting_over_budget_is_not_crowned_because_the_others_diverged(light: None) -> None:
    page = report_page(results.sweep_over_budget(over=(1,), diverged=(0, 2, 3)))
    assert "no setting within its budget has a metric" in page
    assert page.count("<span>diverged</span>") == 3


def test_a_sweep_whose_models_all_diverged_says_so(light: None) -> None:
    page = report_page(results.sweep_over_budget(over=(), diverged=(0, 1, 2, 3)))
    assert "No setting has a metric: their models diverged." in page
    assert page.count("(diverged)") == 4


@pytest.mark.parametrize(
    ("key", "values", "drawn"),
    [
        ("protocol.slots", (50, 100, 200), "against"),
        ("protocol.slots", (10, 100, 1000), "against"),
        ("task.model", ("logistic", "mlp"), "dots"),
        ("randomizer.noise_multiplier", tuple(0.1 * k for k in range(1, 31)), "against"),
    ],
)
def test_a_sweep_is_drawn_against_numbers_and_as_a_list_of_words(
    key: str, values: tuple[Any, ...], drawn: str, light: None
) -> None:
    plots = plots_of(report_page(results.sweep(key, values)))
    axis = plots["settings"]["layout"]["xaxis"]
    assert ("tickvals" in axis) == (drawn == "against")
    assert (axis.get("type") == "log") == (key != "task.model" and values[-1] >= 10 * values[0])
    assert len(plots["learning-auc"]["data"]) == len(values)


def test_a_sweep_without_runs_or_metrics_has_a_page(light: None) -> None:
    assert "0 settings" in report_page({"sweep": []})
    bare = [{"settings": {"protocol.slots": slots}} for slots in (1, 2)]
    assert "no setting has a metric" in report_page({"sweep": bare})
    assert "None" not in text_of(report_page({"sweep": bare}))


def test_a_stopped_sweep_says_so_at_the_top(light: None) -> None:
    result = results.sweep()
    result["sweep"][1]["complete"] = False
    page = report_page(result)
    assert "1 of 4 settings were stopped" in page.split("<h2>")[0]
    assert "100 (partial)" in page


# The file


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path, light: None) -> None:
    place = tmp_path / "report.html"
    write_report(results.patients(), place)
    before = place.read_text(encoding="utf-8")
    assert before == report_page(results.patients())
    with pytest.raises(AttributeError):
        write_report({"seeds": [1]}, place)
    assert place.read_text(encoding="utf-8") == before
    assert list(tmp_path.iterdir()) == [place]


# Numbers and curves


def read(shown: str) -> float:
    plain = shown.replace(",", "").replace("·10", "e")
    plain = re.sub(r"^10(?=[⁻⁰¹²³⁴⁵⁶⁷⁸⁹])", "1e", plain)
    return float(plain.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")))


@given(st.floats(1e-300, 1e300))
def test_bounds_are_rounded_to_the_side_that_claims_less(value: float) -> None:
    upper, lower = report_numbers.up(value), report_numbers.down(value)
    assert read(lower) <= value <= read(upper)
    assert read(upper) <= value * 1.0011


@given(
    st.lists(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3), min_size=1, max_size=5),
)
def test_a_mean_lies_in_its_band(columns: list[list[float]]) -> None:
    found = band([{"slots": [1, 2, 3], "loss": values} for values in columns], "loss")
    assert found is not None
    assert found.spreads == (len(columns) > 1)
    for low, mean, high in zip(found.low, found.mean, found.high, strict=True):
        assert low - 1e-9 * abs(low) <= mean <= high + 1e-9 * abs(high)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8))
def test_labels_keep_their_order_and_do_not_touch(wanted: list[float]) -> None:
    places = apart(wanted, gap=0.1, low=0.0, high=1.0)
    ordered = [place for _, place in sorted(zip(wanted, places, strict=True))]
    assert all(b - a >= 0.1 - 1e-9 for a, b in pairwise(ordered))
    assert -1e-9 <= min(places) <= max(places) <= 1.0


# In a browser


def hostile(value: Any, key: str = "") -> Any:
    """The same with markup in every text but the words that choose something."""
    if isinstance(value, dict):
        return {name: hostile(part, name) for name, part in value.items()}
    if isinstance(value, list):
        return [hostile(part, key) for part in value]
    return HOSTILE + value if isinstance(value, str) and key != "unavailable" else value


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser.open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def campaign(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Visit]:
    """The page of a campaign, opened once: each test sets the screen it wants."""
    place = tmp_path_factory.mktemp("campaign") / "report.html"
    write_report(results.patients(), place)
    with browser.visit(chromium, place) as visit:
        visit.page.wait_for_selector("html.drawn")
        yield visit


def eventually(visit: browser.Visit, fact: Callable[[], bool]) -> bool:
    """Whether a fact comes true within seconds; the page forbids the eval of wait_for_function."""
    for _ in range(100):
        if fact():
            return True
        visit.page.wait_for_timeout(20)
    return False


def screen(visit: browser.Visit, *, width: int = 1100, scheme: str = "light") -> None:
    visit.page.emulate_media(media="screen", color_scheme=scheme)
    visit.page.set_viewport_size({"width": width, "height": 900})
    fits = """() => Array.from(document.querySelectorAll(".plot")).every(box =>
        Math.abs(box.querySelector("svg").clientWidth - box.clientWidth) < 2)"""
    assert eventually(visit, lambda: visit.page.evaluate(fits)), "a plot does not fit its place"


def colours(visit: browser.Visit) -> dict[str, str]:
    return visit.page.evaluate(
        """() => {
          const style = (query, name) => getComputedStyle(document.querySelector(query))[name];
          return {
            page: style("body", "backgroundColor"),
            tick: style("#plot-spent .xtick text", "fill"),
            line: style("#plot-spent .scatterlayer .js-line", "stroke"),
          };
        }"""
    )


@pytest.mark.slow
def test_a_browser_draws_every_plot_without_complaint(campaign: browser.Visit) -> None:
    screen(campaign)
    drawn = campaign.page.evaluate(
        """() => Object.fromEntries(Array.from(document.querySelectorAll(".plot"), box =>
          [box.id, box.querySelectorAll("svg.main-svg .trace").length]))"""
    )
    assert set(drawn) == {f"plot-{name}" for name in PLOTS}
    assert min(drawn.values()) >= 1
    assert drawn["plot-learning-auc"] == 4 + 2  # four methods, two edges of the band
    assert campaign.errors == []


@pytest.mark.slow
def test_a_page_asks_the_network_for_nothing(campaign: browser.Visit) -> None:
    assert campaign.asked == []


@pytest.mark.slow
def test_plots_follow_the_page_into_the_dark_and_onto_paper(campaign: browser.Visit) -> None:
    screen(campaign)
    blue = "rgb(0, 114, 178)"
    assert eventually(campaign, lambda: colours(campaign)["line"] == blue)
    light = colours(campaign)
    screen(campaign, scheme="dark")
    assert eventually(campaign, lambda: not set(light.values()) & set(colours(campaign).values()))
    assert light["page"] == "rgb(255, 255, 255)"
    campaign.page.emulate_media(media="print", color_scheme="dark")
    assert eventually(campaign, lambda: colours(campaign)["line"] == light["line"])
    assert colours(campaign)["page"] == light["page"]
    assert campaign.errors == []


@pytest.mark.slow
def test_lines_are_named_at_their_end_or_in_a_key_where_there_is_no_room(
    campaign: browser.Visit,
) -> None:
    key = campaign.page.locator("#learning figure .key").first
    label = campaign.page.locator("#plot-learning-auc .annotation", has_text="Poisson DP-SGD")
    screen(campaign)
    assert (label.count(), key.is_visible()) == (1, False)
    screen(campaign, width=390)
    assert (label.count(), key.is_visible()) == (0, True)


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 390, 700])
def test_no_screen_scrolls_sideways(campaign: browser.Visit, width: int) -> None:
    screen(campaign, width=width)
    campaign.page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert campaign.page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 1100])
def test_no_label_is_cut_at_an_edge(chromium: Any, tmp_path: Path, width: int) -> None:
    place = tmp_path / "report.html"
    write_report(large_losses(), place)
    with browser.visit(chromium, place, width=width) as visit:
        visit.page.wait_for_selector("html.drawn")
        cut = visit.page.evaluate(
            """() => Array.from(document.querySelectorAll(".plot")).flatMap(box => {
              const edge = box.getBoundingClientRect();
              return Array.from(box.querySelectorAll(".annotation text, .xtick text, .ytick text"))
                .filter(label => {
                  const place = label.getBoundingClientRect();
                  return place.left < edge.left - 1 || place.right > edge.right + 1;
                })
                .map(label => `${box.id}: ${label.textContent}`);
            })"""
        )
        assert cut == []


@pytest.mark.slow
def test_names_that_are_markup_stay_text(chromium: Any, tmp_path: Path) -> None:
    place = tmp_path / "report.html"
    runs = [hostile(run) for run in results.sweep("task.model", ("logistic", "mlp"))["sweep"]]
    write_report({"sweep": runs}, place)
    with browser.visit(chromium, place, width=390) as visit:
        visit.page.wait_for_selector("html.drawn")
        assert visit.page.evaluate("window.hacked") is None
        assert visit.page.locator("h1").inner_text() == HOSTILE + "patients"
        note = visit.page.locator("#plot-settings .annotation").first.text_content()
        assert "<script>window.hacked" in note
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390
        assert (visit.errors, visit.asked) == ([], [])


def test_without_a_browser_the_tests_fail_and_say_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CHROMIUM", "no-such-program")
    with pytest.raises(pytest.fail.Exception, match="run `make browser`"):
        browser.find_chromium()
