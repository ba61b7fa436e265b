"""The picture of an audit: the two errors of its attack, and the epsilon that each test shows.

No test of an (ε, δ)-DP campaign has errors below the line [KOV17, Thm 2.1]

    FN >= max(0, 1 − δ − e^ε FP, e^−ε (1 − δ − FP)),

and each audited delta gives one. A point below the line would contradict the certificate. The
second panel reads the same tests as log((P − δ)/Q): what each of them says epsilon is at least.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from checkins.accounting import Adjacency
from checkins.audit.bounds import Direction
from checkins.audit.power import Rates
from checkins.audit.report import Audit
from checkins.audit.trade_off_curve import Point
from checkins.audit.verdict import Finding
from checkins.formatting import page_down as down
from checkins.formatting import page_up as up

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FloatArray = NDArray[np.float64]

NAME = "trade-off.png"
BLUE, GREY, RED, ORANGE = "#0072b2", "#8a8a8a", "#cc3311", "#d55e00"
COLOURS = {Direction.REMOVE: BLUE, Direction.ADD: ORANGE}
SIDES = {
    Adjacency.ADD_REMOVE: {Direction.REMOVE: "there", Direction.ADD: "missing"},
    Adjacency.REPLACE_ONE: {Direction.REMOVE: "first data", Direction.ADD: "other data"},
}
"""What an event calls the canary."""


def certified_line(false_positive: FloatArray, pairs: Iterable[tuple[float, float]]) -> FloatArray:
    """The smallest false negative rate that all (epsilon, delta) allow."""
    least = np.zeros_like(false_positive)
    for epsilon, delta in pairs:
        if math.isfinite(epsilon):
            room = 1.0 - delta - false_positive
            steep = 1.0 - delta - math.exp(min(epsilon, 700.0)) * false_positive
            least = np.maximum(least, np.maximum(steep, math.exp(-epsilon) * room))
    return least


def draw_trade_off(audit: Audit, path: Path) -> None:
    """Save the picture of the attack that measured most."""
    trade_off(audit).savefig(path, metadata={"Software": "checkins"})


def trade_off(audit: Audit) -> Figure:
    """The picture: its two errors on the left, what each test shows on the right."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    finding = _shown(audit)
    points: tuple[Point, ...] = ()
    if finding is not None and finding.curve is not None:
        points = finding.curve.points(confidence=audit.confidence)
    figure = Figure(figsize=(10.5, 6.0), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)  # no window, whatever MPLBACKEND says
    errors, shown = figure.subplots(1, 2)
    _draw_errors(errors, audit, finding, points)
    _draw_epsilons(shown, audit, finding, points)
    for axes in (errors, shown):
        axes.grid(visible=True, color="#e4e4e4", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.legend(  # below, where no curve can cross it
            frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0.0, -0.12)
        )
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return figure


def _shown(audit: Audit) -> Finding | None:
    drawn = [finding for finding in audit.promise.findings if finding.curve is not None]
    return max(drawn, key=lambda one: one.at(audit.headline).epsilon, default=None)


def _draw_errors(
    axes: Axes, audit: Audit, finding: Finding | None, points: tuple[Point, ...]
) -> None:
    grid = np.linspace(0.0, 1.0, 801)
    pairs = [(c.epsilon, delta) for delta, c in audit.promise.certificates.items()]
    line = certified_line(grid, pairs)
    axes.fill_between(grid, line, color=RED, alpha=0.08, linewidth=0)
    axes.plot(grid, line, color=RED, linewidth=1.5, label="certified: no test lies below")
    axes.plot(grid, 1.0 - grid, ":", color=GREY, linewidth=1.0, label="guessing")
    here, gone = _sides(audit).values()
    canary = "" if finding is None else finding.canary
    for rates in _exact(finding):
        if rates.direction is Direction.REMOVE:
            axes.plot(
                np.append(0.0, rates.unlikely),
                1.0 - np.append(0.0, rates.likely),
                color=BLUE,
                linewidth=1.0,
                alpha=0.6,
                label=f"{canary}, exact",
            )
    if points:
        _points(axes, points, f"{canary}, measured (each end at {audit.confidence:g})")
    axes.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0))
    axes.set_xlabel(f"false positives: called {here}, but {gone}")
    axes.set_ylabel(f"false negatives: called {gone}, but {here}")
    axes.set_title(_title(audit), loc="left", fontsize=11)


