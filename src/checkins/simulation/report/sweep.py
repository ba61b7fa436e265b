"""The page of a sweep: a table, a plot of the metric by setting, and all learning curves."""

from __future__ import annotations

from collections.abc import Sequence

from checkins.simulation.report import html as page
from checkins.simulation.report import plots, words
from checkins.simulation.report.axes import Plot
from checkins.simulation.result import SimulationResult, SweepResult

OVER = "over budget"
EPSILON = "Privacy loss, ε ≤"
STEPS = ("blue", "purple", "orange")
"""Colours of the first, the middle and the last setting."""


def sweep_page(result: SweepResult) -> str:
    """Return the page of a sweep of at least one setting."""
    runs, first = result.runs, result.runs[0]
    metric = next((headline for run in runs if (headline := run.headline)), None)
    varied = _varied(runs)
    how = "Save the campaign file, set the values of a row of the table above, and simulate it"
    file = f"The campaign file, with {_label(first, varied)}"
    parts = [
        *(section(runs, metric, varied) for section in (_top, _settings, _curves)),
        _certificates(runs, varied),
        page.repeat_section(first, command=result.command, how=how, file=file),
    ]
    title = f"{first.campaign.name}: a simulated sweep"
    return page.whole_page(title=title, body="\n".join(parts), footer=page.footer(first))


def _varied(runs: Sequence[SimulationResult]) -> list[str]:
    """Return the keys whose values differ between settings, or all keys if no key differs."""
    keys = list(dict.fromkeys(key for run in runs for key in run.settings))
    differ = [key for key in keys if len({str(run.settings.get(key)) for run in runs}) > 1]
    return differ or keys


def _label(run: SimulationResult, varied: Sequence[str]) -> str:
    return ", ".join(f"{key.rsplit('.', 1)[-1]} {_value(run.settings[key])}" for key in varied)


def _marked_label(run: SimulationResult, varied: Sequence[str]) -> str:
    """Return the label of a setting, with a remark if it is over its budget."""
    return _label(run, varied) + ("" if run.within_budget else f" ({OVER})")


def _value(value: object) -> str:
    return str(value) if words.finite(value) is None else words.nearest(value)


def _colours(runs: Sequence[SimulationResult]) -> list[str]:
    """Return a colour for each setting, on a scale from blue through purple to orange."""
    last = max(1, len(runs) - 1)
    pieces = len(STEPS) - 1
    colours = []
    for place in range(len(runs)):
        whole = place * pieces / last
        start = min(int(whole), pieces - 1)
        colours.append(f"@{STEPS[start]}~{STEPS[start + 1]}~{whole - start:.3f}")
    return colours


def _top(runs: Sequence[SimulationResult], metric: str | None, varied: Sequence[str]) -> str:
    stopped, first = sum(not run.complete for run in runs), runs[0]
    notice = f"Partial result: {stopped} of {len(runs)} settings were stopped before their end."
    over = not all(run.within_budget for run in runs)
    return page.joined(
        page.paragraph("Simulated sweep", kind="eyebrow"),
        f"<h1>{page.text(first.campaign.name)}</h1>",
        page.paragraph(
            f"Simulated on a computer: no device took part. {len(runs)} settings of"
            f" {', '.join(varied)}, on {first.data.name}.",
            kind="lede",
        ),
        page.paragraph(notice if stopped else "", kind="notice"),
        page.paragraph(_over_budget(runs), kind="notice"),
        page.big_figures(_figures(runs, metric, varied), marked=(EPSILON,) if over else ()),
    )


def _over_budget(runs: Sequence[SimulationResult]) -> str:
    """State how many settings are over their budget; empty if no setting is."""
    over = sum(not run.within_budget for run in runs)
    if not over:
        return ""
    start = "No setting is within its budget"
    if over < len(runs):
        start = f"Over budget: {over} of {len(runs)} settings have a larger ε than their budget"
    return f"{start}. A real campaign with such a setting would stop before its end."


def _figures(
    runs: Sequence[SimulationResult], metric: str | None, varied: Sequence[str]
) -> list[tuple[str, str, str, str]]:
    epsilons = words.finite_values(run.certificate.epsilon for run in runs)
    epsilon, seeds = "not bounded", len(runs[0].seeds)
    if epsilons:
        low, high = words.up(min(epsilons), 3), words.up(max(epsilons), 3)
        epsilon = low if low == high else f"{low}–{high}"
    above = sum(not run.within_budget for run in runs)
    over = f"{above} of {len(runs)} {OVER}; " if above else ""
    certificate = runs[0].certificate
    each = f"{seeds} seed{'' if seeds == 1 else 's'} each"
    at = f"at δ = {words.nearest(certificate.delta)}"
    return [
        *([_best(runs, metric, varied)] if metric else []),
        ("Settings", words.count(len(runs)), "", each),
        (EPSILON, epsilon, at, f"{over}{certificate.adjacency}, rounded up"),
    ]


