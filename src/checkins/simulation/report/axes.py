"""Layout of figures: axes, annotations, reference lines, and labels that do not overlap.

A colour is the name of a variable in the stylesheet (``@blue``). ``page.js`` replaces the name by
the colour in light mode, in dark mode or in print. All text is escaped, because plotly interprets
HTML tags.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from checkins.simulation.report import sentences

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
LABEL_HEIGHT_PX, LETTER_WIDTH_PX = 18, 7.6
"""Height of a label, and largest width of a letter, in pixels."""
WIDE, NARROW = "wide", "narrow"
"""Names of annotations that ``page.js`` shows only in wide or only in narrow plots.

``layout["meta"]["narrow"]`` has the margins of narrow plots.
"""


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure for plotly: traces (``data``) and layout, with a title and a text alternative."""

    name: str
    title: str
    alt_text: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    legend: tuple[tuple[str, str], ...] = field(default=())
    """Names and colours of the lines, for a legend."""
    legend_always: bool = False
    """If False, only narrow plots show the legend."""


def escaped(text: object) -> str:
    """Escape the text, so that plotly shows it literally."""
    return html.escape(str(text), quote=False)


def base_layout(height: int, *, x_title: str, y_format: str = "") -> dict[str, Any]:
    """Return the layout that all figures share. ``y_format`` is plotly's format of y ticks."""
    soft_font = {"color": "@soft", "size": 12}
    ticks = {"tickfont": soft_font, "ticklabelstandoff": 5, "tickangle": 0, "fixedrange": True}
    ticks["zeroline"] = False
    title, hover_font = (
        {"text": x_title, "font": soft_font, "standoff": 8},
        {"color": "@ink", "size": 12},
    )
    return {
        "height": height,
        "font": {"family": FONT, "size": 13, "color": "@ink"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "showlegend": False,
        "dragmode": False,
        "margin": {"l": 44, "r": 12, "t": 22, "b": 44 if x_title else 28},
        "xaxis": dict(**ticks, showgrid=False, showline=True, linecolor="@rule", title=title),
        "yaxis": dict(**ticks, automargin="left", gridcolor="@rule", nticks=6, tickformat=y_format),
        "hoverlabel": {"bgcolor": "@paper", "bordercolor": "@rule", "font": hover_font},
        "meta": {"narrow": {}},
    }


def scatter(mode: str, x: Sequence[Any], y: Sequence[Any], **options: Any) -> dict[str, Any]:
    """Return a plotly trace of points. ``mode`` is "lines" or "markers"."""
    return dict(type="scatter", mode=mode, x=x, y=y, **options)


def error_bars(ends: Iterable[tuple[list[float], list[float], str]]) -> list[dict[str, Any]]:
    """Return error bars, from tuples (x of the two ends, y of the two ends, colour)."""
    return [
        scatter("lines", x, y, line={"color": colour, "width": 2.5}, hoverinfo="skip")
        for x, y, colour in ends
    ]


def annotation(text: str, *, colour: str = "@ink", **options: Any) -> dict[str, Any]:
    defaults = {"showarrow": False, "xanchor": "left", "yanchor": "middle"}
    return {"text": escaped(text), **defaults, "font": {"color": colour, "size": 13}, **options}


def label_anchor(x: float, low: float, high: float) -> dict[str, Any]:
    """Return the anchor that keeps the label of a vertical line inside the plot.

    >>> label_anchor(99.0, 0.0, 100.0)["xanchor"], label_anchor(50.0, 0.0, 100.0)["xanchor"]
    ('right', 'center')
    """
    share = (x - low) / (high - low)
    return {"xanchor": "left" if share < 0.15 else "right" if share > 0.7 else "center"}


def horizontal_line(y: float, colour: str) -> dict[str, Any]:
    line = {"color": colour, "width": 1.5, "dash": "dash"}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line}


def vertical_line(x: float, *, colour: str = "@soft", dash: str = "dot") -> dict[str, Any]:
    line = {"color": colour, "width": 1.8, "dash": dash}
    position = {"yref": "paper", "y0": 0, "y1": 1, "x0": x, "x1": x}
    return {"type": "line", "layer": "below", **position, "line": line}


def label_width_px(labels: Iterable[str]) -> int:
    """Return the width of the longest label in pixels, with a margin, at most 230."""
    return min(230, 20 + round(LETTER_WIDTH_PX * max(map(len, labels))))


def capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def axis_range(values: Sequence[float], *, logarithmic: bool) -> list[float]:
    axis_values = [math.log10(value) for value in values] if logarithmic else list(values)
    low, high = min(axis_values), max(axis_values)
    margin = 0.06 * ((high - low) or abs(high) or 1.0)
    return [low - margin, high + margin]


def round_ticks(low: float, high: float) -> dict[str, Any]:
    """Return the ticks of a logarithmic axis from 10^low to 10^high.

    They are 1, 2 and 5 times powers of ten, or only powers of ten on a long axis.

    >>> round_ticks(-0.5, 1.0)["ticktext"]
    ['0.5', '1', '2', '5', '10']
    """
    powers = range(math.floor(low), math.ceil(high) + 1)
    steps = (1, 2, 5) if high - low <= 2.5 else (1,)
    values = [step * 10.0**power for power in powers for step in steps]
    ticks = [value for value in values if low - 1e-9 <= math.log10(value) <= high + 1e-9]
    return {"tickvals": ticks, "ticktext": [sentences.axis_number(value) for value in ticks]}


def without_overlap(
    positions: Sequence[float], *, gap: float, low: float, high: float
) -> list[float]:
    """Move positions of labels so that they are at least ``gap`` apart, if there is room.

    Their order does not change.

    >>> without_overlap([1.0, 1.1, 3.0], gap=0.5, low=0.0, high=4.0)
    [1.0, 1.5, 3.0]
    """
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    moved_positions = [0.0] * len(positions)
    lowest = low
    for index in order:
        moved_positions[index] = max(positions[index], lowest)
        lowest = moved_positions[index] + gap
    highest = high
    for index in reversed(order):
        moved_positions[index] = min(moved_positions[index], highest)
        highest = moved_positions[index] - gap
    return moved_positions
