"""Tables and a plot that compare the utility theorems with simulated campaigns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import RenderableType
from rich.text import Text

from checkins import formatting
from checkins.cli.terminal import bullet_list, plain_table
from checkins.cli.views.paper import BLUE, GREEN, GREY, ORANGE, PURPLE, new_figure, save, style_axes
from checkins.simulation.excess_risk import CONFIDENCE, MeasuredRisk, Scheme
from checkins.simulation.utility_sweep import Comparison, SlotSeries, UtilitySweep
from checkins.tasks.data.synthetic import Loss

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCHEME_NAMES = {Scheme.FIXED: "fixed", Scheme.AVERAGED: "averaged", Scheme.SMOOTH: "smooth"}
LOSS_COLOURS = {Loss.ABSOLUTE: BLUE, Loss.SQUARED: ORANGE, Loss.LOGISTIC: GREEN}
SCHEME_TITLES = {
    Scheme.FIXED: "Fixed window, last model",
    Scheme.AVERAGED: "Averaged updates, last model",
    Scheme.SMOOTH: "Averaged updates, smooth losses, mean model",
}


def utility_parts(results: UtilitySweep) -> list[RenderableType]:
    """Return the table of measured risks, the table that compares protocols, and the verdict."""
    second = results.slot_series[0].measurements[1].trial.slots
    return [
        (
            f"Excess risk after m = {results.slots:,} slots with n clients and the step sizes of"
            f" the theorems. Each risk is the mean over {results.runs:,} simulated campaigns."
        ),
        _slot_series_table(results.slot_series),
        Text(
            f"at most: upper end of the {CONFIDENCE:.1%} confidence interval of the mean risk"
            " (Student's t). bound: proved bound on the expected risk. *: vacuous, because even the"
            ' worst allowed model has a smaller risk. share: "at most" divided by "bound". slope:'
            f" slope of log risk against log m, from m = {second:,} to {results.slots:,}, ± 2"
            " standard errors; a risk of order 1/sqrt(m) has slope -0.5. smooth: the averaged"
            " protocol with the constant step size for smooth losses; risk of the mean model.",
            style="dim",
        ),
        "",
        (
            "Excess risk of averaged divided by excess risk of fixed, after m ="
            f" {results.comparisons[0].fixed.trial.slots:,} slots. Below 1, averaged is better."
        ),
        _comparison_table(results.comparisons),
        Text(
            "same: what both protocols have in common. At the same epsilon, as in the paper, fixed"
            " has participation m/n and m/n times the noise of averaged. x: squared norm of the"
            " noise of one report of averaged, divided by the squared norm of a gradient. measured:"
            " measured ratio ± 2 standard errors. paper: ratio of the paper's formulas without"
            " constants and logarithms. At the same epsilon and for losses that are not smooth,"
            " these formulas favour fixed, although the text of the paper favours averaged. bounds:"
            " ratio of the proved bounds.",
            style="dim",
        ),
        "",
        *_verdict_parts(results),
    ]


def _slot_series_table(slot_series: tuple[SlotSeries, ...]) -> RenderableType:
    columns = ("n/m", "risk", "at most", "bound", "share", "slope")
    table = plain_table("loss", "protocol", *columns, right=columns)
    previous_loss = ""
    for series in slot_series:
        longest, trial = series.largest, series.largest.trial
        loss = str(trial.problem.loss_kind)
        table.add_row(
            loss if loss != previous_loss else "",
            SCHEME_NAMES[trial.scheme],
            f"{trial.clients // trial.slots}",
            formatting.nearest(longest.risk, 2),
            formatting.up(longest.upper_limit, 2),
            formatting.up(trial.bound, 3) + ("*" if trial.bound > trial.worst_risk else " "),
            formatting.up(longest.share_of_bound, 2),
            f"{series.slope:.2f}±{2.0 * series.slope_error:.2f}",
        )
        previous_loss = loss
    return table


def _comparison_table(comparisons: tuple[Comparison, ...]) -> RenderableType:
    columns = ("n/m", "x", "measured", "paper", "bounds")
    table = plain_table("same", "loss", "ratio", *columns, right=columns)
    for pair in comparisons:
        trial = pair.averaged.trial
        table.add_row(
            pair.equal_quantity,
            str(trial.problem.loss_kind),
            f"{SCHEME_NAMES[trial.scheme]}/fixed",
            f"{trial.clients // trial.slots}",
            f"{noise_share(pair.averaged):g}",
            f"{pair.ratio:.2f}±{2.0 * pair.ratio_error:.2f}",
            f"{pair.paper_ratio:.2f}",
            f"{pair.bound_ratio:.2f}",
        )
    return table


def _verdict_parts(results: UtilitySweep) -> list[RenderableType]:
    exceeding = [each for _, each in results.measured_risks if not each.share_of_bound <= 1.0]
    count = len(results.measured_risks)
    largest_share = results.closest_to_bound.share_of_bound
    if not exceeding:
        return [
            Text.assemble(
                (f"All {count} measured risks are below their bounds", "bold green"),
                f"; {results.informative_bounds} of the bounds are not vacuous. The largest ratio"
                f" of a risk to its bound is {formatting.up(largest_share, 2)}.",
            )
        ]
    lines = [
        f"{SCHEME_NAMES[each.trial.scheme]}, {each.trial.problem.loss_kind}, {each.trial.slots:,}"
        f" slots, {each.trial.clients:,} clients: at most {formatting.up(each.upper_limit)}, bound"
        f" {formatting.up(each.trial.bound)}"
        for each in exceeding
    ]
    counts = f"{len(exceeding)} of {count}"
    heading = Text(f"{counts} measured risks are NOT below their bounds", "bold red")
    return [heading, *bullet_list("Risks that are not below their bounds", lines)]


def noise_share(measurement: MeasuredRisk) -> float:
    """Return pσ²/L²: the squared norm of a report's noise divided by that of a gradient."""
    problem = measurement.trial.problem
    return round(problem.dimension * (measurement.trial.noise_std / problem.lipschitz) ** 2, 9)


