"""Line, bar and dot plots of the page report.html, as plain values for plotly's script.

A dummy is a random report without data, which the server uses in place of the missing report of a
client.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from checkins.simulation.baselines import Baseline
from checkins.simulation.engine.outcome import Curve
from checkins.simulation.report import axes, sentences
from checkins.simulation.report.axes import LABEL_HEIGHT_PX, Plot, annotation, base_layout, scatter
from checkins.simulation.result import BaselineResult, SimulationResult

COLOURS = {
    Baseline.NON_PRIVATE: "@grey",
    Baseline.POISSON: "@orange",
    Baseline.SHUFFLING: "@green",
    Baseline.NO_AMPLIFICATION: "@purple",
}
MAX_TICKS = 6
"""If a setting has at most this number of values, each value has a tick on the axis."""

Row = tuple[str, float, float | None, str]
"""(name, metric, standard deviation over seeds or None, colour)"""


@dataclass(frozen=True, slots=True)
class Band:
    """Mean, smallest and largest value of some learning curves, at the slots common to all."""

    slots: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    curves: int


def curve_band(curves: Sequence[Curve], metric: str) -> Band | None:
    """Return the band of a metric over some curves; None if no curve has the metric.

    Only slots that all curves have are used. If there are none, only the longest curve is used.
    """
    values_by_curve = [
        {point.slots: point.metrics[metric] for point in curve if metric in point.metrics}
        for curve in curves
    ]
    values_by_curve = [values for values in values_by_curve if values]
    if not values_by_curve:
        return None
    common_slots = sorted(set.intersection(*(set(values) for values in values_by_curve)))
    if not common_slots:
        values_by_curve = [max(values_by_curve, key=len)]
        common_slots = sorted(values_by_curve[0])
    values_by_slot = [[values[slot] for values in values_by_curve] for slot in common_slots]
    return Band(
        slots=tuple(common_slots),
        mean=tuple(sum(column) / len(column) for column in values_by_slot),
        low=tuple(map(min, values_by_slot)),
        high=tuple(map(max, values_by_slot)),
        curves=len(values_by_curve),
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
    def plotted_values(self) -> tuple[float, ...]:
        """All values of the line and its band that must fit into the plot."""
        return (*self.band.low, *self.band.high) if self.shaded else self.band.mean


def learning_plot(result: SimulationResult, metric: str, *, small: bool = False) -> Plot | None:
    """Plot the metric over slots. Return None if no curve has the metric.

    The plot has the mean and the band of the seeds, a line for the average of the models, and a
    thin line for each baseline.
    """
    own_band = curve_band(result.curves, metric)
    if own_band is None:
        return None
    lines = [
        _baseline_line(baseline, baseline_band, own_band)
        for baseline in result.available_baselines
        if (baseline_band := curve_band(baseline.curves, metric)) is not None
    ]
    if (average_band := curve_band(result.average_curves, metric)) is not None:
        lines.append(Line(sentences.AVERAGE, "@blue", average_band, 2.0, dash="dash"))
    lines.append(Line(sentences.THIS_METHOD, "@blue", own_band, 2.6, own_band.curves > 1))
    return lines_plot(metric, lines, data_name=sentences.data_name(result), small=small)


def lines_plot(metric: str, lines: Sequence[Line], *, data_name: str, small: bool = False) -> Plot:
    """Plot lines of one metric, each with its name at its end if there is room."""
    height = 230 if small else 380
    values = [value for line in lines for value in line.plotted_values]
    logarithmic = metric == "loss" and min(values) > 0.0 and max(values) > 20.0 * min(values)
    axis = axes.axis_range(values, logarithmic=logarithmic)
    data: list[dict[str, Any]] = []
    for line in lines:
        data += _band_traces(line) if line.shaded else []
        data.append(_line_trace(line, metric))
    layout = base_layout(height, x_title="slot", y_format=tick_format(metric, values))
    layout["yaxis"]["range"] = axis
    if logarithmic:
        layout["yaxis"].update(type="log", **axes.round_ticks(*axis))
    layout["hovermode"] = "x unified"
    layout["xaxis"]["unifiedhovertitle"] = {"text": "slot %{x}"}
    plot_height = height - layout["margin"]["t"] - layout["margin"]["b"]
    has_room = not small and LABEL_HEIGHT_PX * len(lines) <= plot_height
    if has_room:
        _label_line_ends(layout, lines, axis, plot_height, logarithmic=logarithmic)
    name, title = f"learning-{metric}", f"{sentences.metric_name(metric)} on {data_name}"
    alt_text = "; ".join(
        f"{line.name} ends at {sentences.metric_text(metric, line.band.mean[-1])}" for line in lines
    )
    by_width = sorted(lines, key=lambda line: -line.width)
    legend = () if small else tuple((line.name, line.colour) for line in by_width)
    alt_text = f"{title} over slots: {alt_text}."
    return Plot(
        name, axes.capitalized(title), alt_text, data, layout, legend, legend_always=not has_room
    )


def epsilon_plot(result: SimulationResult) -> Plot | None:
    """Plot epsilon over slots, and the budget. Return None if no bound on epsilon is known."""
    slots = [slots for slots, _ in result.epsilon_by_slot]
    epsilons = [sentences.finite_or_none(epsilon) for _, epsilon in result.epsilon_by_slot]
    finite_epsilons = sentences.finite_values(epsilons)
    if not finite_epsilons:
        return None
    budget = result.campaign.budget.epsilon
    last_text = f"ε ≤ {sentences.rounded_up(finite_epsilons[-1])}"
    style = {"line": {"color": "@blue", "width": 2.6}, "fill": "tozeroy"}
    texts = [sentences.rounded_up(value) for value in epsilons]
    style |= {"fillcolor": "@blue/0.10", "customdata": texts}
    hover = "slot %{x}: ε ≤ %{customdata}<extra></extra>"
    line = scatter("lines", slots, epsilons, name="spent", **style, hovertemplate=hover)
    layout = base_layout(280, x_title="slot")
    y_max = max([*finite_epsilons, budget]) * 1.12
    layout["yaxis"].update(range=[0.0, y_max], rangemode="tozero")
    layout["xaxis"]["range"] = [0, slots[-1]]
    last_slot = slots[max(index for index, value in enumerate(epsilons) if value is not None)]
    layout["shapes"] = [axes.horizontal_line(budget, "@orange")]
    budget_text = sentences.rounded(budget)
    layout["annotations"] = [
        annotation(last_text, x=last_slot, y=finite_epsilons[-1], colour="@blue")
        | {"xanchor": "right", "yanchor": "bottom", "yshift": 6},
        annotation(f"budget {budget_text}", x=0, xref="paper", y=budget)
        | {"font": {"color": "@orange"}, "yanchor": "bottom"},
    ]
    alt_text = f"Privacy loss over slots. At the end, {last_text}; the budget is {budget_text}."
    return Plot("spent", "ε after each slot", alt_text, [line], layout)


def occupancy_plot(result: SimulationResult) -> Plot | None:
    """Plot the check-ins per slot. Return None if they were not recorded.

    Bars are measured shares, the line is the expected shares, and a dotted line is the capacity.
    """
    histogram = result.occupancy
    if histogram is None:
        return None
    width = histogram.width
    centres = [start + (width - 1.0) / 2.0 for start in histogram.edges]
    bars: dict[str, Any] = {"type": "bar", "name": "measured"}
    bars |= {"x": centres, "y": histogram.measured}
    bars |= {"width": [0.86 * width] * len(centres), "marker": {"color": "@blue/0.55"}}
    bars |= {"hovertemplate": "%{y:.2%} of slots<extra>measured</extra>"}
    line = {"color": "@orange", "width": 2, "shape": "spline", "smoothing": 0.6}
    hover = "%{y:.2%}<extra>theory</extra>"
    theory = scatter(
        "lines", centres, histogram.expected, name="theory", line=line, hovertemplate=hover
    )
    layout = base_layout(280, x_title="check-ins in a slot", y_format=".0%")
    layout.update(bargap=0, hovermode="x unified")
    layout["yaxis"]["rangemode"] = "tozero"
    capacity = result.campaign.design.capacity
    first, last = centres[0] - width, centres[-1] + width
    if capacity is not None and capacity_in_view(result):
        layout["shapes"] = [axes.vertical_line(capacity)]
        first, last = min(first, capacity - width), max(last, capacity + width)
        text = f"capacity {sentences.count_text(capacity)}"
        layout["annotations"] = [_label_above(text, capacity, "@soft", (first, last))]
    layout["xaxis"]["range"] = [first, last]
    alt_text = "Share of slots by their number of check-ins, measured and expected."
    legend = (("measured", "@blue"), ("theory", "@orange"))
    data = [bars, theory]
    return Plot("occupancy", "Share of slots", alt_text, data, layout, legend, legend_always=True)


def capacity_in_view(result: SimulationResult) -> bool:
    """Return True if the capacity is close enough to the numbers of check-ins to be drawn."""
    capacity, histogram = result.campaign.design.capacity, result.occupancy
    if capacity is None or histogram is None:
        return False
    margin = 0.3 * (histogram.edges[-1] - histogram.edges[0])
    return histogram.edges[0] - margin <= capacity <= histogram.edges[-1] + margin


def capacity_beyond_view(result: SimulationResult) -> bool:
    """Return True if the capacity is too large to be drawn. Every slot then has dummies."""
    capacity, histogram = result.campaign.design.capacity, result.occupancy
    above = capacity is not None and histogram is not None and capacity > histogram.edges[-1]
    return above and not capacity_in_view(result)


def dummies_plot(result: SimulationResult) -> Plot | None:
    """Plot the dummies of each seed as dots, and the expected number as a line.

    Return None if there is no expected number or no complete seed.
    """
    expected = result.dummies_expected
    measured = [seed.dummies for seed in result.seeds if seed.complete]
    if expected is None or not measured:
        return None
    marker = {"color": "@blue/0.65", "size": 13, "line": {"color": "@paper", "width": 1.5}}
    style = {"name": "one seed", "marker": marker, "hovertemplate": "%{x:,}<extra></extra>"}
    dots = scatter("markers", measured, [0] * len(measured), **style)
    layout = base_layout(120, x_title="dummies in a campaign")
    layout["yaxis"].update(visible=False, range=[-1, 1])
    least, most = min(*measured, expected), max(*measured, expected)
    margin = max(0.35 * (most - least), 0.01 * most, 2.0)
    layout["xaxis"].update(range=[least - margin, most + margin], nticks=6, tickformat=",")
    layout["shapes"] = [axes.vertical_line(expected, colour="@orange", dash="solid")]
    theory, ends = sentences.count_text(expected), (least - margin, most + margin)
    layout["annotations"] = [_label_above(f"theory {theory}", expected, "@orange", ends)]
    alt_text = f"Dummies of each seed, compared with the {theory} that theory expects."
    return Plot("dummies", "Dummies, one dot for each seed", alt_text, [dots], layout)


def _label_above(text: str, x: float, colour: str, ends: tuple[float, float]) -> dict[str, Any]:
    """Return the label above a vertical line at ``x``, on an axis with these ends."""
    label = annotation(text, x=x, y=1, yref="paper", colour=colour)
    return label | {"yanchor": "bottom", **axes.label_anchor(x, *ends)}


def _baseline_line(baseline: BaselineResult, band: Band, own_band: Band) -> Line:
    """Return the line of a baseline: horizontal if the baseline was evaluated only at its end."""
    name, colour = sentences.METHOD_NAMES[baseline.kind], COLOURS[baseline.kind]
    if len(band.slots) > 1 or len(own_band.slots) == 1:
        return Line(name, colour, band)
    ends = (own_band.slots[0], own_band.slots[-1])
    horizontal = Band(ends, band.mean * 2, band.low * 2, band.high * 2, band.curves)
    return Line(name, colour, horizontal, dash="dot")


def tick_format(metric: str, values: Sequence[float]) -> str:
    """Return plotly's format of ticks: per cent for accuracy, with a decimal for close values."""
    if metric != "accuracy":
        return ""
    return ".1%" if max(values) - min(values) < 0.05 else ".0%"


