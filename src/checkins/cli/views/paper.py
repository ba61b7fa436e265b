"""Tables and plots of the paper's Table 1, Figure 2 and theorems.

Plots are saved as PNG. matplotlib is imported only if a plot is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from checkins import formatting
from checkins.accounting.paper.tables import Curve, SheetRow, TableRow
from checkins.cli.terminal import align_decimals, bullet_list, plain_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_CLIENTS_OR_SLOTS = 10_000_000
"""Largest number of clients or slots that the command `theorems` accepts. Sums over more terms
would take minutes."""

TABLE_LOCAL_EPSILONS = (0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0)
"""Values of the local epsilon ε₀ in the printed table of Figure 2."""
FIGURE2_LOCAL_EPSILONS = tuple(round(0.05 * step, 2) for step in range(1, 61))
"""Values of the local epsilon ε₀ in the plot of Figure 2."""

BLUE, ORANGE, GREEN = "#0072b2", "#d55e00", "#009e73"
PURPLE, GREY, RED = "#aa4499", "#8a8a8a", "#cc3311"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE)


def table1_parts(rows: Sequence[TableRow], setting: Mapping[str, float]) -> list[RenderableType]:
    """Return Table 1 with the parameters at which it is evaluated."""
    local_epsilon = setting["local_epsilon"]
    table = plain_table("amplified by", "grows as", "epsilon", "proved by")
    epsilons = align_decimals(
        [formatting.up(row.epsilon) + "*" * (row.epsilon > local_epsilon) for row in rows]
    )
    for row, epsilon in zip(rows, epsilons, strict=True):
        table.add_row(row.source, row.order, epsilon, row.statement)
    return [
        (
            "Table 1 of [BKMTT20] compares bounds on epsilon for one pass over n ="
            f" {setting['clients']:,} clients with local epsilon ε₀ = {local_epsilon:g}, at delta ="
            f" {setting['delta']!r} (replace-one)."
        ),
        table,
        Text(
            f"*: useless, because epsilon <= {local_epsilon:g} holds without amplification."
            " Epsilon is rounded up. docs/references.bib lists the papers in brackets.",
            style="dim",
        ),
    ]


def figure2_parts(curves: Sequence[Curve], setting: Mapping[str, float]) -> list[RenderableType]:
    """Return the table of Figure 2, at ``TABLE_LOCAL_EPSILONS``."""
    names = [f"n={curve.clients:.0e}".replace("e+0", "e") for curve in curves]
    table = plain_table("ε₀", "bound", *names)
    grid = curves[0].local_epsilons
    indices = [int(abs(grid - value).argmin()) for value in TABLE_LOCAL_EPSILONS]
    fields = {"this_paper": "this paper", "earlier": "earlier"}
    keys = [(index, field) for index in indices for field in fields]
    columns = []
    for curve in curves:
        bounds = [float(getattr(curve, field)[index]) for index, field in keys]
        columns.append(
            align_decimals(
                [
                    formatting.up(bound) + "*" * bool(bound > grid[index])
                    for (index, _), bound in zip(keys, bounds, strict=True)
                ]
            )
        )
    local_epsilons = align_decimals(
        [f"{grid[index]:g}" if field == "this_paper" else "" for index, field in keys]
    )
    titles = [fields[field] for _, field in keys]
    for row in zip(local_epsilons, titles, *columns, strict=True):
        table.add_row(*row)
    return [
        (
            "Figure 2 of [BKMTT20] compares two bounds on epsilon after shuffling n reports, each"
            f" with local epsilon ε₀, at delta = {setting['delta']!r} (replace-one)."
        ),
        table,
        Text(
            "*: useless, because epsilon <= ε₀ holds without shuffling. Epsilon is rounded up. this"
            " paper: [BKMTT20, Thm 5.1]. earlier: [EFMRTT19, Thm 7].",
            style="dim",
        ),
    ]


def theorems_parts(rows: Sequence[SheetRow], setting: Mapping[str, float]) -> list[RenderableType]:
    """Return a table with the value of every statement, or why its preconditions do not hold."""
    table = plain_table("statement", "value", "total δ", right=("value", "total δ"))
    refusals: list[str] = []
    for row in rows:
        if row.value is None:
            reason = row.refusal or "no value"
            if reason not in refusals:
                refusals.append(reason)
            value = f"refused ({refusals.index(reason) + 1})"
        elif row.total_delta is not None and row.total_delta >= 1.0:
            value = "vacuous"
        else:
            value = formatting.nearest(row.value)
        total = "" if row.total_delta is None else formatting.nearest(row.total_delta)
        table.add_row(row.statement, value, total)
    parameters = ", ".join(
        f"{name.replace('_', ' ')} {value:,g}" for name, value in setting.items()
    )
    return [
        f"This table evaluates every statement of the paper [BKMTT20] for replace-one neighbours"
        f" and {parameters}.",
        table,
        *bullet_list(
            "Refused, because the preconditions of the statement do not hold",
            refusals,
            numbered=True,
        ),
        Text(
            "Statements without a key are of [BKMTT20]. Values are rounded to nearest, so they are"
            " examples and not bounds. Reports have local delta 0, except in rows with local δ > 0."
            " In these rows, the total δ of the guarantee is larger than delta: see the column"
            " total δ. In rows with total δ fixed, the total δ equals delta. vacuous: the total δ"
            " is at least 1, and every mechanism satisfies this for every ε. c is the expected"
            " number of check-ins per slot.",
            style="dim",
        ),
    ]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a plot. Points that are NaN are not drawn."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str
    style: str = "-"
    width: float = 1.8
    opacity: float = 1.0


def draw_lines(
    lines: Sequence[Line],
    path: Path,
    *,
    title: str,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    y_limits: tuple[float, float] | None = None,
) -> None:
    """Plot lines with a logarithmic y axis."""
    figure, axes = _new_plot(title, x_label, y_label)
    for line in lines:
        axes.plot(
            line.x,
            line.y,
            line.style,
            color=line.colour,
            label=line.label,
            linewidth=line.width,
            alpha=line.opacity,
        )
    axes.set_yscale("log")
    if log_x:
        axes.set_xscale("log")
    if y_limits is not None:
        axes.set_ylim(*y_limits)
    axes.legend(frameon=False, fontsize=9)
    save(figure, path)


def draw_table1(rows: Sequence[TableRow], path: Path, *, setting: Mapping[str, float]) -> None:
    """Plot Table 1 as one bar per source of amplification."""
    title = (
        f"Table 1: n = {setting['clients']:,}, ε₀ = {setting['local_epsilon']:g},"
        f" δ = {setting['delta']:g}"
    )
    figure, axes = _new_plot(title, "ε after one epoch (dotted: ε₀, without amplification)", "")
    names = [row.source for row in rows][::-1]
    epsilons = [row.epsilon for row in rows][::-1]
    colours = [BLUE if "check-ins" in name else GREY for name in names]
    bars = axes.barh(names, epsilons, color=colours, height=0.6)
    axes.bar_label(bars, fmt="%.3g", padding=4, fontsize=9)
    axes.axvline(rows[0].epsilon, color=RED, linewidth=1, linestyle=":")
    axes.set_xscale("log")
    axes.margins(x=0.12)
    axes.grid(visible=False, axis="y")
    save(figure, path)


def draw_figure2(curves: Sequence[Curve], path: Path, *, delta: float) -> None:
    """Plot Figure 2: this paper solid, the earlier bound dotted, no amplification grey."""
    grid = curves[0].local_epsilons.tolist()
    lines = [Line("no amplification: ε = ε₀", grid, grid, GREY)]
    for curve, colour in zip(curves, COLOURS, strict=False):
        power = round(float(np.log10(curve.clients)))
        lines += [
            Line(f"n = $10^{power}$, this paper", grid, curve.this_paper.tolist(), colour),
            Line(f"n = $10^{power}$, EFMRTT19", grid, curve.earlier.tolist(), colour, ":"),
        ]
    draw_lines(
        lines,
        path,
        title=f"Figure 2: ε after shuffling n reports, δ = {delta:g}",
        x_label="ε₀ of one report",
        y_label="ε",
        y_limits=(1e-3, 10.0),
    )


def draw_theorems(setting: Mapping[str, float], path: Path) -> None:
    """Plot the paper's fixed-window bound and the exact epsilon against ε₀."""
    from checkins.accounting import Adjacency, Design, LocalRandomizer, Protocol, certify
    from checkins.accounting.paper import statements

    slots, participation, delta = int(setting["slots"]), setting["participation"], setting["delta"]
    grid = np.linspace(0.1, 4.0, 27).tolist()
    epsilons: dict[str, list[float]] = {"paper": [], "add": [], "upper": [], "lower": []}
    for local_epsilon in grid:
        design = Design(
            Protocol.FIXED,
            slots=slots,
            participation=participation,
            randomizer=LocalRandomizer(local_epsilon),
        )
        add, replace = (
            certify(design, delta=delta, adjacency=adjacency, compare=False)
            for adjacency in (Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE)
        )
        epsilons["paper"].append(
            statements.fixed_window(slots=slots, participation=participation).epsilon(
                local_epsilon=local_epsilon, delta=delta
            )
        )
        epsilons["add"].append(add.epsilon)
        epsilons["upper"].append(replace.epsilon)
        epsilons["lower"].append(replace.epsilon_lower)
    draw_lines(
        [
            Line("no amplification: ε = ε₀", grid, grid, GREY),
            Line("paper, Theorem 3.2 (replace-one)", grid, epsilons["paper"], ORANGE),
            Line("exact, replace-one", grid, epsilons["upper"], BLUE),
            Line(
                "lower bound for some randomizer, replace-one", grid, epsilons["lower"], BLUE, ":"
            ),
            Line("exact, add/remove", grid, epsilons["add"], GREEN),
        ],
        path,
        title=f"Fixed window: m = {slots:,}, p₀ = {participation:g}, δ = {delta:g}",
        x_label="ε₀ of one report",
        y_label="ε",
    )


def new_figure(width: float, height: float) -> Figure:
    """Create a figure of this size in inches, without opening a window."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)  # opens no window, even if MPLBACKEND is set
    return figure


def _new_plot(title: str, x_label: str, y_label: str) -> tuple[Figure, Axes]:
    figure = new_figure(8.0, 5.0)
    axes = figure.add_subplot()
    style_axes(axes, title)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    return figure, axes


def style_axes(axes: Axes, title: str) -> None:
    """Set a title at the left, a light grid, and no frame at the top and right."""
    axes.set_title(title, loc="left", fontsize=12)
    axes.grid(visible=True, which="major", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def save(figure: Figure, path: Path) -> None:
    """Write the figure to a PNG file."""
    figure.savefig(path, metadata={"Software": "checkins"})
