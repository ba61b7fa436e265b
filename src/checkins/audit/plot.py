"""Plot the best attack of an audit: its two error rates, and the epsilon that each test shows.

Let FP and FN be the false positive and false negative rates of a test. If the campaign is
(ε, δ)-DP, then for every test [KOV17, Thm 2.1]

    FN >= max(0, 1 − δ − e^ε FP, e^−ε (1 − δ − FP)).

The left panel draws the largest of these lower limits over all audited deltas. A point below it
contradicts the certificate. The right panel shows log((P − δ)/Q) of the same tests, which is the
lower bound on epsilon that each test gives.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from checkins.accounting import Adjacency
from checkins.audit.bounds import Direction
from checkins.audit.report import AttackResult, Audit
from checkins.audit.statistics import EventRates, TradeOffPoint
from checkins.formatting import page_down as down
from checkins.formatting import page_up as up

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FloatArray = NDArray[np.float64]

NAME = "trade-off.png"
BLUE, GREY, RED, ORANGE = "#0072b2", "#8a8a8a", "#cc3311", "#d55e00"
THIN: dict[str, Any] = {"linewidth": 1.0, "alpha": 0.6}
COLOURS = {Direction.REMOVE: BLUE, Direction.ADD: ORANGE}
SIDES = {
    Adjacency.ADD_REMOVE: {Direction.REMOVE: "present", Direction.ADD: "missing"},
    Adjacency.REPLACE_ONE: {Direction.REMOVE: "first data", Direction.ADD: "other data"},
}
"""Labels of the two cases that a test distinguishes."""


def certified_line(false_positive: FloatArray, pairs: Iterable[tuple[float, float]]) -> FloatArray:
    """Return the smallest false negative rates that all (epsilon, delta) pairs allow."""
    least = np.zeros_like(false_positive)
    for epsilon, delta in pairs:
        if math.isfinite(epsilon):
            room = 1.0 - delta - false_positive
            steep = 1.0 - delta - math.exp(min(epsilon, 700.0)) * false_positive
            least = np.maximum(least, np.maximum(steep, math.exp(-epsilon) * room))
    return least


def draw_trade_off(audit: Audit, path: Path) -> None:
    """Save the figure of the attack with the largest measured bound."""
    trade_off(audit).savefig(path, metadata={"Software": "checkins"})


def trade_off(audit: Audit) -> Figure:
    """Return the figure: error rates on the left, epsilon of each test on the right."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    result = _best_with_curve(audit)
    points: tuple[TradeOffPoint, ...] = ()
    if result is not None and result.curve is not None:
        points = result.curve.points(confidence=audit.confidence)
    figure = Figure(figsize=(10.5, 6.0), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)  # never open a window, whatever MPLBACKEND says
    errors, epsilons = figure.subplots(1, 2)
    _draw_errors(errors, audit, result, points)
    _draw_epsilons(epsilons, audit, result, points)
    for axes in (errors, epsilons):
        axes.grid(visible=True, color="#e4e4e4", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.legend(  # below the plot, where it hides no curve
            frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0.0, -0.12)
        )
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return figure


def _best_with_curve(audit: Audit) -> AttackResult | None:
    drawn = [result for result in audit.check.results if result.curve is not None]
    return max(drawn, key=lambda one: one.at(audit.headline).epsilon, default=None)


def _draw_errors(
    axes: Axes, audit: Audit, result: AttackResult | None, points: tuple[TradeOffPoint, ...]
) -> None:
    grid = np.linspace(0.0, 1.0, 801)
    pairs = [(c.epsilon, delta) for delta, c in audit.check.certificates.items()]
    line = certified_line(grid, pairs)
    axes.fill_between(grid, line, color=RED, alpha=0.08, linewidth=0)
    axes.plot(grid, line, color=RED, linewidth=1.5, label="certified: no test is below this line")
    axes.plot(grid, 1.0 - grid, ":", color=GREY, linewidth=1.0, label="guessing")
    here, gone = _sides(audit).values()
    canary = "" if result is None else result.canary
    for rates in _exact(result):
        if rates.direction is Direction.REMOVE:
            x, y = np.append(0.0, rates.unlikely), 1.0 - np.append(0.0, rates.likely)
            axes.plot(x, y, **THIN, color=BLUE, label=f"{canary}, exact")
    if points:
        _points(axes, points, f"{canary}, measured (each interval end at {audit.confidence:g})")
    axes.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0))
    axes.set_xlabel(f"false positives: called {here}, but {gone}")
    axes.set_ylabel(f"false negatives: called {gone}, but {here}")
    axes.set_title(_title(audit), loc="left", fontsize=11)


