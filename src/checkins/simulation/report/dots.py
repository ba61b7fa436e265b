"""Dot plots: the metric of each method or setting, with its spread over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from checkins.simulation.report import numbers, words
from checkins.simulation.report.axes import (
    NARROW,
    WIDE,
    Plot,
    capital,
    escaped,
    label_room,
    note,
    plain_layout,
    round_ticks,
)
from checkins.simulation.report.plots import COLOURS, per_cent
from checkins.simulation.result import BaselineResult, SimulationResult

MOST_TICKS = 6
"""Largest number of values that are written under an axis one by one."""

Row = tuple[str, float, float | None, str]


def dots_plot(name: str, metric: str, rows: Sequence[Row], *, where: str) -> Plot:
    """Return a row for each model, from (name, value, spread, colour), the best at the top."""
    ordered = sorted(rows, key=lambda row: row[1], reverse=metric == "loss")
    values = [value for _, value, _, _ in ordered]
    spreads = [spread or 0.0 for _, _, spread, _ in ordered]
    texts = [
        " ".join(
            part for part in (numbers.metric(metric, value), numbers.spread(metric, spread)) if part
        )
        for _, value, spread, _ in ordered
    ]
    colours = [colour for *_, colour in ordered]
    dots = {
        "type": "scatter",
        "mode": "markers",
        "x": values,
        "y": list(range(len(ordered))),
        "marker": {"color": colours, "size": 13},
        "hoverinfo": "skip",
    }
    bars = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [value - spread, value + spread],
            "y": [place, place],
            "line": {"color": colour, "width": 2.5},
            "hoverinfo": "skip",
        }
        for place, (value, spread, colour) in enumerate(zip(values, spreads, colours, strict=True))
        if spread
    ]
    layout = plain_layout(40 + 46 * len(ordered), x_title="")
    low = min(value - spread for value, spread in zip(values, spreads, strict=True))
    high = max(value + spread for value, spread in zip(values, spreads, strict=True))
    room = (high - low) or abs(high) or 1.0
    layout["xaxis"].update(range=[low - 0.06 * room, high + 0.06 * room], showgrid=True, nticks=6)
    layout["xaxis"].update(gridcolor="@rule", tickformat=per_cent(metric, [low, high]))
    layout["yaxis"].update(visible=False, range=[-0.6, len(ordered) - 0.4])
    layout["margin"].update(l=label_room(row[0] for row in ordered), r=label_room(texts), t=4)
    layout["meta"]["narrow"].update(l=12, r=12, t=12)
    layout["annotations"] = []
    for place, ((label, *_), text, colour) in enumerate(zip(ordered, texts, colours, strict=True)):
        at: dict[str, Any] = {"xref": "paper", "y": place}
        layout["annotations"] += [
            note(label, colour=colour, **at, x=0, name=WIDE, xanchor="right", xshift=-14),
            note(text, colour=colour, **at, x=1, name=WIDE, xshift=14),
            note(f"{label}  {text}", colour=colour, **at, x=0, name=NARROW, yshift=17),
        ]
    title = f"{numbers.metric_name(metric)} on {where}"
    spoken = "; ".join(f"{row[0]} {text}" for row, text in zip(ordered, texts, strict=True))
    return Plot(name, capital(title), f"{title}: {spoken}.", [*bars, dots], layout)


@dataclass(frozen=True, slots=True)
class SettingPoint:
    """The metric at one value of a setting."""

    place: float
    value: float
    spread: float | None
    colour: str
    ring: bool = False
    """Drawn hollow."""


def against(metric: str, points: Sequence[SettingPoint], *, title: str, where: str) -> Plot:
    """Return the metric against a number that was varied, on a log axis if it spans decades."""
    ordered = sorted(points, key=lambda point: point.place)
    places, values = [p.place for p in ordered], [p.value for p in ordered]
    path = {
        "type": "scatter",
        "mode": "lines",
        "x": places,
        "y": values,
        "line": {"color": "@rule", "width": 2},
        "hoverinfo": "skip",
    }
    bars = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [point.place, point.place],
            "y": [point.value - point.spread, point.value + point.spread],
            "line": {"color": point.colour, "width": 2.5},
            "hoverinfo": "skip",
        }
        for point in ordered
        if point.spread
    ]
    shown = ".2%" if metric == "accuracy" else ".4g"
    dots = {
        "type": "scatter",
        "mode": "markers",
        "x": places,
        "y": values,
        "marker": {
            "color": [point.colour for point in ordered],
            "symbol": ["circle-open" if point.ring else "circle" for point in ordered],
            "size": 13,
            "line": {"width": 2.5, "color": [point.colour for point in ordered]},
        },
        "hovertemplate": f"{escaped(title)} %{{x}}: %{{y:{shown}}}<extra></extra>",
    }
    layout = plain_layout(320, x_title=escaped(title), y_format=per_cent(metric, values))
    if len(places) <= MOST_TICKS:
        layout["xaxis"].update(tickvals=places, ticktext=[numbers.nearest(p) for p in places])
    if places[0] > 0.0 and places[-1] >= 10.0 * places[0]:
        layout["xaxis"]["type"] = "log"
        if len(places) > MOST_TICKS:
            layout["xaxis"].update(round_ticks(math.log10(places[0]), math.log10(places[-1])))
    name = numbers.metric_name(metric)
    spoken = "; ".join(
        f"{numbers.nearest(p.place)} gives {numbers.metric(metric, p.value)}" for p in ordered
    )
    above = capital(f"{name} on {where}")
    return Plot("settings", above, f"{name} by {title}: {spoken}.", [path, *bars, dots], layout)


def methods(result: SimulationResult, metric: str) -> Plot | None:
    """The metric of every method, this campaign in blue; None if there is no other."""
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
