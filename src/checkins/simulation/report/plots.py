"""Line and bar plots of a report, as plain values for plotly's script.

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
from checkins.simulation.report import axes, numbers, words
from checkins.simulation.report.axes import LABEL_PX, Plot, label_anchor, note, plain_layout
from checkins.simulation.result import BaselineResult, SimulationResult

COLOURS = {
    Baseline.NON_PRIVATE: "@grey",
    Baseline.POISSON: "@orange",
    Baseline.SHUFFLING: "@green",
    Baseline.NO_AMPLIFICATION: "@purple",
}


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
        _baseline_line(one, found, own)
        for one in result.available_baselines
        if (found := band(one.curves, metric)) is not None
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
    name, title = f"learning-{metric}", f"{numbers.metric_name(metric)} on {where}"
    spoken = "; ".join(
        f"{line.name} ends at {numbers.metric(metric, line.band.mean[-1])}" for line in lines
    )
    bold_first = sorted(lines, key=lambda line: -line.width)
    key = () if small else tuple((line.name, line.colour) for line in bold_first)
    spoken = f"{title} over slots: {spoken}."
    return Plot(name, axes.capital(title), spoken, data, layout, key, key_always=not fits)


def spent(result: SimulationResult) -> Plot | None:
    """Plot epsilon over slots, and the budget. Return None if no epsilon could be bounded."""
    slots = [slots for slots, _ in result.epsilon_by_slot]
    epsilons = [numbers.finite(epsilon) for _, epsilon in result.epsilon_by_slot]
    known = numbers.finite_values(epsilons)
    if not known:
        return None
    budget, last = result.campaign.budget.epsilon, f"ε ≤ {numbers.up(known[-1])}"
    line = axes.scatter(
        "lines",
        slots,
        epsilons,
        name="spent",
        line={"color": "@blue", "width": 2.6},
        fill="tozeroy",
        fillcolor="@blue/0.10",
        customdata=[numbers.up(value) for value in epsilons],
        hovertemplate="slot %{x}: ε ≤ %{customdata}<extra></extra>",
    )
    layout = plain_layout(280, x_title="slot")
    top = max([*known, budget]) * 1.12
    layout["yaxis"].update(range=[0.0, top], rangemode="tozero")
    layout["xaxis"]["range"] = [0, slots[-1]]
    at = slots[max(place for place, value in enumerate(epsilons) if value is not None)]
    layout["shapes"] = [axes.across(budget, "@orange")]
    limit = numbers.nearest(budget)
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
    found = result.occupancy
    if found is None:
        return None
    width = found.width
    middle = [start + (width - 1.0) / 2.0 for start in found.edges]
    bars = {
        "type": "bar",
        "name": "measured",
        "x": middle,
        "y": found.measured,
        "width": [0.86 * width] * len(middle),
        "marker": {"color": "@blue/0.55"},
        "hovertemplate": "%{y:.2%} of slots<extra>measured</extra>",
    }
    distribution = axes.scatter(
        "lines",
        middle,
        found.expected,
        name="theory",
        line={"color": "@orange", "width": 2, "shape": "spline", "smoothing": 0.6},
        hovertemplate="%{y:.2%}<extra>theory</extra>",
    )
    layout = plain_layout(280, x_title="check-ins in a slot", y_format=".0%")
    layout.update(bargap=0, hovermode="x unified")
    layout["yaxis"]["rangemode"] = "tozero"
    capacity = result.campaign.design.capacity
    first, last = middle[0] - width, middle[-1] + width
    if capacity is not None and capacity_in_view(result):
        layout["shapes"] = [axes.upright(capacity)]
        first, last = min(first, capacity - width), max(last, capacity + width)
        layout["annotations"] = [
            note(
                f"capacity {numbers.count(capacity)}", x=capacity, y=1, yref="paper", colour="@soft"
            )
            | {"yanchor": "bottom", **label_anchor(capacity, first, last)}
        ]
    layout["xaxis"]["range"] = [first, last]
    spoken = "Share of slots by their number of check-ins, measured and expected."
    key = (("measured", "@blue"), ("theory", "@orange"))
    return Plot(
        "occupancy", "Share of slots", spoken, [bars, distribution], layout, key, key_always=True
    )


def capacity_in_view(result: SimulationResult) -> bool:
    """Return True if the capacity is close enough to the numbers of check-ins to be drawn."""
    capacity, found = result.campaign.design.capacity, result.occupancy
    if capacity is None or found is None:
        return False
    reach = 0.3 * (found.edges[-1] - found.edges[0])
    return found.edges[0] - reach <= capacity <= found.edges[-1] + reach


def capacity_beyond_view(result: SimulationResult) -> bool:
    """Return True if the capacity is too large to be drawn. Every slot then has dummies."""
    capacity, found = result.campaign.design.capacity, result.occupancy
    above = capacity is not None and found is not None and capacity > found.edges[-1]
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
    hover = "%{x:,}<extra></extra>"
    dots = axes.scatter(
        "markers",
        measured,
        [0] * len(measured),
        name="one seed",
        marker=marker,
        hovertemplate=hover,
    )
    layout = plain_layout(120, x_title="dummies in a campaign")
    layout["yaxis"].update(visible=False, range=[-1, 1])
    least, most = min(*measured, expected), max(*measured, expected)
    room = max(0.35 * (most - least), 0.01 * most, 2.0)
    layout["xaxis"].update(range=[least - room, most + room], nticks=6, tickformat=",")
    layout["shapes"] = [axes.upright(expected, colour="@orange", dash="solid")]
    layout["annotations"] = [
        note(f"theory {numbers.count(expected)}", x=expected, y=1, yref="paper", colour="@orange")
        | {"yanchor": "bottom", **label_anchor(expected, least - room, most + room)}
    ]
    spoken = (
        f"Dummies of each seed, compared with the {numbers.count(expected)} that theory expects."
    )
    return Plot("dummies", "Dummies, one dot for each seed", spoken, [dots], layout)


def _baseline_line(one: BaselineResult, found: Band, own: Band) -> Line:
    """Return the line of a baseline. It is horizontal if it was measured only at its end."""
    name, colour = words.METHOD_NAMES[one.kind], COLOURS[one.kind]
    if len(found.slots) > 1 or len(own.slots) == 1:
        return Line(name, colour, found)
    ends = (own.slots[0], own.slots[-1])
    level = Band(ends, found.mean * 2, found.low * 2, found.high * 2, found.curves)
    return Line(name, colour, level, dash="dot")


def per_cent(metric: str, values: Sequence[float]) -> str:
    """Return the format of ticks. Accuracy is in per cent, with a decimal if values are close."""
    if metric != "accuracy":
        return ""
    return ".1%" if max(values) - min(values) < 0.05 else ".0%"


def _trace(line: Line, metric: str) -> dict[str, Any]:
    return axes.scatter(
        "lines" if len(line.band.slots) > 1 else "markers",
        line.band.slots,
        line.band.mean,
        name=axes.escaped(line.name),
        line={"color": line.colour, "width": line.width, "dash": line.dash},
        marker={"color": line.colour, "size": 8},
        hovertemplate="%{y:.2%}" if metric == "accuracy" else "%{y:.4g}",
    )


def _shade(line: Line) -> list[dict[str, Any]]:
    edge = partial(axes.scatter, "lines", line.band.slots, line={"width": 0, "color": line.colour})
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
