"""Line, bar and dot plots of a report, as plain values for plotly's script.

A dummy is a report without data, which the server draws in place of a missing report.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from checkins.simulation.baselines import Baseline
from checkins.simulation.engine.outcome import Curve
from checkins.simulation.report import axes, words
from checkins.simulation.report.axes import LABEL_PX, Plot, note, plain_layout, scatter
from checkins.simulation.result import BaselineResult, SimulationResult

COLOURS = {
    Baseline.NON_PRIVATE: "@grey",
    Baseline.POISSON: "@orange",
    Baseline.SHUFFLING: "@green",
    Baseline.NO_AMPLIFICATION: "@purple",
}
MOST_TICKS = 6
"""Largest number of values for which each value has a tick on the axis."""

Row = tuple[str, float, float | None, str]


@dataclass(frozen=True, slots=True)
class Band:
    """Mean, smallest and largest value of some learning curves, at the slots common to all."""

    slots: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    curves: int


def band(curves: Sequence[Curve], metric: str) -> Band | None:
    """Return the band of a metric over some curves; None if no curve has the metric.

    Only slots that all curves have are used. If there are none, only the longest curve is used.
    """
    points = [
        {point.slots: point.metrics[metric] for point in curve if metric in point.metrics}
        for curve in curves
    ]
    points = [one for one in points if one]
    if not points:
        return None
    common = sorted(set.intersection(*(set(one) for one in points)))
    if not common:
        points = [max(points, key=len)]
        common = sorted(points[0])
    columns = [[one[slot] for one in points] for slot in common]
    return Band(
        slots=tuple(common),
        mean=tuple(sum(column) / len(column) for column in columns),
        low=tuple(map(min, columns)),
        high=tuple(map(max, columns)),
        curves=len(points),
    )


@dataclass(frozen=True, slots=True)
class Line:
    """A named line, with a band around it if ``shaded``."""

    name: str
    colour: str
    band: Band
    width: float = 1.4
    shaded: bool = False
    dash: str = "solid"

    @property
    def reach(self) -> tuple[float, ...]:
        """All values that must fit into the plot."""
        return (*self.band.low, *self.band.high) if self.shaded else self.band.mean


def learning(result: SimulationResult, metric: str, *, small: bool = False) -> Plot | None:
    """Plot the metric over slots. Return None if no curve has the metric.

    The plot has the mean and the band of the seeds, and a thin line for each baseline.
    """
    own = band(result.curves, metric)
    if own is None:
        return None
    lines = [
        _baseline_line(one, of_baseline, own)
        for one in result.available_baselines
        if (of_baseline := band(one.curves, metric)) is not None
    ]
    lines.append(Line(words.THIS, "@blue", own, 2.6, own.curves > 1))
    return lines_plot(metric, lines, where=words.measured_on(result), small=small)


def lines_plot(metric: str, lines: Sequence[Line], *, where: str, small: bool = False) -> Plot:
    """Plot lines of one metric, each with its name at its end if there is room."""
    height = 230 if small else 380
    values = [value for line in lines for value in line.reach]
    logarithmic = metric == "loss" and min(values) > 0.0 and max(values) > 20.0 * min(values)
    axis = axes.axis_range(values, logarithmic=logarithmic)
    data: list[dict[str, Any]] = []
    for line in lines:
        data += _shade(line) if line.shaded else []
        data.append(_trace(line, metric))
    layout = plain_layout(height, x_title="slot", y_format=per_cent(metric, values))
    layout["yaxis"]["range"] = axis
    if logarithmic:
        layout["yaxis"].update(type="log", **axes.round_ticks(*axis))
    layout["hovermode"] = "x unified"
    layout["xaxis"]["unifiedhovertitle"] = {"text": "slot %{x}"}
    room = height - layout["margin"]["t"] - layout["margin"]["b"]
    fits = not small and LABEL_PX * len(lines) <= room
    if fits:
        _name_ends(layout, lines, axis, room, logarithmic=logarithmic)
    name, title = f"learning-{metric}", f"{words.metric_name(metric)} on {where}"
    spoken = "; ".join(
        f"{line.name} ends at {words.metric_value(metric, line.band.mean[-1])}" for line in lines
    )
    bold_first = sorted(lines, key=lambda line: -line.width)
    key = () if small else tuple((line.name, line.colour) for line in bold_first)
    spoken = f"{title} over slots: {spoken}."
    return Plot(name, axes.capital(title), spoken, data, layout, key, key_always=not fits)


def spent(result: SimulationResult) -> Plot | None:
    """Plot epsilon over slots, and the budget. Return None if no epsilon could be bounded."""
    slots = [slots for slots, _ in result.epsilon_by_slot]
    epsilons = [words.finite(epsilon) for _, epsilon in result.epsilon_by_slot]
    known = words.finite_values(epsilons)
    if not known:
        return None
    budget, last = result.campaign.budget.epsilon, f"ε ≤ {words.up(known[-1])}"
    drawn = {"line": {"color": "@blue", "width": 2.6}, "fill": "tozeroy"}
    drawn |= {"fillcolor": "@blue/0.10", "customdata": [words.up(value) for value in epsilons]}
    hover = "slot %{x}: ε ≤ %{customdata}<extra></extra>"
    line = scatter("lines", slots, epsilons, name="spent", **drawn, hovertemplate=hover)
    layout = plain_layout(280, x_title="slot")
    top = max([*known, budget]) * 1.12
    layout["yaxis"].update(range=[0.0, top], rangemode="tozero")
    layout["xaxis"]["range"] = [0, slots[-1]]
    at = slots[max(place for place, value in enumerate(epsilons) if value is not None)]
    layout["shapes"] = [axes.across(budget, "@orange")]
    limit = words.nearest(budget)
    layout["annotations"] = [
        note(last, x=at, y=known[-1], colour="@blue", xanchor="right", yanchor="bottom", yshift=6),
        note(f"budget {limit}", x=0, xref="paper", y=budget)
        | {"font": {"color": "@orange"}, "yanchor": "bottom"},
    ]
    spoken = f"Privacy loss over slots. At the end, {last}; the budget is {limit}."
    return Plot("spent", "ε after each slot", spoken, [line], layout)


def occupancy(result: SimulationResult) -> Plot | None:
    """Plot the check-ins per slot. Return None if they were not recorded.

    Bars are measured, the line is the distribution by theory, and a dotted line is the capacity.
    """
    histogram = result.occupancy
    if histogram is None:
        return None
    width = histogram.width
    middle = [start + (width - 1.0) / 2.0 for start in histogram.edges]
    bars: dict[str, Any] = {"type": "bar", "name": "measured", "x": middle, "y": histogram.measured}
    bars |= {"width": [0.86 * width] * len(middle), "marker": {"color": "@blue/0.55"}}
    bars |= {"hovertemplate": "%{y:.2%} of slots<extra>measured</extra>"}
    line = {"color": "@orange", "width": 2, "shape": "spline", "smoothing": 0.6}
    hover = "%{y:.2%}<extra>theory</extra>"
    theory = scatter(
        "lines", middle, histogram.expected, name="theory", line=line, hovertemplate=hover
    )
    layout = plain_layout(280, x_title="check-ins in a slot", y_format=".0%")
    layout.update(bargap=0, hovermode="x unified")
    layout["yaxis"]["rangemode"] = "tozero"
    capacity = result.campaign.design.capacity
    first, last = middle[0] - width, middle[-1] + width
    if capacity is not None and capacity_in_view(result):
        layout["shapes"] = [axes.upright(capacity)]
        first, last = min(first, capacity - width), max(last, capacity + width)
        text = f"capacity {words.count(capacity)}"
        layout["annotations"] = [_above(text, capacity, "@soft", (first, last))]
    layout["xaxis"]["range"] = [first, last]
    spoken = "Share of slots by their number of check-ins, measured and expected."
    key = (("measured", "@blue"), ("theory", "@orange"))
    data = [bars, theory]
    return Plot("occupancy", "Share of slots", spoken, data, layout, key, key_always=True)


def capacity_in_view(result: SimulationResult) -> bool:
    """Return True if the capacity is close enough to the numbers of check-ins to be drawn."""
    capacity, histogram = result.campaign.design.capacity, result.occupancy
    if capacity is None or histogram is None:
        return False
    reach = 0.3 * (histogram.edges[-1] - histogram.edges[0])
    return histogram.edges[0] - reach <= capacity <= histogram.edges[-1] + reach


def capacity_beyond_view(result: SimulationResult) -> bool:
    """Return True if the capacity is too large to be drawn. Every slot then has dummies."""
    capacity, histogram = result.campaign.design.capacity, result.occupancy
    above = capacity is not None and histogram is not None and capacity > histogram.edges[-1]
    return above and not capacity_in_view(result)


def dummies(result: SimulationResult) -> Plot | None:
    """Plot the dummies of each seed as dots, and the expected number as a line.

    Return None if there is no expected number or no complete seed.
    """
    expected = result.dummies_expected
    measured = [seed.dummies for seed in result.seeds if seed.complete]
    if expected is None or not measured:
        return None
    marker = {"color": "@blue/0.65", "size": 13, "line": {"color": "@paper", "width": 1.5}}
    drawn = {"name": "one seed", "marker": marker, "hovertemplate": "%{x:,}<extra></extra>"}
    dots = scatter("markers", measured, [0] * len(measured), **drawn)
    layout = plain_layout(120, x_title="dummies in a campaign")
    layout["yaxis"].update(visible=False, range=[-1, 1])
    least, most = min(*measured, expected), max(*measured, expected)
    room = max(0.35 * (most - least), 0.01 * most, 2.0)
    layout["xaxis"].update(range=[least - room, most + room], nticks=6, tickformat=",")
    layout["shapes"] = [axes.upright(expected, colour="@orange", dash="solid")]
    theory, ends = words.count(expected), (least - room, most + room)
    layout["annotations"] = [_above(f"theory {theory}", expected, "@orange", ends)]
    spoken = f"Dummies of each seed, compared with the {theory} that theory expects."
    return Plot("dummies", "Dummies, one dot for each seed", spoken, [dots], layout)


def _above(text: str, x: float, colour: str, ends: tuple[float, float]) -> dict[str, Any]:
    """Return the label above a vertical line at ``x``, on an axis with these ends."""
    label = note(text, x=x, y=1, yref="paper", colour=colour)
    return label | {"yanchor": "bottom", **axes.label_anchor(x, *ends)}


def _baseline_line(one: BaselineResult, band: Band, own: Band) -> Line:
    """Return the line of a baseline. It is horizontal if it was measured only at its end."""
    name, colour = words.METHOD_NAMES[one.kind], COLOURS[one.kind]
    if len(band.slots) > 1 or len(own.slots) == 1:
        return Line(name, colour, band)
    ends = (own.slots[0], own.slots[-1])
    level = Band(ends, band.mean * 2, band.low * 2, band.high * 2, band.curves)
    return Line(name, colour, level, dash="dot")


def per_cent(metric: str, values: Sequence[float]) -> str:
    """Return the format of ticks. Accuracy is in per cent, with a decimal if values are close."""
    if metric != "accuracy":
        return ""
    return ".1%" if max(values) - min(values) < 0.05 else ".0%"


def _trace(line: Line, metric: str) -> dict[str, Any]:
    return scatter(
        "lines" if len(line.band.slots) > 1 else "markers",
        line.band.slots,
        line.band.mean,
        name=axes.escaped(line.name),
        line={"color": line.colour, "width": line.width, "dash": line.dash},
        marker={"color": line.colour, "size": 8},
        hovertemplate="%{y:.2%}" if metric == "accuracy" else "%{y:.4g}",
    )


def _shade(line: Line) -> list[dict[str, Any]]:
    edge = partial(scatter, "lines", line.band.slots, line={"width": 0, "color": line.colour})
    low = edge(line.band.low, hoverinfo="skip")
    fill = f"{line.colour}/0.18"
    return [low, edge(line.band.high, hoverinfo="skip", fill="tonexty", fillcolor=fill)]


def _name_ends(
    layout: dict[str, Any],
    lines: Sequence[Line],
    axis: Sequence[float],
    height: int,
    *,
    logarithmic: bool,
) -> None:
    """Add each line's name at its end, without overlaps."""
    gap = LABEL_PX * (axis[1] - axis[0]) / height
    ends = [line.band.mean[-1] for line in lines]
    wanted = [math.log10(end) if logarithmic else end for end in ends]
    places = axes.apart(wanted, gap=gap, low=axis[0], high=axis[1])
    layout["annotations"] = [
        note(line.name, x=1, xref="paper", y=place, colour=line.colour, xshift=8, name=axes.WIDE)
        for line, place in zip(lines, places, strict=True)
    ]
    layout["meta"]["narrow"]["r"] = layout["margin"]["r"]
    layout["margin"]["r"] = axes.label_room(line.name for line in lines)


