"""The page about a simulation: what it says, and how it looks in a real browser."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.accounting import Adjacency
from checkins.accounting.adversaries import AgainstServer
from checkins.simulation.engine.evaluation import CurvePoint
from checkins.simulation.engine.outcome import Outcome
from checkins.simulation.engine.training import Scenario
from checkins.simulation.population import Diurnal
from checkins.simulation.report import html as report_html
from checkins.simulation.report import report_page, sentences, write_report
from checkins.simulation.report.axes import without_overlap
from checkins.simulation.report.plots import curve_band
from checkins.simulation.result import SimulationResult, SweepResult
from tests.simulation import results
from tests.support.accessibility import barriers
from tests.support.browser import Visit, find_chromium, open_file
from tests.support.waiting import wait_until

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
    assert result.spread is not None
    assert f"{result.metrics['auc']:.4f} ± {result.spread['auc']:.4f}" in text
    assert "≤ 0.2506 at δ = 10⁻⁶ add-remove, method exact-population, rounded up" in text
    assert "17,549 in 200 slots 36.6 thousand client updates per second" in text
    assert f"Dummies {result.dummies:,} theory {result.dummies_expected:,.0f}" in text


def test_a_page_holds_the_certificate_in_words(light: None) -> None:
    text = text_of(report_page(results.patients()))
    assert "by at most a factor of 1.285, and by 10⁻⁶ more" in text
    assert "no ε below 0.2502 is true" in text
    for assumption in results.certificate().assumptions:
        assert assumption.replace("'", "&#x27;") in text
    assert "it protects nobody" in text
    assert "The holdout is public by declaration." in text
    assert "tuning on this page, are not covered" in text


def test_replace_one_neighbours_are_described_as_such(light: None) -> None:
    result = results.patients()
    other = replace(result.certificate, adjacency=Adjacency.REPLACE_ONE)
    result = replace(result, certificate=other)
    assert "Changing all of any one client&#x27;s data changes the probability" in report_page(
        result
    )


def test_a_page_says_how_to_repeat_it_and_holds_the_campaign(light: None) -> None:
    page = report_page(results.patients())
    assert "<code>checkins simulate campaign.toml --seeds 5</code>" in page
    told = replace(results.patients(), command="checkins simulate a.toml")
    assert "<code>checkins simulate a.toml</code>" in report_page(told)
    assert "noise_multiplier = 0.1 " in page


def test_metrics_of_the_clients_own_rows_are_called_so(light: None) -> None:
    text = text_of(report_page(replace(results.patients(), on_holdout=False)))
    assert "public" not in text.split("Declare a public holdout")[0].split("Check-ins and")[0]
    assert "on the clients&#x27; own rows, which it was trained on" in text
    assert "neither protected nor a test of the model" in text


def test_the_notes_of_a_result_are_on_the_page(light: None) -> None:
    result = replace(results.patients(), notes=("columns were left out: a, b",))
    assert "Note: columns were left out: a, b." in report_page(result).split("<h2>")[0]


def test_other_neighbours_of_a_method_are_named(light: None) -> None:
    result = with_baseline(1, adjacency=Adjacency.REPLACE_ONE)
    assert "(DP-SGD); for replace-one neighbours" in report_page(result)


def test_a_baseline_measured_once_is_a_level(light: None) -> None:
    result = results.patients()
    first, *others = result.baselines
    ends = (replace(one, curve=(CurvePoint(1180, one.metrics),)) for one in first.seeds)
    result = replace(result, baselines=(replace(first, seeds=tuple(ends)), *others))
    first = plots_of(report_page(result))["learning-auc"]["data"][0]
    assert (first["x"], first["line"]["dash"]) == ([0, 200], "dot")


def test_an_average_of_models_has_its_own_curve_and_numbers(light: None) -> None:
    result = results.averaged()
    page = report_page(result)
    lines = {
        trace["name"]: trace for trace in plots_of(page)["learning-auc"]["data"] if "name" in trace
    }
    averaged, last = lines["average of models"], lines["random check-ins"]
    assert averaged["line"]["dash"] == "dash"
    assert averaged["y"] == pytest.approx([auc + 0.05 for auc in last["y"]])
    assert f"average of models {result.average_metrics['auc']:.4f} ±" in page
    assert "AUC, average of models" in page
    assert "Dashed line: the average of the models released so far." in page
    without = report_page(results.patients())
    assert "average of models" not in without


def test_a_method_that_was_not_run_says_why(light: None) -> None:
    text = text_of(report_page(results.patients()))
    assert "shuffling not run: its bound needs replace-one neighbours" in text


def test_methods_are_called_equal_in_epsilon_only_if_they_are(light: None) -> None:
    result = results.patients()
    assert "the same ε and δ" in report_page(result)
    assert "At the same ε, DP-SGD" in report_page(result)
    result = with_baseline(1, epsilon=0.3)
    assert "the same ε and δ" not in report_page(result)
    assert "For an ε of 0.3, DP-SGD" in report_page(result)


def test_the_budget_is_drawn_in_the_plot_of_epsilon(light: None) -> None:
    notes = plots_of(report_page(results.patients()))["spent"]["layout"]["annotations"]
    assert [note["text"] for note in notes] == ["ε ≤ 0.2506", "budget 0.5"]


def test_epsilon_under_the_pointer_is_rounded_up(light: None) -> None:
    result = results.patients()
    *points, (slots, _) = result.epsilon_by_slot
    result = replace(result, epsilon_by_slot=(*points, (slots, 0.25054321)))
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


def test_without_baselines_their_section_is_a_sentence(light: None) -> None:
    page = report_page(replace(results.patients(), baselines=()))
    assert set(plots_of(page)) == PLOTS - {"methods"}
    assert "No other method was run for comparison." in text_of(page)


@pytest.mark.parametrize(
    "missing",
    [
        {"occupancy": None},
        {"dummies_expected": None},
        {"epsilon_by_slot": ()},
        {"baselines": ()},
        {"scenario": Scenario(20_000, Diurnal(10, 0.5), 0.1)},
        {"seeds": (Outcome.of_divergence(1),)},
    ],
    ids=lambda missing: next(iter(missing)),
)
def test_a_result_without_one_piece_still_has_a_page(missing: dict[str, Any], light: None) -> None:
    page = report_page(replace(results.patients(), **missing))
    assert "nan" not in text_of(page)
    assert "None" not in text_of(page)


@pytest.mark.parametrize(
    ("epsilon", "stated"),
    [(3.2, "ε ≤ 3.2 (replace-one, rounded up), by itself."), (math.inf, ": by itself.")],
)
def test_the_guarantee_against_the_server_is_stated(
    epsilon: float, stated: str, light: None
) -> None:
    result = results.patients()
    assert "If the server is the adversary: not stated." in text_of(report_page(result))
    alone = replace(result.certificate, against_server=AgainstServer(epsilon, "by itself"))
    assert stated in text_of(report_page(replace(result, certificate=alone)))


def test_numbers_that_are_not_finite_are_left_out(light: None) -> None:
    result = results.patients()
    unbounded = replace(result.certificate, epsilon=math.inf)
    points = tuple((slots, math.inf) for slots, _ in result.epsilon_by_slot)
    assert result.occupancy is not None
    expected = [math.inf, *result.occupancy.expected[1:]]
    page = report_page(
        replace(
            result,
            certificate=unbounded,
            epsilon_by_slot=points,
            occupancy=replace(result.occupancy, expected=expected),
        )
    )
    assert "No bound on ε is known" in page
    assert "No bound on the ε after each slot is known." in page
    assert plots_of(page)["occupancy"]["data"][1]["y"][0] is None


def test_everything_from_a_result_is_escaped(light: None) -> None:
    page = report_page(hostile())
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


def test_plotly_accepts_every_property_of_the_figures(light: None) -> None:
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
        "Over its budget: it has ε ≤ 0.2506, and the budget is 0.2."
        " A real campaign would stop before its end."
    )
    assert said in text_of(page.split("<h2>")[0] + "<footer>")
    assert '<div class="marked"><dt>Privacy loss, ε</dt>' in page
    assert "over budget; add-remove" in page
    within = report_page(results.patients())
    assert "Over its budget" not in within
    assert 'class="marked"' not in within


def test_an_epsilon_without_a_bound_is_over_any_budget(light: None) -> None:
    result = results.over_budget()
    result = replace(result, certificate=replace(result.certificate, epsilon=math.inf))
    assert "Over its budget: no bound on ε is known, and the budget is 0.2." in report_page(result)


def test_a_campaign_that_spends_all_of_its_budget_is_not_over_it(light: None) -> None:
    result = results.over_budget(results.certificate().epsilon)
    assert "Over its budget" not in report_page(result)


def test_the_noise_is_described_as_in_the_result(light: None) -> None:
    assert results.NOISE in report_page(results.patients())


def test_a_model_that_diverged_is_not_blamed_on_the_holdout(light: None) -> None:
    text = text_of(report_page(results.diverged(results.patients())))
    assert "Quality diverged" in text
    assert "no public holdout" not in text


# Labels and edges


@pytest.mark.parametrize(("capacity", "anchor"), [(60, "left"), (88, "center"), (124, "right")])
def test_the_name_of_the_capacity_stays_inside_the_plot(
    capacity: int, anchor: str, light: None
) -> None:
    result = replace(results.patients(), campaign=results.campaign(capacity=capacity))
    (note,) = plots_of(report_page(result))["occupancy"]["layout"]["annotations"]
    assert (note["text"], note["xanchor"]) == (f"capacity {capacity}", anchor)


def test_large_losses_have_short_ticks_and_room(light: None) -> None:
    layout = plots_of(report_page(large_losses()))["learning-loss"]["layout"]
    assert layout["yaxis"]["automargin"] == "left"
    assert max(map(len, layout["yaxis"]["ticktext"])) <= 5
    assert "100k" in layout["yaxis"]["ticktext"]


def large_losses() -> SimulationResult:
    """Losses over many powers of ten, and a capacity at the right edge."""
    result = results.over_budget()
    seeds = []
    for one in result.seeds:
        losses = iter(3e6 / 10.0**k for k in range(6))
        curve = results.changed(one.curve, lambda _, left=losses: next(left, 3.0), metric="loss")
        seeds.append(replace(one, curve=curve))
    other = results.campaign(epsilon=0.2, capacity=124)
    return replace(result, campaign=other, seeds=tuple(seeds))


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
    assert "Over budget: 1 of 4 settings have a larger ε" in page.split("<h2>")[0]
    assert page.count('<span class="over">over budget</span>') == 1
    assert "Best AUC within budget" in text
    assert "with slots 100;" not in text
    assert "Ring: over budget." in text
    assert "slots 100 (over budget): ε ≤ 0.3007" in text


def test_a_sweep_without_a_setting_in_budget_says_so(light: None) -> None:
    text = text_of(report_page(results.sweep_over_budget(over=(0, 1, 2, 3))))
    assert "No setting is within its budget." in text
    assert "Best AUC, over budget" in text
    assert "no setting is within its budget; with slots 100;" in text


def test_a_setting_over_budget_is_not_the_best_if_the_others_diverged(light: None) -> None:
    page = report_page(results.sweep_over_budget(over=(1,), without=(0, 2, 3)))
    assert "no setting within its budget has a metric" in page
    assert page.count("<span>diverged</span>") == 3


def test_a_sweep_whose_models_all_diverged_says_so(light: None) -> None:
    page = report_page(results.sweep_over_budget(over=(), without=(0, 1, 2, 3)))
    assert "No setting has a metric, because their models diverged." in page
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


def test_a_stopped_sweep_says_so_at_the_top(light: None) -> None:
    first, second, *others = results.sweep().runs
    runs = (first, replace(second, complete=False), *others)
    page = report_page(SweepResult(runs))
    assert "1 of 4 settings were stopped" in page.split("<h2>")[0]
    assert "100 (partial)" in page


# The file


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path, light: None) -> None:
    place = tmp_path / "report.html"
    write_report(results.patients(), place)
    before = place.read_text(encoding="utf-8")
    assert before == report_page(results.patients())
    with pytest.raises(IndexError):
        write_report(SweepResult(()), place)
    assert place.read_text(encoding="utf-8") == before
    assert list(tmp_path.iterdir()) == [place]


# Numbers and curves


def read(shown: str) -> float:
    plain = shown.replace(",", "").replace("·10", "e")
    plain = re.sub(r"^10(?=[⁻⁰¹²³⁴⁵⁶⁷⁸⁹])", "1e", plain)
    return float(plain.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")))


@given(st.floats(1e-300, 1e300))
def test_bounds_are_rounded_to_the_side_that_claims_less(value: float) -> None:
    upper, lower = sentences.rounded_up(value), sentences.rounded_down(value)
    assert read(lower) <= value <= read(upper)
    assert read(upper) <= value * 1.0011


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3), min_size=1, max_size=5))
def test_a_mean_lies_in_its_band(columns: list[list[float]]) -> None:
    curves = [
        tuple(CurvePoint(slot, {"loss": value}) for slot, value in enumerate(values, 1))
        for values in columns
    ]
    found = curve_band(curves, "loss")
    assert found is not None
    assert found.curves == len(columns)
    for low, mean, high in zip(found.low, found.mean, found.high, strict=True):
        assert low - 1e-9 * abs(low) <= mean <= high + 1e-9 * abs(high)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8))
def test_labels_keep_their_order_and_do_not_touch(wanted: list[float]) -> None:
    places = without_overlap(wanted, gap=0.1, low=0.0, high=1.0)
    ordered = [place for _, place in sorted(zip(wanted, places, strict=True))]
    assert all(b - a >= 0.1 - 1e-9 for a, b in pairwise(ordered))
    assert -1e-9 <= min(places) <= max(places) <= 1.0


# In a browser


def with_baseline(number: int, **changes: Any) -> SimulationResult:
    """A result one of whose baselines is changed."""
    result = results.patients()
    found = list(result.baselines)
    found[number] = replace(found[number], baseline=replace(found[number].baseline, **changes))
    return replace(result, baselines=tuple(found))


def hostile(result: SimulationResult | None = None) -> SimulationResult:
    """A result with markup in every text that a user, a file or an error message can choose."""
    result = result or results.patients()
    *others, last = result.baselines
    certificate = result.certificate
    return replace(
        result,
        campaign=replace(result.campaign, name=HOSTILE + result.campaign.name),
        data=replace(result.data, name=HOSTILE),
        model=HOSTILE,
        noise=HOSTILE,
        notes=(HOSTILE,),
        command=HOSTILE,
        settings={key: HOSTILE + str(value) for key, value in result.settings.items()},
        baselines=(*others, replace(last, baseline=replace(last.baseline, unavailable=HOSTILE))),
        certificate=replace(
            certificate,
            method=HOSTILE,
            epsilon_lower_of=HOSTILE,
            assumptions=(HOSTILE, *certificate.assumptions),
            alternatives=tuple(
                replace(one, method=HOSTILE, note=HOSTILE) for one in certificate.alternatives
            ),
            against_server=AgainstServer(1.0, HOSTILE),
        ),
    )


@pytest.fixture(scope="module")
def campaign(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visit]:
    """The page of a campaign, opened once: each test sets the screen it wants."""
    place = tmp_path_factory.mktemp("campaign") / "report.html"
    write_report(results.patients(), place)
    with open_file(browser, place) as visit:
        visit.page.wait_for_selector("html.drawn")
        yield visit


def screen(visit: Visit, *, width: int = 1100, scheme: str = "light") -> None:
    visit.page.emulate_media(media="screen", color_scheme=scheme)
    visit.page.set_viewport_size({"width": width, "height": 900})
    fits = """() => Array.from(document.querySelectorAll(".plot")).every(box =>
        Math.abs(box.querySelector("svg").clientWidth - box.clientWidth) < 2)"""
    # not wait_for_function, whose eval the page forbids
    wait_until(lambda: visit.page.evaluate(fits), "every plot fits its place")


def colours(visit: Visit) -> dict[str, str]:
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
def test_a_browser_draws_every_plot_without_complaint(campaign: Visit) -> None:
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
def test_a_page_asks_the_network_for_nothing(campaign: Visit) -> None:
    assert campaign.asked == []


@pytest.mark.slow
def test_plots_have_the_colours_of_dark_mode_and_of_print(campaign: Visit) -> None:
    screen(campaign)
    blue = "rgb(0, 114, 178)"
    wait_until(lambda: colours(campaign)["line"] == blue)
    light = colours(campaign)
    screen(campaign, scheme="dark")
    wait_until(lambda: not set(light.values()) & set(colours(campaign).values()))
    assert light["page"] == "rgb(255, 255, 255)"
    campaign.page.emulate_media(media="print", color_scheme="dark")
    wait_until(lambda: colours(campaign)["line"] == light["line"])
    assert colours(campaign)["page"] == light["page"]
    assert campaign.errors == []


@pytest.mark.slow
def test_lines_are_named_at_their_end_or_in_a_key_where_there_is_no_room(campaign: Visit) -> None:
    key = campaign.page.locator("#learning figure .key").first
    label = campaign.page.locator("#plot-learning-auc .annotation", has_text="Poisson DP-SGD")
    screen(campaign)
    assert (label.count(), key.is_visible()) == (1, False)
    screen(campaign, width=390)
    assert (label.count(), key.is_visible()) == (0, True)


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 390, 700])
def test_no_screen_scrolls_sideways(campaign: Visit, width: int) -> None:
    screen(campaign, width=width)
    campaign.page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert campaign.page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_screen_has_a_barrier_for_a_screen_reader_or_a_keyboard(
    campaign: Visit, scheme: str
) -> None:
    screen(campaign, scheme=scheme)
    campaign.page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert barriers(campaign.page) == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 1100])
def test_no_label_is_cut_at_an_edge(browser: Any, tmp_path: Path, width: int) -> None:
    place = tmp_path / "report.html"
    write_report(large_losses(), place)
    with open_file(browser, place, width=width) as visit:
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
def test_names_that_are_markup_stay_text(browser: Any, tmp_path: Path) -> None:
    place = tmp_path / "report.html"
    runs = results.sweep("task.model", ("logistic", "mlp")).runs
    write_report(SweepResult(tuple(map(hostile, runs))), place)
    with open_file(browser, place, width=390) as visit:
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
        find_chromium()