def _line_trace(line: Line, metric: str) -> dict[str, Any]:
    return scatter(
        "lines" if len(line.band.slots) > 1 else "markers",
        line.band.slots,
        line.band.mean,
        name=axes.escaped(line.name),
        line={"color": line.colour, "width": line.width, "dash": line.dash},
        marker={"color": line.colour, "size": 8},
        hovertemplate="%{y:.2%}" if metric == "accuracy" else "%{y:.4g}",
    )


def _band_traces(line: Line) -> list[dict[str, Any]]:
    edge_trace = partial(scatter, "lines", line.band.slots, line={"width": 0, "color": line.colour})
    low = edge_trace(line.band.low, hoverinfo="skip")
    fill = f"{line.colour}/0.18"
    return [low, edge_trace(line.band.high, hoverinfo="skip", fill="tonexty", fillcolor=fill)]


def _label_line_ends(
    layout: dict[str, Any],
    lines: Sequence[Line],
    axis: Sequence[float],
    height: int,
    *,
    logarithmic: bool,
) -> None:
    """Add each line's name at its end, without overlaps."""
    gap = LABEL_HEIGHT_PX * (axis[1] - axis[0]) / height
    ends = [line.band.mean[-1] for line in lines]
    positions = [math.log10(end) if logarithmic else end for end in ends]
    label_positions = axes.without_overlap(positions, gap=gap, low=axis[0], high=axis[1])
    layout["annotations"] = [
        annotation(line.name, x=1, xref="paper", y=y, colour=line.colour, xshift=8, name=axes.WIDE)
        for line, y in zip(lines, label_positions, strict=True)
    ]
    layout["meta"]["narrow"]["r"] = layout["margin"]["r"]
    layout["margin"]["r"] = axes.label_width_px(line.name for line in lines)