def dots_plot(name: str, metric: str, rows: Sequence[Row], *, where: str) -> Plot:
    """Return a plot with one row per model, with the best model at the top.

    ``rows`` are tuples (name, metric, spread over seeds or None, colour).
    """
    ordered = sorted(rows, key=lambda row: row[1], reverse=metric == "loss")
    labels, values, _, colours = zip(*ordered, strict=True)
    ends = [(value - (spread or 0.0), value + (spread or 0.0)) for _, value, spread, _ in ordered]
    texts = [
        f"{words.metric_value(metric, value)} {words.deviation(metric, spread)}".rstrip()
        for _, value, spread, _ in ordered
    ]
    marker = {"color": colours, "size": 13}
    dots = scatter("markers", values, list(range(len(ordered))), marker=marker, hoverinfo="skip")
    spans = axes.bars(
        (list(ends[place]), [place, place], colour)
        for place, (_, _, spread, colour) in enumerate(ordered)
        if spread
    )
    layout = plain_layout(40 + 46 * len(ordered), x_title="")
    low, high = min(end for end, _ in ends), max(end for _, end in ends)
    room = (high - low) or abs(high) or 1.0
    layout["xaxis"].update(range=[low - 0.06 * room, high + 0.06 * room], showgrid=True, nticks=6)
    layout["xaxis"].update(gridcolor="@rule", tickformat=per_cent(metric, [low, high]))
    layout["yaxis"].update(visible=False, range=[-0.6, len(ordered) - 0.4])
    layout["margin"].update(l=axes.label_room(labels), r=axes.label_room(texts), t=4)
    layout["meta"]["narrow"].update(l=12, r=12, t=12)
    layout["annotations"] = []
    for place, (label, text, colour) in enumerate(zip(labels, texts, colours, strict=True)):
        at: dict[str, Any] = {"xref": "paper", "y": place}
        layout["annotations"] += [
            note(label, colour=colour, **at, x=0, name=axes.WIDE, xanchor="right", xshift=-14),
            note(text, colour=colour, **at, x=1, name=axes.WIDE, xshift=14),
            note(f"{label}  {text}", colour=colour, **at, x=0, name=axes.NARROW, yshift=17),
        ]
    title = f"{words.metric_name(metric)} on {where}"
    spoken = "; ".join(map(" ".join, zip(labels, texts, strict=True)))
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
    line = {"color": "@rule", "width": 2}
    path = scatter("lines", places, values, line=line, hoverinfo="skip")
    spans = axes.bars(
        ([p.place, p.place], [p.value - p.spread, p.value + p.spread], p.colour)
        for p in ordered
        if p.spread
    )
    colours = [p.colour for p in ordered]
    symbols = ["circle-open" if p.ring else "circle" for p in ordered]
    outline = {"width": 2.5, "color": colours}
    marker = {"color": colours, "symbol": symbols, "size": 13, "line": outline}
    digits = ".2%" if metric == "accuracy" else ".4g"
    hover = f"{axes.escaped(title)} %{{x}}: %{{y:{digits}}}<extra></extra>"
    dots = scatter("markers", places, values, marker=marker, hovertemplate=hover)
    layout = plain_layout(320, x_title=axes.escaped(title), y_format=per_cent(metric, values))
    if len(places) <= MOST_TICKS:
        layout["xaxis"].update(tickvals=places, ticktext=[words.nearest(p) for p in places])
    if places[0] > 0.0 and places[-1] >= 10.0 * places[0]:
        layout["xaxis"]["type"] = "log"
        if len(places) > MOST_TICKS:
            layout["xaxis"].update(axes.round_ticks(math.log10(places[0]), math.log10(places[-1])))
    name = words.metric_name(metric)
    spoken = "; ".join(
        f"{words.nearest(p.place)} gives {words.metric_value(metric, p.value)}" for p in ordered
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
