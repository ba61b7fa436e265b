"""HTML of a report: functions that return elements and escape all text.

The page is one file and loads no other files. Style, scripts and data are inline, and the page's
content security policy forbids everything else. Plotly's script comes from the installed package.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

from checkins.campaign import campaign_text
from checkins.optional_imports import import_optional
from checkins.simulation.report.axes import Plot
from checkins.simulation.report.sentences import finite_or_none
from checkins.simulation.result import SimulationResult

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
)


def escaped(value: object) -> str:
    """Return any value as escaped text for a page or for an attribute.

    >>> escaped('<script>"')
    '&lt;script&gt;&quot;'
    """
    return html.escape(str(value), quote=True)


def page_html(*, title: str, body: str, footer: str) -> str:
    """Return a complete page, with style and scripts."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{CONTENT_SECURITY_POLICY}">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{escaped(title)}</title>
<style>
{_resource_text("page.css")}</style>
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
{_resource_text("page.js")}</script>
</body>
</html>
"""


def join_parts(*parts: str) -> str:
    """Join the parts of a page by newlines, without the empty parts."""
    return "\n".join(part for part in parts if part)


def section(name: str, title: str, *parts: str) -> str:
    content = f"<h2>{escaped(title)}</h2>\n{join_parts(*parts)}"
    return f'<section id="{escaped(name)}">\n{content}\n</section>'


def repeat_section(
    result: SimulationResult, *, command: str | None, instruction: str, file_title: str
) -> str:
    """Return the section on how to repeat a simulation, with the command and the campaign file."""
    seeds = len(result.seeds)
    return section(
        "again",
        "Repeat it",
        paragraph(f"{instruction}. With the same versions, the same seeds give the same numbers."),
        code_block(command or f"checkins simulate campaign.toml --seeds {seeds}"),
        collapsible(file_title, code_block(campaign_text(result.campaign))),
    )


def footer(result: SimulationResult) -> str:
    """Return the footer, with the campaign's seal and the versions of packages."""
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    return paragraph(
        f"Made by checkins simulate. Seal of the campaign: {result.campaign.seal}. Versions:"
        f" {versions}. This page is one file and loads nothing."
    )


def paragraph(text: str, *, css_class: str = "") -> str:
    if not text:
        return ""
    class_attribute = f' class="{escaped(css_class)}"' if css_class else ""
    return f"<p{class_attribute}>{escaped(text)}</p>"


def heading(text: str) -> str:
    return f"<h3>{escaped(text)}</h3>"


def bullets(lines: Sequence[str]) -> str:
    items = "\n".join(f"<li>{escaped(line)}</li>" for line in lines)
    return f'<ul class="list">\n{items}\n</ul>'


def headline_numbers(
    numbers: Sequence[tuple[str, str, str, str]], *, highlighted: Sequence[str] = ()
) -> str:
    """Return large numbers, from tuples (label, number, smaller text, note).

    Numbers whose labels are in ``highlighted`` have another colour.
    """

    def class_attribute(label: str) -> str:
        return ' class="marked"' if label in highlighted else ""

    items = "\n".join(
        f"<div{class_attribute(label)}><dt>{escaped(label)}</dt>"
        f'<dd><span class="big">{escaped(number)} <small>{escaped(smaller_text)}</small></span>'
        f'<span class="note">{escaped(note)}</span></dd></div>'
        for label, number, smaller_text, note in numbers
    )
    return f'<dl class="figures">\n{items}\n</dl>'


def figure(plot: Plot | None, caption: str = "") -> str:
    """Return a plot with its title, legend and data; empty if ``plot`` is None."""
    if plot is None:
        return ""
    name = f"plot-{escaped(plot.name)}"
    data = json.dumps(_json_value({"data": plot.data, "layout": plot.layout}), allow_nan=False)
    json_data = data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    items = "".join(
        f'<li><i style="border-color: {escaped(_style_colour(colour))}"></i>{escaped(label)}</li>'
        for label, colour in plot.legend
    )
    always_class = " always" if plot.legend_always else ""
    figcaption = f'<figcaption class="caption">{escaped(caption)}</figcaption>' if caption else ""
    return (
        f'<figure>\n<p class="above">{escaped(plot.title)}</p>\n'
        + (f'<ul class="key{always_class}">{items}</ul>\n' if items else "")
        + f'<div class="plot" id="{name}" role="img"'
        f' aria-label="{escaped(plot.alt_text)}" style="height: {plot.layout["height"]}px">'
        f'</div>\n<script type="application/json" id="{name}-data">{json_data}</script>\n'
        f"{figcaption}</figure>"
    )


def side_by_side(*figures: str) -> str:
    present_figures = [figure for figure in figures if figure]
    return f'<div class="pair">\n{"".join(present_figures)}\n</div>' if present_figures else ""


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numeric: Sequence[int] = (),
    css_class: str = "plain",
) -> str:
    """Return a table. The cells in ``rows`` must be escaped HTML."""

    def cell_class(column: int) -> str:
        return ' class="number"' if column in numeric else ""

    head = "".join(
        f"<th{cell_class(column)}>{escaped(label)}</th>" for column, label in enumerate(header)
    )
    lines = "\n".join(
        "<tr>"
        + "".join(
            f'<td{cell_class(column)} data-label="{escaped(header[column])}">'
            f"<span>{cell}</span></td>"
            for column, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    body = f"<thead><tr>{head}</tr></thead>\n<tbody>\n{lines}\n</tbody>"
    return f'<table class="{escaped(css_class)}">\n{body}\n</table>'


def collapsible(summary: str, content: str) -> str:
    return f"<details>\n<summary>{escaped(summary)}</summary>\n{content}\n</details>"


def code_block(text: str) -> str:
    return f"<pre><code>{escaped(text)}</code></pre>"


def _style_colour(colour: str) -> str:
    """Return the CSS of a colour of a figure, such as ``@blue`` or a mixture of two colours.

    >>> _style_colour("@blue"), _style_colour("@blue~orange~0.25")
    ('var(--blue)', 'color-mix(in srgb, var(--blue), var(--orange) 25%)')
    """
    first, *mixture = colour.removeprefix("@").split("~")
    if not mixture:
        return f"var(--{first})"
    second, share = mixture
    return f"color-mix(in srgb, var(--{first}), var(--{second}) {100.0 * float(share):g}%)"


def _plotly() -> str:
    plotly = import_optional("plotly.offline", value="report.html", setting="report")
    return str(plotly.get_plotlyjs())


def _resource_text(name: str) -> str:
    return resources.files("checkins.simulation.report").joinpath(name).read_text(encoding="utf-8")


def _json_value(value: Any) -> Any:
    """Return a copy that can be written as JSON. Numbers that are not finite become None."""
    if isinstance(value, dict):
        return {str(key): _json_value(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(part) for part in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    return finite_or_none(value)
