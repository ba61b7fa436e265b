"""The page of a sweep: a table, a plot of the metric by setting, and all learning curves."""

from __future__ import annotations

from collections.abc import Sequence

from checkins.simulation.report import html as page
from checkins.simulation.report import plots, sentences
from checkins.simulation.report.axes import Plot
from checkins.simulation.result import SimulationResult, SweepResult

OVER_BUDGET = "over budget"
EPSILON_LABEL = "Privacy loss, ε ≤"
COLOUR_SCALE = ("blue", "purple", "orange")
"""Names of the colours of the first, the middle and the last setting."""


def sweep_page(result: SweepResult) -> str:
    """Return the page of a sweep of at least one setting."""
    runs, first = result.runs, result.runs[0]
    metric = next((headline for run in runs if (headline := run.headline)), None)
    keys = _varied_keys(runs)
    how = "Save the campaign file, set the values of a row of the table above, and simulate it"
    title_of_file = f"The campaign file, with {_setting_label(first, keys)}"
    parts = [
        *(section(runs, metric, keys) for section in (_header, _settings_section, _curves_section)),
        _certificates_section(runs, keys),
        page.repeat_section(
            first, command=result.command, instruction=how, file_title=title_of_file
        ),
    ]
    title = f"{first.campaign.name}: a simulated sweep"
    return page.page_html(title=title, body="\n".join(parts), footer=page.footer(first))


def _varied_keys(runs: Sequence[SimulationResult]) -> list[str]:
    """Return the keys whose values differ between settings, or all keys if no key differs."""
    keys = list(dict.fromkeys(key for run in runs for key in run.settings))
    varied = [key for key in keys if len({str(run.settings.get(key)) for run in runs}) > 1]
    return varied or keys


def _setting_label(run: SimulationResult, keys: Sequence[str]) -> str:
    return ", ".join(f"{key.rsplit('.', 1)[-1]} {_value_text(run.settings[key])}" for key in keys)


def _marked_label(run: SimulationResult, keys: Sequence[str]) -> str:
    """Return the label of a setting, with a remark if it is over its budget."""
    return _setting_label(run, keys) + ("" if run.within_budget else f" ({OVER_BUDGET})")


def _value_text(value: object) -> str:
    return str(value) if sentences.finite_or_none(value) is None else sentences.rounded(value)


def _colours(runs: Sequence[SimulationResult]) -> list[str]:
    """Return a colour for each setting, on a scale from blue through purple to orange."""
    last = max(1, len(runs) - 1)
    steps = len(COLOUR_SCALE) - 1
    colours = []
    for index in range(len(runs)):
        position = index * steps / last
        start = min(int(position), steps - 1)
        colours.append(f"@{COLOUR_SCALE[start]}~{COLOUR_SCALE[start + 1]}~{position - start:.3f}")
    return colours


def _header(runs: Sequence[SimulationResult], metric: str | None, keys: Sequence[str]) -> str:
    stopped, first = sum(not run.complete for run in runs), runs[0]
    notice = f"Partial result: {stopped} of {len(runs)} settings were stopped before their end."
    over = not all(run.within_budget for run in runs)
    return page.join_parts(
        page.paragraph("Simulated sweep", css_class="eyebrow"),
        f"<h1>{page.escaped(first.campaign.name)}</h1>",
        page.paragraph(
            f"Simulated on a computer: no device took part. {len(runs)} settings of"
            f" {', '.join(keys)}, on {first.data.name}.",
            css_class="lede",
        ),
        page.paragraph(notice if stopped else "", css_class="notice"),
        page.paragraph(_over_budget(runs), css_class="notice"),
        page.headline_numbers(
            _headline_numbers(runs, metric, keys), highlighted=(EPSILON_LABEL,) if over else ()
        ),
    )


def _over_budget(runs: Sequence[SimulationResult]) -> str:
    """State how many settings are over their budget; empty if no setting is over it."""
    over = sum(not run.within_budget for run in runs)
    if not over:
        return ""
    start = "No setting is within its budget"
    if over < len(runs):
        start = f"Over budget: {over} of {len(runs)} settings have a larger ε than their budget"
    return f"{start}. A real campaign with such a setting would stop before its end."


def _headline_numbers(
    runs: Sequence[SimulationResult], metric: str | None, keys: Sequence[str]
) -> list[tuple[str, str, str, str]]:
    epsilons = sentences.finite_values(run.certificate.epsilon for run in runs)
    epsilon, seeds = "not bounded", len(runs[0].seeds)
    if epsilons:
        low, high = sentences.rounded_up(min(epsilons), 3), sentences.rounded_up(max(epsilons), 3)
        epsilon = low if low == high else f"{low}–{high}"
    count_over = sum(not run.within_budget for run in runs)
    over_note = f"{count_over} of {len(runs)} {OVER_BUDGET}; " if count_over else ""
    certificate = runs[0].certificate
    seeds_note = f"{seeds} seed{'' if seeds == 1 else 's'} each"
    delta_text = f"at δ = {sentences.rounded(certificate.delta)}"
    return [
        *([_best_setting(runs, metric, keys)] if metric else []),
        ("Settings", sentences.count_text(len(runs)), "", seeds_note),
        (EPSILON_LABEL, epsilon, delta_text, f"{over_note}{certificate.adjacency}, rounded up"),
    ]


