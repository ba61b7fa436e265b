"""The picture of the utility theorems: measured risk under its bounds, fixed against averaged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from checkins.cli.plots import BLUE, GREEN, GREY, ORANGE, PURPLE
from checkins.simulation.excess_risk import CONFIDENCE, Measured, Scheme
from checkins.simulation.utility_sweep import Comparison, Ladder, Sweep
from checkins.tasks.data.convex import Loss

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOUR = {Loss.ABSOLUTE: BLUE, Loss.SQUARED: ORANGE, Loss.LOGISTIC: GREEN}
TITLE = {
    Scheme.FIXED: "Fixed window, last model",
    Scheme.AVERAGED: "Averaged updates, last model",
    Scheme.SMOOTH: "Averaged updates, smooth losses, mean model",
}


def draw_utility(found: Sweep, path: Path) -> None:
    """One panel for each scheme, and one for the comparison.

    Risks are shown in units of L·R: then the losses share a bound, but for the smooth scheme.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.0, 9.0), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)  # no window, whatever MPLBACKEND says
    figure.suptitle(
        f"Excess risk: means of {found.runs:,} campaigns, bars to their {CONFIDENCE:.1%} upper"
        " ends, and what is proved",
        fontsize=14,
    )
    grid = figure.subplots(2, 2)
    panels = (grid[0][0], grid[0][1], grid[1][0])
    for axes, scheme in zip(panels, Scheme, strict=True):
        chosen = [ladder for ladder in found.ladders if ladder.top.trial.scheme is scheme]
        _panel(axes, scheme, chosen)
    low = min(axes.get_ylim()[0] for axes in panels) / 4.0  # room for the legend
    high = max(axes.get_ylim()[1] for axes in panels)
    for axes in panels:
        axes.set_ylim(low, high)
    _ratios(grid[1][1], found.comparisons)
    figure.savefig(path, metadata={"Software": "checkins"})


def _panel(axes: Axes, scheme: Scheme, ladders: Sequence[Ladder]) -> None:
    _plain(axes, TITLE[scheme])
    rates = sorted({_per_slot(ladder) for ladder in ladders})
    for ladder in ladders:
        many = _per_slot(ladder) == rates[-1]
        slots = [rung.trial.slots for rung in ladder.rungs]
        risks = [rung.risk / _unit(rung) for rung in ladder.rungs]
        reach = [(rung.upper - rung.risk) / _unit(rung) for rung in ladder.rungs]
        loss = ladder.top.trial.problem.loss_kind
        axes.errorbar(
            slots,
            risks,
            yerr=[[min(r, 0.999 * risk) for r, risk in zip(reach, risks, strict=True)], reach],
            color=COLOUR[loss],
            marker="o",
            markersize=5,
            markerfacecolor=COLOUR[loss] if many else "white",
            linestyle="-" if many else "--",
            linewidth=1.3,
            capsize=2,
            label=f"{loss}, n = {_times(_per_slot(ladder))}m: slope {ladder.slope:.2f}",
        )
    for rate, style in zip(rates, ("--", "-"), strict=True):
        same = [ladder for ladder in ladders if _per_slot(ladder) == rate]
        # The largest of the losses' bounds: they differ for the smooth scheme alone, by β.
        top = max(same, key=lambda ladder: ladder.top.trial.bound / _unit(ladder.top))
        slots = [rung.trial.slots for rung in top.rungs]
        bounds = [rung.trial.bound / _unit(rung) for rung in top.rungs]
        label = f"proved, n = {_times(rate)}m"
        axes.plot(slots, bounds, style, color="black", linewidth=1.8, label=label)
    first, last = slots[0], slots[-1]
    start = 0.35 * min(ladder.rungs[0].trial.bound / _unit(ladder.rungs[0]) for ladder in ladders)
    axes.plot(
        [first, last],
        [start, start * (first / last) ** 0.5],
        ":",
        color=GREY,
        linewidth=2.2,
        label="falls as 1/√m",
    )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(slots, [f"{value:,}" for value in slots])
    axes.minorticks_off()
    axes.set_xlabel("slots m")
    axes.set_ylabel("excess risk / (L·R)")
    free: Literal["upper right", "lower left"] = "lower left"
    if scheme is Scheme.SMOOTH:
        free = "upper right"
    axes.legend(frameon=False, fontsize=8, loc=free, ncols=2)


def _ratios(axes: Axes, comparisons: Sequence[Comparison]) -> None:
    """A row for each comparison, the first one on top."""
    slots = comparisons[0].fixed.trial.slots
    _plain(axes, f"Risk of averaged / risk of fixed, m = {slots:,}")
    rows = range(len(comparisons))[::-1]
    axes.axvline(1.0, color=GREY, linewidth=1.2)
    axes.errorbar(
        [pair.ratio for pair in comparisons],
        list(rows),
        xerr=[2.0 * pair.ratio_error for pair in comparisons],
        fmt="o",
        color=BLUE,
        capsize=3,
        label="measured ± 2 standard errors",
    )
    axes.plot(
        [pair.stated_ratio for pair in comparisons],
        list(rows),
        "D",
        color=PURPLE,
        markerfacecolor="white",
        label="the paper's orders",
    )
    axes.set_yticks(list(rows), [_said(pair) for pair in comparisons], fontsize=9)
    axes.set_xscale("log", base=2)
    seen = [pair.ratio for pair in comparisons] + [pair.stated_ratio for pair in comparisons]
    low, high = math.floor(math.log2(min(seen)) - 0.5), math.ceil(math.log2(max(seen)) + 0.5)
    axes.set_xlim(2.0**low, 2.0**high)
    ticks = [2.0**power for power in range(low, high + 1)]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(-1.3, len(comparisons) - 0.4)
    axes.set_xlabel("← averaged is better        fixed is better →")
    axes.legend(frameon=False, fontsize=9, loc="lower right", ncols=2)


def _said(pair: Comparison) -> str:
    trial = pair.averaged.trial
    problem = trial.problem
    noise = problem.dimension * (trial.noise_std / problem.lipschitz) ** 2
    loss = f"{problem.loss_kind}{', smooth' if trial.scheme is Scheme.SMOOTH else ''}"
    same = "ε" if pair.same == "epsilon" else pair.same
    rate = _times(trial.clients / trial.slots)
    return f"same {same}, {loss}\nn = {rate}m, pσ² = {_times(round(noise, 9))}L²"


def _plain(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=12)
    axes.grid(visible=True, which="major", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _per_slot(ladder: Ladder) -> float:
    return ladder.top.trial.clients / ladder.top.trial.slots


def _times(rate: float) -> str:
    return "" if rate == 1 else f"{rate:g}"


def _unit(one: Measured) -> float:
    problem = one.trial.problem
    return problem.lipschitz * problem.diameter