def _title(audit: Audit) -> str:
    delta = audit.headline
    certified, measured = audit.promise.certified(delta), audit.promise.measured(delta)
    if audit.promise.contradicted:
        return f"contradicted: certified ε ≤ {up(certified)} at δ = {delta:g}"
    return f"{audit.verdict}: {down(measured)} ≤ ε ≤ {up(certified)} at δ = {delta:g}"


def _points(axes: Axes, points: tuple[Point, ...], label: str) -> None:
    """Each threshold with the Clopper-Pearson ends of both errors, one by one."""
    x = np.array([point.false_positive for point in points])
    y = np.array([point.false_negative for point in points])
    across = np.array([[p.false_positive_low, p.false_positive_high] for p in points]).T
    along = np.array([[p.false_negative_low, p.false_negative_high] for p in points]).T
    axes.errorbar(
        x,
        y,
        xerr=np.abs(across - x),
        yerr=np.abs(along - y),
        fmt="o",
        markersize=2.5,
        color=BLUE,
        elinewidth=0.8,
        label=label,
    )


def _sides(audit: Audit) -> dict[Direction, str]:
    return SIDES[audit.campaign.budget.adjacency]


def _exact(finding: Finding | None) -> tuple[Rates, ...]:
    return finding.rates if finding is not None and finding.exact else ()


def _draw_epsilons(
    axes: Axes, audit: Audit, finding: Finding | None, points: tuple[Point, ...]
) -> None:
    """What each test shows at the headline's delta; its ends are of the picture's points alone."""
    delta = audit.headline
    certified = audit.promise.certified(delta)
    if math.isfinite(certified):
        label = f"certified: ε ≤ {up(certified)}"
        axes.axhline(certified, color=RED, linewidth=1.5, label=label)
    measured = audit.promise.measured(delta)
    label = f"measured, all together: ε ≥ {down(measured)}"
    axes.axhline(measured, color=GREY, linestyle="--", linewidth=1.0, label=label)
    for direction, called in _sides(audit).items():
        for rates in _exact(finding):
            if rates.direction is direction:
                some = (rates.likely > delta) & (rates.unlikely > 0.0)
                shown = np.log((rates.likely[some] - delta) / rates.unlikely[some])
                axes.plot(
                    rates.unlikely[some],
                    shown,
                    color=COLOURS[direction],
                    linewidth=1.0,
                    alpha=0.6,
                    label=f"called {called}, exact",
                )
        read = [_read(point, direction, delta) for point in points]
        found = np.array([pair for pair in read if pair is not None]).reshape(-1, 2)
        if found.size:
            label = f"called {called}, measured at least"
            axes.plot(*found.T, "o", markersize=2.5, color=COLOURS[direction], label=label)
    axes.set_xscale("log")
    lowest = min((p.false_positive_high for p in points), default=1e-3)
    axes.set_xlim(max(1e-7, min(1e-3, lowest) / 2), 1.0)
    top = max(certified if math.isfinite(certified) else 0.0, measured, 1e-3)
    axes.set_ylim(0.0, 1.1 * top)
    axes.set_xlabel("chance of the event where it is unlikely, Q")
    axes.set_ylabel("ε")
    axes.set_title(f"what each threshold shows at δ = {delta:g}", loc="left", fontsize=11)


def _read(point: Point, direction: Direction, delta: float) -> tuple[float, float] | None:
    """(Q, epsilon) of one threshold by its ends, where it shows anything."""
    low, high = 1.0 - point.false_negative_high, point.false_positive_high
    if direction is Direction.ADD:
        low, high = 1.0 - point.false_positive_high, point.false_negative_high
    shows = low > delta and high < 1.0 and low - delta > high
    return (high, math.log((low - delta) / high)) if shows else None
