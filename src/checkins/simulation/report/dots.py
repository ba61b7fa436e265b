"""Dot plots: the metric of each method or setting, with its spread over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from checkins.simulation.report import axes, numbers, words
from checkins.simulation.report.axes import Plot, escaped, note, plain_layout, scatter
from checkins.simulation.report.plots import COLOURS, per_cent
from checkins.simulation.result import BaselineResult, SimulationResult

MOST_TICKS = 6
"""Largest number of values for which each value has a tick on the axis."""

Row = tuple[str, float, float | None, str]


def dots_plot(name: str, metric: str, rows: Sequence[Row], *, where: str) -> Plot:
    """Return a plot with one row per model, with the best model at the top.

    ``rows`` are tuples (name, value, spread, colour).
    """
    ordered = sorted(rows, key=lambda row: row[1], reverse=metric == "loss")
    values = [value for _, value, _, _ in ordered]
    spreads = [spread or 0.0 for _, _, spread, _ in ordered]
    texts = [
        f"{numbers.metric(metric, value)} {numbers.spread(metric, spread)}".rstrip()
        for _, value, spread, _ in ordered
    ]
    colours = [colour for *_, colour in ordered]
    marker = {"color": colours, "size": 13}
    dots = scatter("markers", values, list(range(len(ordered))), marker=marker, hoverinfo="skip")
    spans = axes.bars(
        ([value - spread, value + spread], [place, place], colour)
        for place, (_, value, spread, colour) in enumerate(ordered)
        if spread
    )
    layout = plain_layout(40 + 46 * len(ordered), x_title="")
    low = min(value - spread for value, spread in zip(values, spreads, strict=True))
    high = max(value + spread for value, spread in zip(values, spreads, strict=True))
    room = (high - low) or abs(high) or 1.0
    layout["xaxis"].update(range=[low - 0.06 * room, high + 0.06 * room], showgrid=True, nticks=6)
    layout["xaxis"].update(gridcolor="@rule", tickformat=per_cent(metric, [low, high]))
    layout["yaxis"].update(visible=False, range=[-0.6, len(ordered) - 0.4])
    layout["margin"].update(
        l=axes.label_room(row[0] for row in ordered), r=axes.label_room(texts), t=4
    )
    layout["meta"]["narrow"].update(l=12, r=12, t=12)
    layout["annotations"] = []
    for place, ((label, *_), text, colour) in enumerate(zip(ordered, texts, colours, strict=True)):
        at: dict[str, Any] = {"xref": "paper", "y": place}
        layout["annotations"] += [
            note(label, colour=colour, **at, x=0, name=axes.WIDE, xanchor="right", xshift=-14),
            note(text, colour=colour, **at, x=1, name=axes.WIDE, xshift=14),
            note(f"{label}  {text}", colour=colour, **at, x=0, name=axes.NARROW, yshift=17),
        ]
    title = f"{numbers.metric_name(metric)} on {where}"
    spoken = "; ".join(f"{row[0]} {text}" for row, text in zip(ordered, texts, strict=True))
    return Plot(name, axes.capital(title), f"{title}: {spoken}.", [*spans, dots], layout)


@dataclass(frozen=True, slots=True)
class SettingPoint:
    """The metric at one value of a setting."""

    place: float
    value: float
    spread: float | None
    colour: str
    ring: bool = False
    """Whether the point is drawn as a ring."""


def against(metric: str, points: Sequence[SettingPoint], *, title: str, where: str) -> Plot:
    """Plot the metric against a varied number.

    The axis is logarithmic if the largest number is at least ten times the smallest.
    """
    ordered = sorted(points, key=lambda point: point.place)
    places, values = [p.place for p in ordered], [p.value for p in ordered]
    path_line = {"color": "@rule", "width": 2}
    path = scatter("lines", places, values, line=path_line, hoverinfo="skip")
    spans = axes.bars(
        ([p.place, p.place], [p.value - p.spread, p.value + p.spread], p.colour)
        for p in ordered
        if p.spread
    )
    colours = [point.colour for point in ordered]
    marker = {
        "color": colours,
        "symbol": ["circle-open" if point.ring else "circle" for point in ordered],
        "size": 13,
        "line": {"width": 2.5, "color": colours},
    }
    digits = ".2%" if metric == "accuracy" else ".4g"
    hover = f"{escaped(title)} %{{x}}: %{{y:{digits}}}<extra></extra>"
    dots = scatter("markers", places, values, marker=marker, hovertemplate=hover)
    layout = plain_layout(320, x_title=escaped(title), y_format=per_cent(metric, values))
    if len(places) <= MOST_TICKS:
        layout["xaxis"].update(tickvals=places, ticktext=[numbers.nearest(p) for p in places])
    if places[0] > 0.0 and places[-1] >= 10.0 * places[0]:
        layout["xaxis"]["type"] = "log"
        if len(places) > MOST_TICKS:
            layout["xaxis"].update(axes.round_ticks(math.log10(places[0]), math.log10(places[-1])))
    name = numbers.metric_name(metric)
    spoken = "; ".join(
        f"{numbers.nearest(p.place)} gives {numbers.metric(metric, p.value)}" for p in ordered
    )
    above = axes.capital(f"{name} on {where}")
    return Plot("settings", above, f"{name} by {title}: {spoken}.", [path, *spans, dots], layout)


def methods(result: SimulationResult, metric: str) -> Plot | None:
    """Plot the metric of every method. Return None if there is no method to compare with."""
    rows = [
        _row(words.THIS, result, metric, "@blue"),
        *(
            _row(words.METHOD_NAMES[one.kind], one, metric, COLOURS[one.kind])
            for one in result.available_baselines
            if metric in one.metrics
        ),
    ]
    return dots_plot("methods", metric, rows, where=words.measured_on(result)) if rows[1:] else None


def _row(name: str, one: SimulationResult | BaselineResult, metric: str, colour: str) -> Row:
    return name, one.metrics[metric], (one.spread or {}).get(metric), colour
