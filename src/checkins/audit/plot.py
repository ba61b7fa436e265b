"""Plot the best attack of an audit: its error rates, and the lower bounds on epsilon.

A test compares the score of a run with a threshold, to tell whether one client, the canary, took
part. Let FP and FN be the false positive and false negative rates of a test. If the campaign is
(ε, δ)-DP, then for every test [KOV17, Thm 2.1]

    FN >= max(0, 1 − δ − e^ε FP, e^−ε (1 − δ − FP)).

The left panel draws the largest of these lower limits over all audited deltas. A point below that
line contradicts the certificate. The right panel draws, for each answer of each test, the lower
bound log((P − δ)/Q) on epsilon. P is the probability of the answer in the runs in which it is
right, and Q its probability in the runs in which it is wrong.
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
from checkins.formatting import down_for_page as down
from checkins.formatting import up_for_page as up

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FloatArray = NDArray[np.float64]

PLOT_FILE_NAME = "trade-off.png"
BLUE, GREY, RED, ORANGE = "#0072b2", "#8a8a8a", "#cc3311", "#d55e00"
THIN_LINE: dict[str, Any] = {"linewidth": 1.0, "alpha": 0.6}
COLOUR_OF_DIRECTION = {Direction.REMOVE: BLUE, Direction.ADD: ORANGE}
CASE_LABELS = {
    Adjacency.ADD_REMOVE: {Direction.REMOVE: "present", Direction.ADD: "missing"},
    Adjacency.REPLACE_ONE: {Direction.REMOVE: "first data", Direction.ADD: "other data"},
}
"""The answers of a test about the canary, by neighbour relation and direction of the event."""


def certified_line(false_positive: FloatArray, pairs: Iterable[tuple[float, float]]) -> FloatArray:
    """Return the smallest false negative rates that all (epsilon, delta) pairs allow."""
    smallest = np.zeros_like(false_positive)
    for epsilon, delta in pairs:
        if math.isfinite(epsilon):
            flat_part = math.exp(-epsilon) * (1.0 - delta - false_positive)
            steep_part = 1.0 - delta - math.exp(min(epsilon, 700.0)) * false_positive
            smallest = np.maximum(smallest, np.maximum(steep_part, flat_part))
    return smallest


def save_trade_off_plot(audit: Audit, path: Path) -> None:
    """Save the figure of the attack with the largest measured bound."""
    trade_off_figure(audit).savefig(path, metadata={"Software": "checkins"})


def trade_off_figure(audit: Audit) -> Figure:
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
    results = [result for result in audit.check.results if result.curve is not None]
    return max(results, key=lambda result: result.at(audit.headline_delta).epsilon, default=None)


def _draw_errors(
    axes: Axes, audit: Audit, result: AttackResult | None, points: tuple[TradeOffPoint, ...]
) -> None:
    grid = np.linspace(0.0, 1.0, 801)
    pairs = [(c.epsilon, delta) for delta, c in audit.check.certificates.items()]
    line = certified_line(grid, pairs)
    axes.fill_between(grid, line, color=RED, alpha=0.08, linewidth=0)
    axes.plot(grid, line, color=RED, linewidth=1.5, label="certified: no test is below this line")
    axes.plot(grid, 1.0 - grid, ":", color=GREY, linewidth=1.0, label="guessing")
    present, missing = _case_labels(audit).values()
    canary = "" if result is None else result.canary
    for rates in _exact_rates(result):
        if rates.direction is Direction.REMOVE:
            x, y = np.append(0.0, rates.false_positive), 1.0 - np.append(0.0, rates.true_positive)
            axes.plot(x, y, **THIN_LINE, color=BLUE, label=f"{canary}, exact")
    if points:
        _draw_points(
            axes, points, f"{canary}, measured (confidence of each error bar: {audit.confidence:g})"
        )
    axes.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0))
    axes.set_xlabel(f"false positives: called {present}, but {missing}")
    axes.set_ylabel(f"false negatives: called {missing}, but {present}")
    axes.set_title(_title(audit), loc="left", fontsize=11)


def _title(audit: Audit) -> str:
    delta = audit.headline_delta
    certified, measured = audit.check.certified(delta), audit.check.measured(delta)
    if audit.check.contradicted_deltas:
        return f"contradicted: certified ε ≤ {up(certified)} at δ = {delta:g}"
    return f"{audit.verdict}: {down(measured)} ≤ ε ≤ {up(certified)} at δ = {delta:g}"


def _draw_points(axes: Axes, points: tuple[TradeOffPoint, ...], label: str) -> None:
    """Draw the two error rates of each threshold with their Clopper-Pearson intervals."""
    x = np.array([point.false_positive for point in points])
    y = np.array([point.false_negative for point in points])
    x_ends = np.array([[p.false_positive_low, p.false_positive_high] for p in points]).T
    y_ends = np.array([[p.false_negative_low, p.false_negative_high] for p in points]).T
    error_bars = {"xerr": np.abs(x_ends - x), "yerr": np.abs(y_ends - y), "elinewidth": 0.8}
    axes.errorbar(x, y, **error_bars, fmt="o", markersize=2.5, color=BLUE, label=label)


def _case_labels(audit: Audit) -> dict[Direction, str]:
    return CASE_LABELS[audit.campaign.budget.adjacency]


def _exact_rates(result: AttackResult | None) -> tuple[EventRates, ...]:
    return result.rates if result is not None and result.exact else ()


def _draw_epsilons(
    axes: Axes, audit: Audit, result: AttackResult | None, points: tuple[TradeOffPoint, ...]
) -> None:
    """Draw the lower bound of each test. Each bound alone holds with the audit's confidence."""
    delta = audit.headline_delta
    certified = audit.check.certified(delta)
    if math.isfinite(certified):
        label = f"certified: ε ≤ {up(certified)}"
        axes.axhline(certified, color=RED, linewidth=1.5, label=label)
    measured = audit.check.measured(delta)
    label = f"measured by the whole audit: ε ≥ {down(measured)}"
    axes.axhline(measured, color=GREY, linestyle="--", linewidth=1.0, label=label)
    for direction, case in _case_labels(audit).items():
        for rates in _exact_rates(result):
            if rates.direction is direction:
                rows = (rates.true_positive > delta) & (rates.false_positive > 0.0)
                epsilons = np.log((rates.true_positive[rows] - delta) / rates.false_positive[rows])
                label, colour = f"called {case}, exact", COLOUR_OF_DIRECTION[direction]
                axes.plot(
                    rates.false_positive[rows], epsilons, **THIN_LINE, color=colour, label=label
                )
        bounds = [_bound_of_point(point, direction, delta) for point in points]
        pairs = np.array([pair for pair in bounds if pair is not None]).reshape(-1, 2)
        if pairs.size:
            label = f"called {case}, measured lower bound"
            axes.plot(
                *pairs.T, "o", markersize=2.5, color=COLOUR_OF_DIRECTION[direction], label=label
            )
    axes.set_xscale("log")
    lowest = min((p.false_positive_high for p in points), default=1e-3)
    axes.set_xlim(max(1e-7, min(1e-3, lowest) / 2), 1.0)
    top = max(certified if math.isfinite(certified) else 0.0, measured, 1e-3)
    axes.set_ylim(0.0, 1.1 * top)
    axes.set_xlabel("Q, the probability of the answer in runs in which it is wrong")
    axes.set_ylabel("ε")
    axes.set_title(f"lower bound from each threshold at δ = {delta:g}", loc="left", fontsize=11)


def _bound_of_point(
    point: TradeOffPoint, direction: Direction, delta: float
) -> tuple[float, float] | None:
    """Return the upper end of Q and the bound on epsilon at one threshold.

    Return None if the bound is 0.
    """
    low, high = 1.0 - point.false_negative_high, point.false_positive_high
    if direction is Direction.ADD:
        low, high = 1.0 - point.false_positive_high, point.false_negative_high
    is_positive = low > delta and high < 1.0 and low - delta > high
    return (high, math.log((low - delta) / high)) if is_positive else None