def dots_plot(name: str, metric: str, rows: Sequence[Row], *, data_name: str) -> Plot:
    """Return a plot with one row per model, with the best model at the top.

    ``rows`` are tuples (name, metric, spread over seeds or None, colour).
    """
    ordered = sorted(rows, key=lambda row: row[1], reverse=metric == "loss")
    labels, values, _, colours = zip(*ordered, strict=True)
    ranges = [(value - (spread or 0.0), value + (spread or 0.0)) for _, value, spread, _ in ordered]
    value_texts = [
        f"{sentences.metric_text(metric, mean)} {sentences.deviation_text(metric, std)}".rstrip()
        for _, mean, std, _ in ordered
    ]
    marker = {"color": colours, "size": 13}
    dots = scatter("markers", values, list(range(len(ordered))), marker=marker, hoverinfo="skip")
    bars = axes.error_bars(
        (list(ranges[index]), [index, index], colour)
        for index, (_, _, spread, colour) in enumerate(ordered)
        if spread
    )
    layout = base_layout(40 + 46 * len(ordered), x_title="")
    low, high = min(end for end, _ in ranges), max(end for _, end in ranges)
    span = (high - low) or abs(high) or 1.0
    layout["xaxis"].update(range=[low - 0.06 * span, high + 0.06 * span], showgrid=True, nticks=6)
    layout["xaxis"].update(gridcolor="@rule", tickformat=tick_format(metric, [low, high]))
    layout["yaxis"].update(visible=False, range=[-0.6, len(ordered) - 0.4])
    layout["margin"].update(l=axes.label_width_px(labels), r=axes.label_width_px(value_texts), t=4)
    layout["meta"]["narrow"].update(l=12, r=12, t=12)
    layout["annotations"] = []
    for index, (label, text, colour) in enumerate(zip(labels, value_texts, colours, strict=True)):
        at_row: dict[str, Any] = {"xref": "paper", "y": index}
        layout["annotations"] += [
            annotation(
                label, colour=colour, **at_row, x=0, name=axes.WIDE, xanchor="right", xshift=-14
            ),
            annotation(text, colour=colour, **at_row, x=1, name=axes.WIDE, xshift=14),
            annotation(
                f"{label}  {text}", colour=colour, **at_row, x=0, name=axes.NARROW, yshift=17
            ),
        ]
    title = f"{sentences.metric_name(metric)} on {data_name}"
    alt_text = "; ".join(map(" ".join, zip(labels, value_texts, strict=True)))
    return Plot(name, axes.capitalized(title), f"{title}: {alt_text}.", [*bars, dots], layout)


