"""The figures of a report, as the plain objects that plotly's script draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from checkins.simulation.report import facts, numbers
from checkins.simulation.report.axes import (
    LABEL_PX,
    WIDE,
    Plot,
    across,
    apart,
    axis_range,
    beside,
    capital,
    escaped,
    label_room,
    note,
    plain_layout,
    round_ticks,
    upright,
)
from checkins.simulation.report.curves import Band, band, seed_curves
from checkins.simulation.report.facts import Result

COLOURS = {
    "non-private": "@grey",
    "poisson": "@orange",
    "shuffling": "@green",
    "no-amplification": "@purple",
}


@dataclass(frozen=True, slots=True)
class Curve:
    """A line with its name, and a band around it where seeds differ."""

    name: str
    colour: str
    band: Band
    width: float = 1.4
    shaded: bool = False
    dash: str = "solid"

    @property
    def reach(self) -> tuple[float, ...]:
        """Every height that is drawn."""
        return (*self.band.low, *self.band.high) if self.shaded else self.band.mean


def learning(result: Result, metric: str, *, small: bool = False) -> Plot | None:
    """The metric over slots: mean and band of the seeds, a thin line for each baseline."""
    own = band(seed_curves(result), metric)
    if own is None:
        return None
    curves = [
        _of_baseline(one, found, own)
        for one in facts.available(result)
        if (found := band(one.get("curves") or (), metric)) is not None
    ]
    curves.append(Curve(facts.THIS, "@blue", own, 2.6, own.spreads))
    return curves_plot(metric, curves, where=facts.where(result), small=small)


def curves_plot(metric: str, curves: Sequence[Curve], *, where: str, small: bool = False) -> Plot:
    """Curves of one metric, each named at its end."""
    height = 230 if small else 380
    values = [value for curve in curves for value in curve.reach]
    logarithmic = metric == "loss" and min(values) > 0.0 and max(values) > 20.0 * min(values)
    axis = axis_range(values, logarithmic=logarithmic)
    data: list[dict[str, Any]] = []
    for curve in curves:
        data += _shade(curve) if curve.shaded else []
        data.append(_line(curve, metric))
    layout = plain_layout(height, x_title="slot", y_format=per_cent(metric, values))
    layout["yaxis"]["range"] = axis
    if logarithmic:
        layout["yaxis"].update(type="log", **round_ticks(*axis))
    layout["hovermode"] = "x unified"
    layout["xaxis"]["unifiedhovertitle"] = {"text": "slot %{x}"}
    room = height - layout["margin"]["t"] - layout["margin"]["b"]
    fits = not small and LABEL_PX * len(curves) <= room
    if fits:
        _name_ends(layout, curves, axis, room, logarithmic=logarithmic)
    name, title = f"learning-{metric}", f"{numbers.metric_name(metric)} on {where}"
    spoken = "; ".join(
        f"{curve.name} ends at {numbers.metric(metric, curve.band.mean[-1])}" for curve in curves
    )
    bold_first = sorted(curves, key=lambda curve: -curve.width)
    key = () if small else tuple((curve.name, curve.colour) for curve in bold_first)
    said = f"{title} over slots: {spoken}."
    return Plot(name, capital(title), said, data, layout, key, key_always=not fits)


def spent(result: Result) -> Plot | None:
    """Epsilon over slots, and the budget where the campaign's file has one."""
    found = result.get("spent") or {}
    slots = found.get("slots") or []
    epsilons = [numbers.finite(value) for value in found.get("epsilon") or ()]
    known = numbers.finite_values(epsilons)
    if not known:
        return None
    budget, last = facts.budget(result), f"ε ≤ {numbers.up(known[-1])}"
    line = {
        "type": "scatter",
        "mode": "lines",
        "name": "spent",
        "x": slots,
        "y": epsilons,
        "line": {"color": "@blue", "width": 2.6},
        "fill": "tozeroy",
        "fillcolor": "@blue/0.10",
        "customdata": [numbers.up(value) for value in epsilons],
        "hovertemplate": "slot %{x}: ε ≤ %{customdata}<extra></extra>",
    }
    layout = plain_layout(280, x_title="slot")
    top = max([*known, budget or 0.0]) * 1.12
    layout["yaxis"].update(range=[0.0, top], rangemode="tozero")
    layout["xaxis"]["range"] = [0, slots[-1]]
    at = slots[max(place for place, value in enumerate(epsilons) if value is not None)]
    shown = [
        note(last, x=at, y=known[-1], colour="@blue", xanchor="right", yanchor="bottom", yshift=6)
    ]
    if budget is not None:
        layout["shapes"] = [across(budget, "@orange")]
        shown.append(
            note(f"budget {numbers.nearest(budget)}", x=0, xref="paper", y=budget)
            | {"font": {"color": "@orange"}, "yanchor": "bottom"}
        )
    layout["annotations"] = shown
    allowed = "" if budget is None else f", of a budget of {numbers.nearest(budget)}"
    spoken = f"Privacy spent over slots; at the end {last}{allowed}."
    return Plot("spent", "ε spent after each slot", spoken, [line], layout)


