"""The utility theorems held against simulated campaigns: measured, listed and told."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from checkins.cli import digits
from checkins.cli.tables import listed, plain_table
from checkins.simulation.excess_risk import CONFIDENCE, FEWEST_RUNS, Measured, Scheme
from checkins.simulation.utility_sweep import (
    FEWEST_SLOTS,
    Comparison,
    Ladder,
    OnFraction,
    Sweep,
    sweep,
)

SEED = 1
"""The numbers are the same each time."""
LIMITS = {"slots": (FEWEST_SLOTS, 65_536), "seeds": (FEWEST_RUNS, 10_000)}
"""Beyond, it would take an hour and more."""

NAMES = {Scheme.FIXED: "fixed", Scheme.AVERAGED: "averaged", Scheme.SMOOTH: "smooth"}


def measured(slots: int, seeds: int, *, quiet: bool) -> Sweep:
    """The whole sweep, with a bar on standard error for people at a terminal."""
    with _bar("running campaigns", quiet=quiet) as told:
        return sweep(slots=slots, runs=seeds, seed=SEED, watch=told)


def draw(found: Sweep, path: Path) -> None:
    from checkins.cli.utility_plot import draw_utility

    draw_utility(found, path)


def numbers(found: Sweep) -> dict[str, object]:
    """Everything, for `--json`."""
    return {
        "confidence": CONFIDENCE,
        "holds": found.holds,
        "bounds_below_worst_model": found.telling,
        "largest_share_of_bound": found.nearest.share,
        "measured": [_row(why, one) for why, one in found.measured],
        "slopes": [_slope(ladder) for ladder in found.ladders],
        "comparisons": [_comparison(pair) for pair in found.comparisons],
    }


def parts(found: Sweep) -> list[RenderableType]:
    """Both tables and what they say."""
    second = found.ladders[0].rungs[1].trial.slots
    return [
        Text(
            f"Excess risk after m = {found.slots:,} slots with n clients, the theorems' own steps,"
            f" mean of {found.runs:,} campaigns."
        ),
        _ladder_table(found.ladders),
        Text(
            f"at most: the measured mean's upper end, {CONFIDENCE:.1%} confidence (Student's t)."
            " bound: proved for the expected risk; * above the risk of the worst model allowed,"
            " so it says nothing. share: at most / bound. slope: of log risk by log m, m ="
            f" {second:,} to {found.slots:,}, ± 2 standard errors; 1/sqrt(m) is -0.5. smooth:"
            " averaged updates with the constant step for smooth losses, mean model.",
            style="dim",
        ),
        Text(""),
        Text(
            "Fixed against averaged: the ratio of their excess risks after m ="
            f" {found.comparisons[0].fixed.trial.slots:,} slots. Below 1 averaged is better, above"
            " 1 fixed."
        ),
        _comparison_table(found.comparisons),
        Text(
            "same epsilon: as the paper compares; fixed has participation m/n and m/n of the noise."
            " x: squared length of averaged's noise on a report, for that of a gradient; with the"
            " same noise it is fixed's too. paper: by its formulas, no logarithms or constants;"
            " at the same epsilon they put fixed ahead on a loss that is not smooth, though its"
            " text says averaged. bounds: the ratio of the proved ones.",
            style="dim",
        ),
        Text(""),
        *_verdict(found),
    ]


def _ladder_table(ladders: tuple[Ladder, ...]) -> RenderableType:
    columns = ("n/m", "risk", "at most", "bound", "share", "slope")
    table = plain_table("loss", "protocol", *columns, right=columns)
    before = ""
    for ladder in ladders:
        top, trial = ladder.top, ladder.top.trial
        loss = str(trial.problem.loss_kind)
        table.add_row(
            loss if loss != before else "",
            NAMES[trial.scheme],
            f"{trial.clients // trial.slots}",
            digits.nearest(top.risk, 2),
            digits.up(top.upper, 2),
            digits.up(trial.bound, 3) + ("*" if trial.bound > trial.worst else " "),
            digits.up(top.share, 2),
            f"{ladder.slope:.2f}±{2.0 * ladder.slope_error:.2f}",
        )
        before = loss
    return table


def _comparison_table(comparisons: tuple[Comparison, ...]) -> RenderableType:
    columns = ("n/m", "x", "measured", "paper", "bounds")
    table = plain_table("same", "loss", "ratio", *columns, right=columns)
    for pair in comparisons:
        trial = pair.averaged.trial
        table.add_row(
            pair.same,
            str(trial.problem.loss_kind),
            f"{NAMES[trial.scheme]}/fixed",
            f"{trial.clients // trial.slots}",
            f"{noise_share(pair.averaged):g}",
            f"{pair.ratio:.2f}±{2.0 * pair.ratio_error:.2f}",
            f"{pair.stated_ratio:.2f}",
            f"{pair.bound_ratio:.2f}",
        )
    return table


def _verdict(found: Sweep) -> list[RenderableType]:
    above = [one for _, one in found.measured if not one.share <= 1.0]
    count = len(found.measured)
    if not above:
        return [
            Text.assemble(
                (f"All {count} measurements lie under their bounds", "bold green"),
                f"; {found.telling} of the bounds say more than that a model lies in the ball. The"
                f" nearest takes {digits.up(found.nearest.share, 2)} of its bound.",
            )
        ]
    lines = [
        f"{NAMES[one.trial.scheme]}, {one.trial.problem.loss_kind}, {one.trial.slots:,} slots,"
        f" {one.trial.clients:,} clients: at most {digits.up(one.upper)}, bound"
        f" {digits.up(one.trial.bound)}"
        for one in above
    ]
    told = Text(f"{len(above)} of {count} measurements do NOT lie under their bounds", "bold red")
    return [told, *listed("They are", lines)]


def _row(why: str, one: Measured) -> dict[str, object]:
    trial, problem = one.trial, one.trial.problem
    return {
        "why": why,
        "loss": str(problem.loss_kind),
        "protocol": str(trial.scheme),
        "dimension": problem.dimension,
        "diameter": problem.diameter,
        "slots": trial.slots,
        "clients": trial.clients,
        "participation": trial.participation,
        "noise_std": trial.noise_std,
        "risk": one.risk,
        "standard_error": one.error,
        "upper": one.upper,
        "bound": trial.bound,
        "paper_bound": trial.stated,
        "worst_model_risk": trial.worst,
        "share": one.share,
    }


def _slope(ladder: Ladder) -> dict[str, object]:
    trial = ladder.top.trial
    return {
        "loss": str(trial.problem.loss_kind),
        "protocol": str(trial.scheme),
        "clients_per_slot": trial.clients / trial.slots,
        "from_slots": ladder.rungs[1].trial.slots,
        "to_slots": trial.slots,
        "slope": ladder.slope,
        "standard_error": ladder.slope_error,
        "bound_slope": ladder.bound_slope,
    }


def _comparison(pair: Comparison) -> dict[str, object]:
    return {
        "same": pair.same,
        "ratio": pair.ratio,
        "standard_error": pair.ratio_error,
        "paper_ratio": pair.stated_ratio,
        "bound_ratio": pair.bound_ratio,
        "fixed": _row(f"same {pair.same}", pair.fixed),
        "averaged": _row(f"same {pair.same}", pair.averaged),
    }


def noise_share(one: Measured) -> float:
    """x = pσ²/L²."""
    problem = one.trial.problem
    return round(problem.dimension * (one.trial.noise_std / problem.lipschitz) ** 2, 9)


@contextmanager
def _bar(what: str, *, quiet: bool) -> Iterator[OnFraction]:
    console = Console(stderr=True)
    if quiet or not sys.stderr.isatty() or console.is_dumb_terminal:
        yield lambda share: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=1.0)
        yield lambda share: progress.update(task, completed=share)