def draw_utility(results: UtilitySweep, path: Path) -> None:
    """Plot one panel per scheme, and one panel for the comparison of fixed with averaged.

    Risks are divided by L·R (Lipschitz constant times diameter), so that all losses have the same
    bound, except in the smooth scheme.
    """
    figure = new_figure(12.0, 9.0)
    figure.suptitle(
        f"Excess risk: means of {results.runs:,} campaigns, error bars up to the {CONFIDENCE:.1%}"
        " upper limit, and the proved bounds",
        fontsize=14,
    )
    grid = figure.subplots(2, 2)
    panels = (grid[0][0], grid[0][1], grid[1][0])
    for axes, scheme in zip(panels, Scheme, strict=True):
        scheme_series = [
            series for series in results.slot_series if series.largest.trial.scheme is scheme
        ]
        _draw_scheme(axes, scheme, scheme_series)
    low = min(axes.get_ylim()[0] for axes in panels) / 4.0  # leaves room for the legend
    high = max(axes.get_ylim()[1] for axes in panels)
    for axes in panels:
        axes.set_ylim(low, high)
    _draw_comparisons(grid[1][1], results.comparisons)
    save(figure, path)


def _draw_scheme(axes: Axes, scheme: Scheme, slot_series: Sequence[SlotSeries]) -> None:
    style_axes(axes, SCHEME_TITLES[scheme])
    rates = sorted({_per_slot(series) for series in slot_series})
    for series in slot_series:
        is_dense = _per_slot(series) == rates[-1]
        slots = [each.trial.slots for each in series.measurements]
        risks = [each.risk / _risk_unit(each) for each in series.measurements]
        errors = [(each.upper_limit - each.risk) / _risk_unit(each) for each in series.measurements]
        loss = series.largest.trial.problem.loss_kind
        axes.errorbar(
            slots,
            risks,
            yerr=[[min(e, 0.999 * risk) for e, risk in zip(errors, risks, strict=True)], errors],
            color=LOSS_COLOURS[loss],
            marker="o",
            markersize=5,
            markerfacecolor=LOSS_COLOURS[loss] if is_dense else "white",
            linestyle="-" if is_dense else "--",
            linewidth=1.3,
            capsize=2,
            label=f"{loss}, n = {_factor_text(_per_slot(series))}m: slope {series.slope:.2f}",
        )
    for rate, style in zip(rates, ("--", "-"), strict=True):
        same = [series for series in slot_series if _per_slot(series) == rate]
        # Draw the largest bound. The bounds of the losses differ only in the smooth scheme, by β.
        top = max(same, key=lambda series: series.largest.trial.bound / _risk_unit(series.largest))
        slots = [each.trial.slots for each in top.measurements]
        bounds = [each.trial.bound / _risk_unit(each) for each in top.measurements]
        label = f"proved, n = {_factor_text(rate)}m"
        axes.plot(slots, bounds, style, color="black", linewidth=1.8, label=label)
    first, last = slots[0], slots[-1]
    start = 0.35 * min(
        series.measurements[0].trial.bound / _risk_unit(series.measurements[0])
        for series in slot_series
    )
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
    legend_position: Literal["upper right", "lower left"] = "lower left"
    if scheme is Scheme.SMOOTH:
        legend_position = "upper right"
    axes.legend(frameon=False, fontsize=8, loc=legend_position, ncols=2)


def _draw_comparisons(axes: Axes, comparisons: Sequence[Comparison]) -> None:
    """Plot one row per comparison, the first comparison at the top."""
    slots = comparisons[0].fixed.trial.slots
    style_axes(axes, f"Risk of averaged / risk of fixed, m = {slots:,}")
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
        [pair.paper_ratio for pair in comparisons],
        list(rows),
        "D",
        color=PURPLE,
        markerfacecolor="white",
        label="the paper's formulas",
    )
    axes.set_yticks(list(rows), [_comparison_label(pair) for pair in comparisons], fontsize=9)
    axes.set_xscale("log", base=2)
    ratios = [pair.ratio for pair in comparisons] + [pair.paper_ratio for pair in comparisons]
    low, high = math.floor(math.log2(min(ratios)) - 0.5), math.ceil(math.log2(max(ratios)) + 0.5)
    axes.set_xlim(2.0**low, 2.0**high)
    ticks = [2.0**power for power in range(low, high + 1)]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(-1.3, len(comparisons) - 0.4)
    axes.set_xlabel("← averaged is better        fixed is better →")
    axes.legend(frameon=False, fontsize=9, loc="lower right", ncols=2)


def _comparison_label(pair: Comparison) -> str:
    trial = pair.averaged.trial
    problem = trial.problem
    loss = f"{problem.loss_kind}{', smooth' if trial.scheme is Scheme.SMOOTH else ''}"
    same = "ε" if pair.equal_quantity == "epsilon" else pair.equal_quantity
    rate = _factor_text(trial.clients / trial.slots)
    return f"same {same}, {loss}\nn = {rate}m, pσ² = {_factor_text(noise_share(pair.averaged))}L²"


def _per_slot(series: SlotSeries) -> float:
    return series.largest.trial.clients / series.largest.trial.slots


def _factor_text(rate: float) -> str:
    return "" if rate == 1 else f"{rate:g}"


def _risk_unit(measurement: MeasuredRisk) -> float:
    problem = measurement.trial.problem
    return problem.lipschitz * problem.diameter