def occupancy(result: Result) -> Plot | None:
    """How many check-ins a slot gets: measured bars, the law as a line, the capacity dotted."""
    found = result.get("occupancy") or {}
    lower, measured = found.get("check_ins") or [], found.get("measured") or []
    if not lower or not measured:
        return None
    width = numbers.finite(found.get("width")) or 1.0
    middle = [start + (width - 1.0) / 2.0 for start in lower]
    bars = {
        "type": "bar",
        "name": "measured",
        "x": middle,
        "y": measured,
        "width": [0.86 * width] * len(middle),
        "marker": {"color": "@blue/0.55"},
        "hovertemplate": "%{y:.2%} of slots<extra>measured</extra>",
    }
    law = {
        "type": "scatter",
        "mode": "lines",
        "name": "theory",
        "x": middle,
        "y": found.get("expected") or [],
        "line": {"color": "@orange", "width": 2, "shape": "spline", "smoothing": 0.6},
        "hovertemplate": "%{y:.2%}<extra>theory</extra>",
    }
    layout = plain_layout(280, x_title="check-ins in a slot", y_format=".0%")
    layout.update(bargap=0, hovermode="x unified")
    layout["yaxis"]["rangemode"] = "tozero"
    capacity, first, last = facts.capacity(result), middle[0] - width, middle[-1] + width
    if capacity is not None and within_sight(result):
        layout["shapes"] = [upright(capacity)]
        first, last = min(first, capacity - width), max(last, capacity + width)
        layout["annotations"] = [
            note(
                f"capacity {numbers.count(capacity)}", x=capacity, y=1, yref="paper", colour="@soft"
            )
            | {"yanchor": "bottom", **beside(capacity, first, last)}
        ]
    layout["xaxis"]["range"] = [first, last]
    spoken = "Share of slots by their number of check-ins, as measured and as theory says."
    key = (("measured", "@blue"), ("theory", "@orange"))
    return Plot("occupancy", "Share of slots", spoken, [bars, law], layout, key, key_always=True)


def within_sight(result: Result) -> bool:
    """Whether the capacity lies near the numbers of check-ins that slots have."""
    capacity, lower = facts.capacity(result), (result.get("occupancy") or {}).get("check_ins") or []
    if capacity is None or not lower:
        return False
    reach = 0.3 * (lower[-1] - lower[0])
    return bool(lower[0] - reach <= capacity <= lower[-1] + reach)


def beyond(result: Result) -> bool:
    """Whether the capacity lies so far right that it is not drawn: dummies fill every slot."""
    capacity, lower = facts.capacity(result), (result.get("occupancy") or {}).get("check_ins") or []
    return (
        capacity is not None and bool(lower) and capacity > lower[-1] and not within_sight(result)
    )


