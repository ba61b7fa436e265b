"""Layout of figures: axes, annotations, reference lines, and labels that do not overlap.

A colour is a name in the stylesheet (``@blue``). ``page.js`` replaces the name by its colour in
light mode, in dark mode or in print. Every text is escaped, because plotly interprets tags.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from checkins.simulation.report import words

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
LABEL_PX, LETTER_PX = 18, 7.6
"""Height of a label and largest width of a letter, in pixels."""
WIDE, NARROW = "wide", "narrow"
"""Names of annotations that only wide or only narrow plots show.

``layout["meta"]["narrow"]`` has the margins of narrow plots.
"""


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure with its title (``above``) and its text for screen readers (``spoken``)."""

    name: str
    above: str
    spoken: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    key: tuple[tuple[str, str], ...] = field(default=())
    """Names and colours of the lines, for a legend."""
    key_always: bool = False


def escaped(text: object) -> str:
    """Escape the text, so that plotly shows it literally."""
    return html.escape(str(text), quote=False)


def plain_layout(height: int, *, x_title: str, y_format: str = "") -> dict[str, Any]:
    soft = {"color": "@soft", "size": 12}
    ticks = {"tickfont": soft, "ticklabelstandoff": 5, "tickangle": 0, "fixedrange": True}
    ticks["zeroline"] = False
    title, hover = {"text": x_title, "font": soft, "standoff": 8}, {"color": "@ink", "size": 12}
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
        "hoverlabel": {"bgcolor": "@paper", "bordercolor": "@rule", "font": hover},
        "meta": {"narrow": {}},
    }


def scatter(mode: str, x: Sequence[Any], y: Sequence[Any], **more: Any) -> dict[str, Any]:
    """Return a plotly trace of points. ``mode`` is "lines" or "markers"."""
    return dict(type="scatter", mode=mode, x=x, y=y, **more)


def bars(ends: Iterable[tuple[list[float], list[float], str]]) -> list[dict[str, Any]]:
    """Return error bars, from tuples (x of both ends, y of both ends, colour)."""
    return [
        scatter("lines", x, y, line={"color": colour, "width": 2.5}, hoverinfo="skip")
        for x, y, colour in ends
    ]


def note(text: str, *, colour: str = "@ink", **place: Any) -> dict[str, Any]:
    anchors = {"showarrow": False, "xanchor": "left", "yanchor": "middle"}
    return {"text": escaped(text), **anchors, "font": {"color": colour, "size": 13}, **place}


def label_anchor(x: float, low: float, high: float) -> dict[str, Any]:
    """Return the anchor that keeps the label of a vertical line inside the plot.

    >>> label_anchor(99.0, 0.0, 100.0)["xanchor"], label_anchor(50.0, 0.0, 100.0)["xanchor"]
    ('right', 'center')
    """
    share = (x - low) / (high - low)
    return {"xanchor": "left" if share < 0.15 else "right" if share > 0.7 else "center"}


def across(y: float, colour: str) -> dict[str, Any]:
    line = {"color": colour, "width": 1.5, "dash": "dash"}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line}


def upright(x: float, *, colour: str = "@soft", dash: str = "dot") -> dict[str, Any]:
    line = {"color": colour, "width": 1.8, "dash": dash}
    ends = {"yref": "paper", "y0": 0, "y1": 1, "x0": x, "x1": x}
    return {"type": "line", "layer": "below", **ends, "line": line}


def label_room(labels: Iterable[str]) -> int:
    """Return the room for the longest label, in pixels, at most 230."""
    return min(230, 20 + round(LETTER_PX * max(map(len, labels))))


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def axis_range(values: Sequence[float], *, logarithmic: bool) -> list[float]:
    scaled = [math.log10(value) for value in values] if logarithmic else list(values)
    low, high = min(scaled), max(scaled)
    room = 0.06 * ((high - low) or abs(high) or 1.0)
    return [low - room, high + room]


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
    return {"tickvals": ticks, "ticktext": [words.compact(value) for value in ticks]}


def apart(wanted: Sequence[float], *, gap: float, low: float, high: float) -> list[float]:
    """Move the wanted positions so that they are at least ``gap`` apart, if there is room.

    Their order does not change.

    >>> apart([1.0, 1.1, 3.0], gap=0.5, low=0.0, high=4.0)
    [1.0, 1.5, 3.0]
    """
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    places = [0.0] * len(wanted)
    least = low
    for index in order:
        places[index] = max(wanted[index], least)
        least = places[index] + gap
    most = high
    for index in reversed(order):
        places[index] = min(places[index], most)
        most = places[index] - gap
    return places