def _title(audit: Audit) -> str:
    delta = audit.headline
    certified, measured = audit.check.certified(delta), audit.check.measured(delta)
    if audit.check.contradicted:
        return f"contradicted: certified ε ≤ {up(certified)} at δ = {delta:g}"
    return f"{audit.verdict}: {down(measured)} ≤ ε ≤ {up(certified)} at δ = {delta:g}"


def _points(axes: Axes, points: tuple[TradeOffPoint, ...], label: str) -> None:
    """Draw the two error rates of each threshold with their Clopper-Pearson intervals."""
    x = np.array([point.false_positive for point in points])
    y = np.array([point.false_negative for point in points])
    across = np.array([[p.false_positive_low, p.false_positive_high] for p in points]).T
    along = np.array([[p.false_negative_low, p.false_negative_high] for p in points]).T
    bars = {"xerr": np.abs(across - x), "yerr": np.abs(along - y), "elinewidth": 0.8}
    axes.errorbar(x, y, **bars, fmt="o", markersize=2.5, color=BLUE, label=label)


def _sides(audit: Audit) -> dict[Direction, str]:
    return SIDES[audit.campaign.budget.adjacency]


def _exact(result: AttackResult | None) -> tuple[EventRates, ...]:
    return result.rates if result is not None and result.exact else ()


def _draw_epsilons(
    axes: Axes, audit: Audit, result: AttackResult | None, points: tuple[TradeOffPoint, ...]
) -> None:
    """Draw the bound of each test at the first delta. Each interval end holds on its own."""
    delta = audit.headline
    certified = audit.check.certified(delta)
    if math.isfinite(certified):
        label = f"certified: ε ≤ {up(certified)}"
        axes.axhline(certified, color=RED, linewidth=1.5, label=label)
    measured = audit.check.measured(delta)
    label = f"measured by the whole audit: ε ≥ {down(measured)}"
    axes.axhline(measured, color=GREY, linestyle="--", linewidth=1.0, label=label)
    for direction, called in _sides(audit).items():
        for rates in _exact(result):
            if rates.direction is direction:
                some = (rates.likely > delta) & (rates.unlikely > 0.0)
                epsilons = np.log((rates.likely[some] - delta) / rates.unlikely[some])
                label, colour = f"called {called}, exact", COLOURS[direction]
                axes.plot(rates.unlikely[some], epsilons, **THIN, color=colour, label=label)
        measured_bounds = [_bound_of_point(point, direction, delta) for point in points]
        known = np.array([pair for pair in measured_bounds if pair is not None]).reshape(-1, 2)
        if known.size:
            label = f"called {called}, measured lower bound"
            axes.plot(*known.T, "o", markersize=2.5, color=COLOURS[direction], label=label)
    axes.set_xscale("log")
    lowest = min((p.false_positive_high for p in points), default=1e-3)
    axes.set_xlim(max(1e-7, min(1e-3, lowest) / 2), 1.0)
    top = max(certified if math.isfinite(certified) else 0.0, measured, 1e-3)
    axes.set_ylim(0.0, 1.1 * top)
    axes.set_xlabel("Q, the probability of the event in the case where it is unlikely")
    axes.set_ylabel("ε")
    axes.set_title(f"lower bound from each threshold at δ = {delta:g}", loc="left", fontsize=11)


def _bound_of_point(
    point: TradeOffPoint, direction: Direction, delta: float
) -> tuple[float, float] | None:
    """Return (Q, epsilon) of one threshold from its interval ends. None if epsilon would be 0."""
    low, high = 1.0 - point.false_negative_high, point.false_positive_high
    if direction is Direction.ADD:
        low, high = 1.0 - point.false_positive_high, point.false_negative_high
    positive = low > delta and high < 1.0 and low - delta > high
    return (high, math.log((low - delta) / high)) if positive else None