def _best(
    runs: Sequence[SimulationResult], metric: str, varied: Sequence[str]
) -> tuple[str, str, str, str]:
    """Describe the best setting within its budget, or the best of all if none is within it."""
    within = [run for run in runs if run.within_budget]
    title, among = f"Best {words.metric_name(metric)}", ""
    if not within:
        title, among = f"{title}, {OVER}", "no setting is within its budget; "
    elif len(within) < len(runs):
        title = f"{title} within budget"
    known = [run for run in within or runs if metric in run.metrics]
    if not known:
        return title, words.MISSING, "", "no setting within its budget has a metric"
    best = (min if metric == "loss" else max)(known, key=lambda run: run.metrics[metric])
    return (
        title,
        words.metric_value(metric, best.metrics[metric]),
        words.spread(best, metric),
        f"{among}with {_label(best, varied)}; the ε does not cover a choice by clients' data",
    )


def _settings(runs: Sequence[SimulationResult], metric: str | None, varied: Sequence[str]) -> str:
    plot = None if metric is None else _by_setting(runs, metric, varied)
    heads = [*varied, "ε", *([words.metric_name(metric)] if metric else []), "Dummies"]
    rows = []
    for run in runs:
        cells = [page.text(_value(run.settings.get(key))) for key in varied]
        mark = "" if run.within_budget else f'<span class="over">{OVER}</span>'
        cells.append(page.text(words.up(run.certificate.epsilon)) + mark)
        if metric is not None:
            known = metric in run.metrics
            cells.append(page.text(words.measured(run, metric)) if known else "diverged")
        else:
            cells[0] += " (diverged)"
        cells.append(page.text(words.count(run.dummies)))
        if not run.complete:
            cells[0] += " (partial)"
        rows.append(cells)
    missing = "No setting has a metric, because their models diverged."
    caption = "Dot: mean over seeds. Line: one standard deviation to either side."
    ringed = plot is not None and "symbol" in plot.data[-1]["marker"]
    if ringed and not all(run.within_budget for run in runs):
        caption += f" Ring: {OVER}."
    return page.section(
        "settings",
        "Results by setting",
        page.paragraph("" if metric else missing),
        page.figure(plot, caption),
        page.table(heads, rows, numeric=range(len(varied), len(heads)), kind="named"),
    )


def _by_setting(
    runs: Sequence[SimulationResult], metric: str, varied: Sequence[str]
) -> Plot | None:
    """Plot the metric against the varied value if one number varies, else one row per setting."""
    known = [
        (run, run.metrics[metric], colour)
        for run, colour in zip(runs, _colours(runs), strict=True)
        if metric in run.metrics
    ]
    if len(known) < 2:
        return None
    places = [words.finite(run.settings.get(varied[0])) for run, _, _ in known]
    spreads = [(run.spread or {}).get(metric) for run, _, _ in known]
    axis = [place for place in places if place is not None]
    if len(varied) == 1 and len(axis) == len(known):
        points = [
            plots.SettingPoint(place, value, spread, colour, ring=not run.within_budget)
            for place, (run, value, colour), spread in zip(axis, known, spreads, strict=True)
        ]
        return plots.against(metric, points, title=varied[0], where=words.measured_on(runs[0]))
    rows = [
        (_marked_label(run, varied), value, spread, colour)
        for (run, value, colour), spread in zip(known, spreads, strict=True)
    ]
    return plots.dots_plot("settings", metric, rows, where=words.measured_on(runs[0]))


def _curves(runs: Sequence[SimulationResult], metric: str | None, varied: Sequence[str]) -> str:
    title = "How well each setting learns"
    lines = [
        plots.Line(_marked_label(run, varied), colour, of_seeds, 2.0, False)
        for run, colour in zip(runs, _colours(runs), strict=True)
        if metric and (of_seeds := plots.band(run.curves, metric)) is not None
    ]
    if metric is None or not lines:
        return page.section("learning", title, page.paragraph("No learning curve was recorded."))
    plot = plots.lines_plot(metric, lines, where=words.measured_on(runs[0]))
    return page.section("learning", title, page.figure(plot, "Mean over the seeds of a setting."))


def _certificates(runs: Sequence[SimulationResult], varied: Sequence[str]) -> str:
    return page.section(
        "certificate",
        "The certificates in words",
        page.paragraph(
            "Each setting is a separate campaign with its own certificate. Running several of them"
            " on the same people gives a larger ε than any one of them. The ledger computes it."
        ),
        *(
            page.folded(
                f"{_marked_label(run, varied)}: ε ≤ {words.up(run.certificate.epsilon)}",
                page.paragraph(words.guarantee(run.certificate), kind="claim")
                + page.bullets(words.certificate_lines(run.certificate))
                + page.heading("Under these assumptions")
                + page.bullets(run.certificate.assumptions),
            )
            for run in runs
        ),
        page.heading("What is not guaranteed"),
        page.bullets(words.not_guaranteed(runs[0])),
    )