def _best_setting(
    runs: Sequence[SimulationResult], metric: str, keys: Sequence[str]
) -> tuple[str, str, str, str]:
    """Describe the best setting within its budget; if no setting is within it, the best of all."""
    within_budget = [run for run in runs if run.within_budget]
    title, note = f"Best {sentences.metric_name(metric)}", ""
    if not within_budget:
        title, note = f"{title}, {OVER_BUDGET}", "no setting is within its budget; "
    elif len(within_budget) < len(runs):
        title = f"{title} within budget"
    with_metric = [run for run in within_budget or runs if metric in run.metrics]
    if not with_metric:
        return title, sentences.MISSING, "", "no setting within its budget has a metric"
    best = (min if metric == "loss" else max)(with_metric, key=lambda run: run.metrics[metric])
    return (
        title,
        sentences.metric_text(metric, best.metrics[metric]),
        sentences.spread_text(best, metric),
        f"{note}with {_setting_label(best, keys)}; the ε does not cover choosing by clients' data",
    )


def _settings_section(
    runs: Sequence[SimulationResult], metric: str | None, keys: Sequence[str]
) -> str:
    plot = None if metric is None else _setting_plot(runs, metric, keys)
    header = [*keys, "ε", *([sentences.metric_name(metric)] if metric else []), "Dummies"]
    rows = []
    for run in runs:
        cells = [page.escaped(_value_text(run.settings.get(key))) for key in keys]
        over_budget = "" if run.within_budget else f'<span class="over">{OVER_BUDGET}</span>'
        cells.append(page.escaped(sentences.rounded_up(run.certificate.epsilon)) + over_budget)
        if metric is not None:
            has_metric = metric in run.metrics
            cells.append(
                page.escaped(sentences.metric_with_spread(run, metric))
                if has_metric
                else "diverged"
            )
        else:
            cells[0] += " (diverged)"
        cells.append(page.escaped(sentences.count_text(run.dummies)))
        if not run.complete:
            cells[0] += " (partial)"
        rows.append(cells)
    missing = "No setting has a metric, because their models diverged."
    caption = "Dot: mean over seeds. Line: one standard deviation to either side."
    has_rings = plot is not None and "symbol" in plot.data[-1]["marker"]
    if has_rings and not all(run.within_budget for run in runs):
        caption += f" Ring: {OVER_BUDGET}."
    return page.section(
        "settings",
        "Results by setting",
        page.paragraph("" if metric else missing),
        page.figure(plot, caption),
        page.table(header, rows, numeric=range(len(keys), len(header)), css_class="named"),
    )


def _setting_plot(
    runs: Sequence[SimulationResult], metric: str, keys: Sequence[str]
) -> Plot | None:
    """Plot the metric against the varied number or, if several keys vary, one row per setting."""
    runs_with_metric = [
        (run, run.metrics[metric], colour)
        for run, colour in zip(runs, _colours(runs), strict=True)
        if metric in run.metrics
    ]
    if len(runs_with_metric) < 2:
        return None
    values_of_key = [
        sentences.finite_or_none(run.settings.get(keys[0])) for run, _, _ in runs_with_metric
    ]
    spreads = [(run.spread or {}).get(metric) for run, _, _ in runs_with_metric]
    xs = [x for x in values_of_key if x is not None]
    if len(keys) == 1 and len(xs) == len(runs_with_metric):
        points = [
            plots.SettingPoint(x, value, spread, colour, is_ring=not run.within_budget)
            for x, (run, value, colour), spread in zip(xs, runs_with_metric, spreads, strict=True)
        ]
        return plots.setting_plot(
            metric, points, title=keys[0], data_name=sentences.data_name(runs[0])
        )
    rows = [
        (_marked_label(run, keys), value, spread, colour)
        for (run, value, colour), spread in zip(runs_with_metric, spreads, strict=True)
    ]
    return plots.dots_plot("settings", metric, rows, data_name=sentences.data_name(runs[0]))


def _curves_section(
    runs: Sequence[SimulationResult], metric: str | None, keys: Sequence[str]
) -> str:
    title = "How well each setting learns"
    lines = [
        plots.Line(_marked_label(run, keys), colour, band, 2.0, False)
        for run, colour in zip(runs, _colours(runs), strict=True)
        if metric and (band := plots.curve_band(run.curves, metric)) is not None
    ]
    if metric is None or not lines:
        return page.section("learning", title, page.paragraph("No learning curve was recorded."))
    plot = plots.lines_plot(metric, lines, data_name=sentences.data_name(runs[0]))
    return page.section("learning", title, page.figure(plot, "Mean over the seeds of a setting."))


def _certificates_section(runs: Sequence[SimulationResult], keys: Sequence[str]) -> str:
    return page.section(
        "certificate",
        "The certificates in words",
        page.paragraph(
            "Each setting is a separate campaign with its own certificate. Running several of them"
            " on the same people gives a larger ε than any one of them. The ledger computes it."
        ),
        *(
            page.collapsible(
                f"{_marked_label(run, keys)}: ε ≤ {sentences.rounded_up(run.certificate.epsilon)}",
                page.paragraph(sentences.guarantee_sentence(run.certificate), css_class="claim")
                + page.bullets(sentences.certificate_lines(run.certificate))
                + page.heading("Under these assumptions")
                + page.bullets(run.certificate.assumptions),
            )
            for run in runs
        ),
        page.heading("What is not guaranteed"),
        page.bullets(sentences.limitations(runs[0])),
    )
