"""HTML of a report: templates that escape all text.

The page is one file and loads nothing. Style, scripts and data are inline, and the page's content
security policy forbids everything else. Plotly's script is copied from the installed package.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

from checkins.campaign import campaign_text
from checkins.simulation.report.axes import Plot
from checkins.simulation.report.words import finite
from checkins.simulation.result import SimulationResult
from checkins.validate import installed

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def text(value: object) -> str:
    """Return any value as escaped text for a page or for an attribute.

    >>> text('<script>"')
    '&lt;script&gt;&quot;'
    """
    return html.escape(str(value), quote=True)


def whole_page(*, title: str, body: str, footer: str) -> str:
    """Return a complete page, with style and scripts."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{text(title)}</title>
<style>
{_file("page.css")}</style>
</head>
<body>
<main>
{body}
</main>
<footer>
{footer}
</footer>
<script>{_plotly()}</script>
<script>
{_file("page.js")}</script>
</body>
</html>
"""


def joined(*parts: str) -> str:
    """Join the parts of a page by newlines, without the empty parts."""
    return "\n".join(part for part in parts if part)


def section(name: str, title: str, *parts: str) -> str:
    return f'<section id="{text(name)}">\n<h2>{text(title)}</h2>\n{joined(*parts)}\n</section>'


def repeat_section(result: SimulationResult, *, command: str | None, how: str, file: str) -> str:
    """Return the section on how to repeat a simulation, with the command and the campaign file."""
    seeds = len(result.seeds)
    return section(
        "again",
        "Repeat it",
        paragraph(f"{how}. With the same versions, the same seeds give the same numbers."),
        listing(command or f"checkins simulate campaign.toml --seeds {seeds}"),
        folded(file, listing(campaign_text(result.campaign))),
    )


def footer(result: SimulationResult) -> str:
    """Return the footer, with the campaign's seal and the versions of packages."""
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    return paragraph(
        f"Made by checkins simulate. Seal of the campaign: {result.campaign.seal}. Versions:"
        f" {versions}. This page is one file and loads nothing."
    )


def paragraph(words: str, *, kind: str = "") -> str:
    if not words:
        return ""
    named = f' class="{text(kind)}"' if kind else ""
    return f"<p{named}>{text(words)}</p>"


def heading(words: str) -> str:
    return f"<h3>{text(words)}</h3>"


def bullets(lines: Sequence[str]) -> str:
    items = "\n".join(f"<li>{text(line)}</li>" for line in lines)
    return f'<ul class="list">\n{items}\n</ul>'


def big_figures(figures: Sequence[tuple[str, str, str, str]], *, marked: Sequence[str] = ()) -> str:
    """Return large numbers, from tuples (label, number, smaller text, note).

    Figures whose labels are in ``marked`` are highlighted.
    """

    def kind(label: str) -> str:
        return ' class="marked"' if label in marked else ""

    items = "\n".join(
        f'<div{kind(label)}><dt>{text(label)}</dt><dd><span class="big">{text(number)}'
        f' <small>{text(small)}</small></span><span class="note">{text(note)}</span></dd></div>'
        for label, number, small, note in figures
    )
    return f'<dl class="figures">\n{items}\n</dl>'


def figure(plot: Plot | None, caption: str = "") -> str:
    """Return a plot with its title, legend and data; empty if ``plot`` is None."""
    if plot is None:
        return ""
    name = f"plot-{text(plot.name)}"
    data = json.dumps(_plain({"data": plot.data, "layout": plot.layout}), allow_nan=False)
    safe = data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    key = "".join(
        f'<li><i style="border-color: {text(_style_colour(colour))}"></i>{text(label)}</li>'
        for label, colour in plot.key
    )
    always = " always" if plot.key_always else ""
    figcaption = f'<figcaption class="caption">{text(caption)}</figcaption>' if caption else ""
    return (
        f'<figure>\n<p class="above">{text(plot.above)}</p>\n'
        + (f'<ul class="key{always}">{key}</ul>\n' if key else "")
        + f'<div class="plot" id="{name}" role="img" aria-label="{text(plot.spoken)}"'
        f' style="height: {plot.layout["height"]}px"></div>\n'
        f'<script type="application/json" id="{name}-data">{safe}</script>\n{figcaption}</figure>'
    )


def side_by_side(*figures: str) -> str:
    present = [one for one in figures if one]
    return f'<div class="pair">\n{"".join(present)}\n</div>' if present else ""


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numeric: Sequence[int] = (),
    kind: str = "plain",
) -> str:
    """Return a table. The cells in ``rows`` must be escaped HTML."""

    def cell_kind(place: int) -> str:
        return ' class="number"' if place in numeric else ""

    head = "".join(
        f"<th{cell_kind(place)}>{text(label)}</th>" for place, label in enumerate(header)
    )
    lines = "\n".join(
        "<tr>"
        + "".join(
            f'<td{cell_kind(place)} data-label="{text(header[place])}"><span>{cell}</span></td>'
            for place, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    body = f"<thead><tr>{head}</tr></thead>\n<tbody>\n{lines}\n</tbody>"
    return f'<table class="{text(kind)}">\n{body}\n</table>'


def folded(summary: str, content: str) -> str:
    return f"<details>\n<summary>{text(summary)}</summary>\n{content}\n</details>"


def listing(words: str) -> str:
    return f"<pre><code>{text(words)}</code></pre>"


def _style_colour(token: str) -> str:
    """Return a figure's colour (see ``page.js``) as CSS.

    >>> _style_colour("@blue"), _style_colour("@blue~orange~0.25")
    ('var(--blue)', 'color-mix(in srgb, var(--blue), var(--orange) 25%)')
    """
    first, *mixed = token.removeprefix("@").split("~")
    if not mixed:
        return f"var(--{first})"
    second, share = mixed
    return f"color-mix(in srgb, var(--{first}), var(--{second}) {100.0 * float(share):g}%)"


def _plotly() -> str:
    plotly = installed("plotly.offline", extra="sim", wanted_by="report.html", setting="report")
    return str(plotly.get_plotlyjs())


def _file(name: str) -> str:
    return resources.files("checkins.simulation.report").joinpath(name).read_text(encoding="utf-8")


def _plain(value: Any) -> Any:
    """Return a copy that JSON allows. Numbers that are not finite become None."""
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    return finite(value)