def dummies(result: Result) -> Plot | None:
    """Dummies of each seed as dots, and what theory expects as a line."""
    expected = numbers.finite(result.get("dummies_expected"))
    seeds = [seed for seed in result.get("seeds") or () if seed.get("complete", True)]
    measured = numbers.finite_values(seed.get("dummies") for seed in seeds)
    if expected is None or not measured:
        return None
    dots = {
        "type": "scatter",
        "mode": "markers",
        "name": "one seed",
        "x": measured,
        "y": [0] * len(measured),
        "marker": {"color": "@blue/0.65", "size": 13, "line": {"color": "@paper", "width": 1.5}},
        "hovertemplate": "%{x:,}<extra></extra>",
    }
    layout = plain_layout(120, x_title="dummies in a campaign")
    layout["yaxis"].update(visible=False, range=[-1, 1])
    least, most = min(*measured, expected), max(*measured, expected)
    room = max(0.35 * (most - least), 0.01 * most, 2.0)
    layout["xaxis"].update(range=[least - room, most + room], nticks=6, tickformat=",")
    layout["shapes"] = [upright(expected, colour="@orange", dash="solid")]
    layout["annotations"] = [
        note(f"theory {numbers.count(expected)}", x=expected, y=1, yref="paper", colour="@orange")
        | {"yanchor": "bottom", **beside(expected, least - room, most + room)}
    ]
    spoken = f"Dummies of each seed beside the {numbers.count(expected)} that theory expects."
    return Plot("dummies", "Dummies, one dot for each seed", spoken, [dots], layout)


def _of_baseline(one: Result, found: Band, own: Band) -> Curve:
    """Its line; a baseline that was measured once, at its end, is a level."""
    name, colour = facts.method_name(one), method_colour(one)
    if len(found.slots) > 1 or len(own.slots) == 1:
        return Curve(name, colour, found)
    ends = (own.slots[0], own.slots[-1])
    level = Band(ends, found.mean * 2, found.low * 2, found.high * 2, found.curves)
    return Curve(name, colour, level, dash="dot")


def method_colour(one: Result) -> str:
    return COLOURS.get(str(one.get("name")), "@grey")


def per_cent(metric: str, values: Sequence[float]) -> str:
    """How ticks are written: accuracy in per cent, with a digit more where values are close."""
    if metric != "accuracy":
        return ""
    return ".1%" if max(values) - min(values) < 0.05 else ".0%"


def _line(curve: Curve, metric: str) -> dict[str, Any]:
    shown = ".2%" if metric == "accuracy" else ".4g"
    return {
        "type": "scatter",
        "mode": "lines" if len(curve.band.slots) > 1 else "markers",
        "name": escaped(curve.name),
        "x": curve.band.slots,
        "y": curve.band.mean,
        "line": {"color": curve.colour, "width": curve.width, "dash": curve.dash},
        "marker": {"color": curve.colour, "size": 8},
        "hovertemplate": f"%{{y:{shown}}}",
    }


def _shade(curve: Curve) -> list[dict[str, Any]]:
    edge = {
        "type": "scatter",
        "mode": "lines",
        "x": curve.band.slots,
        "line": {"width": 0, "color": curve.colour},
        "hoverinfo": "skip",
    }
    fill = {"fill": "tonexty", "fillcolor": f"{curve.colour}/0.18"}
    return [{**edge, "y": curve.band.low}, {**edge, "y": curve.band.high, **fill}]


def _name_ends(
    layout: dict[str, Any],
    curves: Sequence[Curve],
    axis: Sequence[float],
    height: int,
    *,
    logarithmic: bool,
) -> None:
    """Write each line's name at its end; those that would touch are moved apart."""
    gap = LABEL_PX * (axis[1] - axis[0]) / height
    ends = [curve.band.mean[-1] for curve in curves]
    wanted = [math.log10(end) if logarithmic else end for end in ends]
    places = apart(wanted, gap=gap, low=axis[0], high=axis[1])
    layout["annotations"] = [
        note(curve.name, x=1, xref="paper", y=place, colour=curve.colour, xshift=8, name=WIDE)
        for curve, place in zip(curves, places, strict=True)
    ]
    layout["meta"]["narrow"]["r"] = layout["margin"]["r"]
    layout["margin"]["r"] = label_room(curve.name for curve in curves)
