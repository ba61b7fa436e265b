"""One page for many settings: a table, the metric by setting, and all learning curves together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from checkins.simulation.report import dots, facts, numbers, plots, sections, words
from checkins.simulation.report import html as page
from checkins.simulation.report.axes import Plot
from checkins.simulation.report.curves import band, seed_curves
from checkins.simulation.report.facts import Result

OVER = "over budget"
PRICE = "Privacy spent, ε ≤"
STEPS = ("blue", "purple", "orange")
"""Colours that an ordered row of settings runs through."""


def sweep_page(result: Result) -> str:
    """The page of a sweep; a setting without a public holdout has no metric, and says so."""
    runs: list[Result] = list(result["sweep"])
    name = facts.campaign_name(runs[0]) if runs else "sweep"
    metric = next((found for run in runs if (found := facts.headline(run))), None)
    varied = _varied(runs)
    parts = [_top(runs, name, metric, varied)]
    if runs:
        parts += [
            _settings(runs, metric, varied),
            _curves(runs, metric, varied),
            _certificates(runs, varied),
            _again(result, varied),
        ]
    return page.whole_page(
        title=f"{name}: a simulated sweep",
        body="\n".join(parts),
        footer=sections.footer(runs[0] if runs else result),
    )


def _varied(runs: Sequence[Result]) -> list[str]:
    """Settings that differ between runs; all of them where none does."""
    keys = list(dict.fromkeys(key for run in runs for key in run.get("settings") or {}))
    differ = [
        key for key in keys if len({str((run.get("settings") or {}).get(key)) for run in runs}) > 1
    ]
    return differ or keys


def _label(run: Result, varied: Sequence[str]) -> str:
    settings = run.get("settings") or {}
    return ", ".join(f"{key.rsplit('.', 1)[-1]} {_said(settings.get(key))}" for key in varied)


def _marked_label(run: Result, varied: Sequence[str]) -> str:
    """The setting, and in words that it costs too much where it does."""
    return _label(run, varied) + (f" ({OVER})" if facts.over_budget(run) else "")


def _said(value: Any) -> str:
    return str(value) if numbers.finite(value) is None else numbers.nearest(value)


def _colours(runs: Sequence[Result]) -> list[str]:
    """From the first setting to the last, blue through purple to orange."""
    last = max(1, len(runs) - 1)
    pieces = len(STEPS) - 1
    colours = []
    for place in range(len(runs)):
        whole = place * pieces / last
        start = min(int(whole), pieces - 1)
        colours.append(f"@{STEPS[start]}~{STEPS[start + 1]}~{whole - start:.3f}")
    return colours


def _top(runs: Sequence[Result], name: str, metric: str | None, varied: Sequence[str]) -> str:
    stopped = sum(not run.get("complete", True) for run in runs)
    held = str(((runs[0].get("data") or {}) if runs else {}).get("name") or "")
    data = f", on {held}" if held else ""
    notice = f"Partial result: {stopped} of {len(runs)} settings were stopped before their end."
    return "\n".join(
        part
        for part in (
            page.paragraph("Simulated sweep", kind="eyebrow"),
            f"<h1>{page.text(name)}</h1>",
            page.paragraph(
                f"Simulated on a computer: no device took part. {len(runs)} settings of"
                f" {', '.join(varied) or 'one campaign'}{data}.",
                kind="lede",
            ),
            page.paragraph(notice if stopped else "", kind="notice"),
            page.paragraph(_over_budget(runs), kind="notice"),
            page.big_figures(
                _figures(runs, metric, varied),
                marked=(PRICE,) if any(map(facts.over_budget, runs)) else (),
            )
            if runs
            else "",
        )
        if part
    )


def _over_budget(runs: Sequence[Result]) -> str:
    """How many settings cost too much; empty where none does."""
    over = sum(map(facts.over_budget, runs))
    if not over:
        return ""
    said = "No setting is within its budget"
    if over < len(runs):
        said = f"Over budget: {over} of {len(runs)} settings cost more than their budget"
    return f"{said}; a real campaign at such a setting would stop before its end."


def _figures(
    runs: Sequence[Result], metric: str | None, varied: Sequence[str]
) -> list[tuple[str, str, str, str]]:
    prices = numbers.finite_values(facts.certificate(run).get("epsilon") for run in runs)
    price, seeds = "not bounded", max(1, len(runs[0].get("seeds") or ()))
    if prices:
        low, high = numbers.up(min(prices), 3), numbers.up(max(prices), 3)
        price = low if low == high else f"{low}–{high}"
    dear = sum(map(facts.over_budget, runs))
    over = f"{dear} of {len(runs)} {OVER}; " if dear else ""
    shown = [
        (
            "Settings",
            numbers.count(len(runs)),
            "",
            f"{seeds} seed{'' if seeds == 1 else 's'} each, run side by side",
        ),
        (
            PRICE,
            price,
            f"at δ = {numbers.nearest(facts.certificate(runs[0]).get('delta'))}",
            f"{over}{facts.said(facts.certificate(runs[0]), 'adjacency')}, rounded up",
        ),
    ]
    if metric:
        shown.insert(0, _best(runs, metric, varied))
    return shown


def _best(runs: Sequence[Result], metric: str, varied: Sequence[str]) -> tuple[str, str, str, str]:
    """The best of the settings that keep their budget; of all only where none keeps it."""
    kept = [run for run in runs if not facts.over_budget(run)]
    title, among = f"Best {numbers.metric_name(metric)}", ""
    if not kept:
        title, among = f"{title}, {OVER}", "no setting is within its budget; "
    elif len(kept) < len(runs):
        title = f"{title} within budget"
    known = [run for run in kept or runs if _value(run, metric) is not None]
    if not known:
        return title, numbers.MISSING, "", "no setting within its budget has a metric"
    best = (min if metric == "loss" else max)(known, key=lambda run: _value(run, metric) or 0.0)
    return (
        title,
        numbers.metric(metric, _value(best, metric)),
        numbers.spread(metric, (best.get("spread") or {}).get(metric)),
        f"{among}with {_label(best, varied)}; choosing it by clients' data would not be covered",
    )


def _value(run: Result, metric: str) -> float | None:
    return numbers.finite((run.get("metrics") or {}).get(metric))


def _settings(runs: Sequence[Result], metric: str | None, varied: Sequence[str]) -> str:
    plot = None if metric is None else _by_setting(runs, metric, varied)
    heads = [*varied, "ε", *([numbers.metric_name(metric)] if metric else []), "Dummies"]
    rows = []
    for run in runs:
        settings = run.get("settings") or {}
        cells = [page.text(_said(settings.get(key))) for key in varied]
        mark = f'<span class="over">{OVER}</span>' if facts.over_budget(run) else ""
        cells.append(page.text(numbers.up(facts.certificate(run).get("epsilon"))) + mark)
        if metric is not None:
            deviation = numbers.spread(metric, (run.get("spread") or {}).get(metric))
            value = f"{numbers.metric(metric, _value(run, metric))} {deviation}".strip()
            lost = facts.diverged(run) and _value(run, metric) is None
            cells.append("diverged" if lost else page.text(value))
        elif facts.diverged(run):
            cells[0] += " (diverged)"
        cells.append(page.text(numbers.count(run.get("dummies"))))
        if not run.get("complete", True):
            cells[0] += " (partial)"
        rows.append(cells)
    missing = "There is no public holdout, so no setting has a metric."
    if any(map(facts.diverged, runs)):
        missing = "No setting has a metric: their models diverged."
    said = "Dot: mean over seeds; line: one standard deviation to either side."
    ringed = plot is not None and plot.data[-1]["marker"].get("symbol")
    if ringed and any(map(facts.over_budget, runs)):
        said += f" Ring: {OVER}."
    return page.section(
        "settings",
        "Setting by setting",
        page.paragraph("" if metric else missing),
        page.figure(plot, said),
        page.table(heads, rows, numeric=range(len(varied), len(heads)), kind="named"),
    )


def _by_setting(runs: Sequence[Result], metric: str, varied: Sequence[str]) -> Plot | None:
    """Against the value where one number varies, else one dot for each setting."""
    known = [
        (run, value, colour)
        for run, colour in zip(runs, _colours(runs), strict=True)
        if (value := _value(run, metric)) is not None
    ]
    if len(known) < 2:
        return None
    places = [numbers.finite((run.get("settings") or {}).get(varied[0])) for run, _, _ in known]
    spreads = [numbers.finite((run.get("spread") or {}).get(metric)) for run, _, _ in known]
    axis = [place for place in places if place is not None]
    if len(varied) == 1 and len(axis) == len(known):
        points = [
            dots.Point(place, value, spread, colour, ring=facts.over_budget(run))
            for place, (run, value, colour), spread in zip(axis, known, spreads, strict=True)
        ]
        return dots.against(metric, points, title=varied[0], where=facts.where(runs[0]))
    rows = [
        (_marked_label(run, varied), value, spread, colour)
        for (run, value, colour), spread in zip(known, spreads, strict=True)
    ]
    return dots.dots_plot("settings", metric, rows, where=facts.where(runs[0]))


def _curves(runs: Sequence[Result], metric: str | None, varied: Sequence[str]) -> str:
    title = "How well each learns"
    curves = [
        plots.Curve(_marked_label(run, varied), colour, found, 2.0, False)
        for run, colour in zip(runs, _colours(runs), strict=True)
        if metric and (found := band(seed_curves(run), metric)) is not None
    ]
    if metric is None or not curves:
        return page.section("learning", title, page.paragraph("No learning curve was recorded."))
    plot = plots.curves_plot(metric, curves, where=facts.where(runs[0]))
    return page.section("learning", title, page.figure(plot, "Mean over the seeds of a setting."))


def _certificates(runs: Sequence[Result], varied: Sequence[str]) -> str:
    return page.section(
        "certificate",
        "The certificates in words",
        page.paragraph(
            "Each setting is a campaign of its own, with a certificate of its own; running several"
            " on the same people costs more than any one, and the ledger composes them."
        ),
        *(
            page.folded(
                f"{_marked_label(run, varied)}: ε ≤"
                f" {numbers.up(facts.certificate(run).get('epsilon'))}",
                page.paragraph(words.promise(run), kind="claim")
                + page.bullets(words.promised(run))
                + page.heading("If these hold")
                + page.bullets([str(x) for x in facts.certificate(run).get("assumptions") or ()]),
            )
            for run in runs
        ),
        page.heading("What is not promised"),
        page.bullets(words.not_promised(runs[0])),
    )


def _again(result: Result, varied: Sequence[str]) -> str:
    runs = result["sweep"]
    seeds = max(1, len(runs[0].get("seeds") or ()))
    text = str((runs[0].get("campaign") or {}).get("text") or "")
    return page.section(
        "again",
        "Repeat it",
        page.paragraph(
            "Save the campaign's file, give it a row of the table above, and run it; on the same"
            " versions the same seeds give the same numbers."
        ),
        page.listing(result.get("command") or f"checkins simulate campaign.toml --seeds {seeds}"),
        page.folded(f"The campaign's file, with {_label(runs[0], varied)}", page.listing(text)),
    )
