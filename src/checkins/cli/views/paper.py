"""Tables of the paper's Table 1, Figure 2 and theorems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import RenderableType
from rich.text import Text

from checkins import formatting
from checkins.accounting.paper import Curve, SheetRow, TableRow
from checkins.cli.views.certificate import listed, plain_table

MOST_IN_SHEET = 10_000_000
"""Largest number of clients or slots: the sums over all of them would take minutes."""

SHOWN_LOCAL_EPSILONS = (0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0)


def table1_parts(rows: Sequence[TableRow], setting: Mapping[str, float]) -> list[RenderableType]:
    """Return Table 1 with its setting."""
    local_epsilon = setting["local_epsilon"]
    table = plain_table("source", "order", "epsilon", "by", right=("epsilon",))
    for row in rows:
        vacuous = row.epsilon > local_epsilon
        table.add_row(
            row.source, row.order, formatting.up(row.epsilon) + "*" * vacuous, row.statement
        )
    return [
        Text(
            f"Table 1: epsilon after one epoch, replace-one, {setting['clients']:,} clients,"
            f" local epsilon E = {local_epsilon:g}, delta = {setting['delta']!r}."
        ),
        table,
        Text(
            f"* vacuous: above {local_epsilon:g}, which holds without amplification. Rounded up.",
            style="dim",
        ),
    ]


def figure2_parts(curves: Sequence[Curve], setting: Mapping[str, float]) -> list[RenderableType]:
    """Return the values of Figure 2 at some local epsilons."""
    names = [f"n={curve.clients:.0e}".replace("e+0", "e") for curve in curves]
    table = plain_table("E", "theorem", *names, right=("E", *names))
    grid = curves[0].local_epsilons
    for wanted in SHOWN_LOCAL_EPSILONS:
        at = int(abs(grid - wanted).argmin())
        for title, kind in (("this paper", "this_paper"), ("EFMRTT19", "earlier")):
            bounds = [float(getattr(curve, kind)[at]) for curve in curves]
            table.add_row(
                f"{grid[at]:g}" if kind == "this_paper" else "",
                title,
                *(formatting.up(bound) + ("*" if bound > grid[at] else " ") for bound in bounds),
            )
    return [
        Text(
            "Figure 2: epsilon after shuffling n reports of epsilon E each, replace-one,"
            f" delta = {setting['delta']!r}."
        ),
        table,
        Text("* vacuous: above E, which holds without amplification. Rounded up.", style="dim"),
    ]


def theorems_parts(rows: Sequence[SheetRow], setting: Mapping[str, float]) -> list[RenderableType]:
    """Return the value of every statement, or the reason why it is refused."""
    table = plain_table("statement", "value", "total δ", right=("value", "total δ"))
    refusals: list[str] = []
    for row in rows:
        if row.value is None:
            reason = row.refusal or "no value"
            if reason not in refusals:
                refusals.append(reason)
            value = f"refused ({refusals.index(reason) + 1})"
        else:
            value = formatting.nearest(row.value)
        total = "" if row.total_delta is None else formatting.nearest(row.total_delta)
        table.add_row(row.statement, value, total)
    where = ", ".join(f"{name.replace('_', ' ')} {value:,g}" for name, value in setting.items())
    return [
        Text(f"Every statement of the paper, replace-one, at {where}."),
        table,
        *listed("Refused: the preconditions do not hold", refusals, numbered=True),
        Text("Rounded to nearest: illustrations, not bounds.", style="dim"),
    ]