@dataclass(frozen=True, slots=True)
class SettingPoint:
    """The metric (``value``) at one value of a setting (``x``)."""

    x: float
    value: float
    spread: float | None
    colour: str
    is_ring: bool = False
    """Whether the point is drawn as a ring."""


def setting_plot(
    metric: str, points: Sequence[SettingPoint], *, title: str, data_name: str
) -> Plot:
    """Plot the metric against the number that a sweep varies.

    The axis is logarithmic if the largest number is at least ten times the smallest.
    """
    ordered = sorted(points, key=lambda point: point.x)
    xs, values = [p.x for p in ordered], [p.value for p in ordered]
    line_style = {"color": "@rule", "width": 2}
    line_trace = scatter("lines", xs, values, line=line_style, hoverinfo="skip")
    bars = axes.error_bars(
        ([p.x, p.x], [p.value - p.spread, p.value + p.spread], p.colour)
        for p in ordered
        if p.spread
    )
    colours = [p.colour for p in ordered]
    symbols = ["circle-open" if p.is_ring else "circle" for p in ordered]
    outline = {"width": 2.5, "color": colours}
    marker = {"color": colours, "symbol": symbols, "size": 13, "line": outline}
    digits = ".2%" if metric == "accuracy" else ".4g"
    hover = f"{axes.escaped(title)} %{{x}}: %{{y:{digits}}}<extra></extra>"
    dots = scatter("markers", xs, values, marker=marker, hovertemplate=hover)
    layout = base_layout(320, x_title=axes.escaped(title), y_format=tick_format(metric, values))
    if len(xs) <= MAX_TICKS:
        layout["xaxis"].update(tickvals=xs, ticktext=[sentences.rounded(p) for p in xs])
    if xs[0] > 0.0 and xs[-1] >= 10.0 * xs[0]:
        layout["xaxis"]["type"] = "log"
        if len(xs) > MAX_TICKS:
            layout["xaxis"].update(axes.round_ticks(math.log10(xs[0]), math.log10(xs[-1])))
    name = sentences.metric_name(metric)
    alt_text = "; ".join(
        f"{sentences.rounded(p.x)} gives {sentences.metric_text(metric, p.value)}" for p in ordered
    )
    heading = axes.capitalized(f"{name} on {data_name}")
    return Plot(
        "settings", heading, f"{name} by {title}: {alt_text}.", [line_trace, *bars, dots], layout
    )


def methods_plot(result: SimulationResult, metric: str) -> Plot | None:
    """Plot the metric of every method. Return None if there is no method to compare with."""
    rows = [
        _dot_row(sentences.THIS_METHOD, result, metric, "@blue"),
        *(
            _dot_row(
                sentences.METHOD_NAMES[baseline.kind], baseline, metric, COLOURS[baseline.kind]
            )
            for baseline in result.available_baselines
            if metric in baseline.metrics
        ),
    ]
    return (
        dots_plot("methods", metric, rows, data_name=sentences.data_name(result))
        if rows[1:]
        else None
    )


def _dot_row(name: str, result: SimulationResult | BaselineResult, metric: str, colour: str) -> Row:
    return name, result.metrics[metric], (result.spread or {}).get(metric), colour
