"""`checkins paper`: evaluate and plot the paper's Table 1, Figure 2 and theorems.

The paper is the one that introduced random check-ins. The defaults of these commands are examples
and appear in no certificate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.exceptions import Exit

from checkins import validate
from checkins.cli import params, terminal
from checkins.cli.params import GivenOptions, options
from checkins.cli.terminal import EXIT_FAILURE, UsageError, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from checkins.simulation.excess_risk import MeasuredRisk
    from checkins.simulation.utility_sweep import Comparison, SlotSeries, UtilitySweep

CONVEX_PROBLEM = {
    "lipschitz": 1.0,
    "smoothness": 1.0,
    "diameter": 1.0,
    "dimension": 10,
    "noise_std": 0.1,
}
"""Constants of the convex problem for which `theorems` evaluates the utility theorems."""
UTILITY_SEED = 1
"""Seed of the simulated campaigns. It is fixed so that the numbers can be reproduced."""
MAX_UTILITY_SLOTS, MOST_UTILITY_SEEDS = 65_536, 10_000
"""Largest values of ``--slots`` and ``--seeds`` of `utility`. Larger ones would take hours."""

CLIENTS_OPTION, SLOTS_OPTION, LOCAL_EPSILON_OPTION, DELTA_OPTION, OUT_OPTION = options("""
    --clients N  Number of clients.
    --slots M  Number of time steps (slots) of a campaign.
    --local-epsilon E  Epsilon of one report.
    --delta D  Delta of the guarantee, between 0 and 1.
    --out DIR  Folder for a plot. Default: no plot is saved.
""")


@params.command(
    CLIENTS_OPTION, SLOTS_OPTION, LOCAL_EPSILON_OPTION, DELTA_OPTION, OUT_OPTION, params.JSON_OPTION
)
def table1(given: GivenOptions) -> None:
    """Evaluate Table 1 of the paper: five ways to amplify privacy.

    Without options: 100,000 clients, 1,000 slots, local epsilon 2, delta 1e-6.
    """
    with terminal.spinner("evaluating Table 1", quiet=given.json):
        from checkins.accounting.paper import tables
        from checkins.cli.views import paper as views

        setting = _number_options(
            given, clients=100_000, slots=1_000, local_epsilon=2.0, delta=1e-6
        )
        with given.errors_as_option_errors():
            # the values of integer options are ints, which the type dict[str, float] hides
            rows = tables.table1(**setting)  # type: ignore[arg-type]
        plot = _save_plot(
            given, "table1.png", lambda path: views.draw_table1(rows, path, setting=setting)
        )
    _print_result(
        {"setting": setting, "rows": [asdict(row) for row in rows]},
        lambda: views.table1_parts(rows, setting),
        plot,
        given,
    )


@params.command(DELTA_OPTION, OUT_OPTION, params.JSON_OPTION)
def figure2(given: GivenOptions) -> None:
    """Evaluate Figure 2 of the paper: shuffling of n reports.

    Without options, delta is 1e-6, as in the paper.
    """
    with terminal.spinner("evaluating Figure 2", quiet=given.json):
        from checkins.accounting.paper import tables
        from checkins.cli.views import paper as views

        setting = _number_options(given, delta=tables.FIGURE_DELTA)
        with given.errors_as_option_errors():
            curves = tables.figure2(
                local_epsilons=views.FIGURE2_LOCAL_EPSILONS, delta=setting["delta"]
            )
        plot = _save_plot(
            given,
            "figure2.png",
            lambda path: views.draw_figure2(curves, path, delta=setting["delta"]),
        )
    listed = [
        {
            "clients": curve.clients,
            "local_epsilon": curve.local_epsilons.tolist(),
            "this_paper": curve.this_paper.tolist(),
            "earlier": curve.earlier.tolist(),
        }
        for curve in curves
    ]
    _print_result(
        {"setting": setting, "curves": listed},
        lambda: views.figure2_parts(curves, setting),
        plot,
        given,
    )


@params.command(
    CLIENTS_OPTION,
    SLOTS_OPTION,
    *options("""
    --participation P  Probability that a client takes part, from 0 to 1.
    --capacity K  Largest number of check-ins that a slot uses.
    """),
    LOCAL_EPSILON_OPTION,
    *options("""
    --local-delta D  Delta of one report.
    """),
    DELTA_OPTION,
    OUT_OPTION,
    params.JSON_OPTION,
)
def theorems(given: GivenOptions) -> None:
    """Evaluate every theorem of the paper for one set of parameters.

    The plot compares the paper's bound with the exact epsilon.

    Without options: 10,000 clients, 1,000 slots, participation 0.1, capacity 30,
    local epsilon 0.5, local delta 1e-20, delta 1e-6.
    """
    with terminal.spinner("evaluating the theorems", quiet=given.json):
        from checkins.accounting.paper import tables
        from checkins.cli.views import paper as views

        setting = _number_options(
            given,
            clients=10_000,
            slots=1_000,
            participation=0.1,
            capacity=30,
            local_epsilon=0.5,
            local_delta=1e-20,
            delta=1e-6,
        )
        for name in ("clients", "slots"):
            if setting[name] > views.MAX_CLIENTS_OR_SLOTS:
                raise given.invalid(
                    name, f"must be an integer from 1 to {views.MAX_CLIENTS_OR_SLOTS:,} here"
                )
        with given.errors_as_option_errors():
            rows = tables.theorem_sheet(tables.Setting(**setting, **CONVEX_PROBLEM))  # type: ignore[arg-type]
            plot = _save_plot(
                given, "theorems.png", lambda path: views.draw_theorems(setting, path)
            )
    _print_result(
        {"setting": setting | CONVEX_PROBLEM, "rows": [asdict(row) for row in rows]},
        lambda: views.theorems_parts(rows, setting),
        plot,
        given,
    )


@params.command(
    *options("""
    --slots M  Number of time steps (slots) of the longest campaigns.
    --seeds N  Number of simulated campaigns over which each risk is averaged.
    """),
    OUT_OPTION,
    params.JSON_OPTION,
)
def utility(given: GivenOptions) -> None:
    """Compare the utility theorems with simulated campaigns.

    The campaigns solve convex problems whose optimum is known. The tables show
    the measured excess risk and its bound, how fast the risk falls with the
    number of slots, and a comparison of the fixed with the averaged protocol.
    Exit code 1 if a measured risk exceeds its bound.

    Without options: up to 4,096 slots, 128 seeds.
    """
    from checkins.cli.views import utility as views
    from checkins.simulation.excess_risk import MIN_RUNS
    from checkins.simulation.utility_sweep import MIN_SLOTS, sweep

    with given.errors_as_option_errors():
        most_slots = given.integer("slots", default=4_096, least=MIN_SLOTS, most=MAX_UTILITY_SLOTS)
        runs = given.integer("seeds", default=128, least=MIN_RUNS, most=MOST_UTILITY_SEEDS)
    label, share = "{task.description}", "{task.percentage:>3.0f}%"
    with terminal.progress(label, share, quiet=given.json) as bars:
        task = None if bars is None else bars.add_task("running campaigns", total=1.0)

        def show_progress(share: float) -> None:
            if bars is not None and task is not None:
                bars.update(task, completed=share)

        results = sweep(slots=most_slots, runs=runs, seed=UTILITY_SEED, on_progress=show_progress)
    plot = _save_plot(given, "utility.png", lambda path: views.draw_utility(results, path))
    _print_result(
        {"setting": {"slots": most_slots, "seeds": runs}, **_utility_numbers(results)},
        lambda: views.utility_parts(results),
        plot,
        given,
    )
    if not results.all_bounds_hold:
        raise Exit(EXIT_FAILURE)


paper = click.Group(
    "paper",
    [table1, figure2, theorems, utility],
    help="Evaluate the tables, plots and theorems of the paper.",
)


def _number_options(given: GivenOptions, **defaults: float) -> dict[str, float]:
    """Return each option, or its default. If the default is an int, the value is one too."""

    checks = {"participation": validate.probability, "local_epsilon": validate.positive}
    numbers: dict[str, float] = {}
    with given.errors_as_option_errors():
        for name, default in defaults.items():
            if name not in given:
                numbers[name] = default
            elif isinstance(default, int):
                numbers[name] = params.integer(name, given.texts[name])
            else:
                check = checks.get(name, validate.open_unit)
                numbers[name] = params.number(name, given.texts[name], check)
    return numbers


def _save_plot(given: GivenOptions, name: str, draw: Callable[[Path], None]) -> Path | None:
    """Save a plot in the folder of ``--out`` and return its path. Return None without ``--out``."""
    if (out := given.path("out")) is None:
        return None
    path = out / name
    try:
        out.mkdir(parents=True, exist_ok=True)
        draw(path)
    except OSError as error:
        raise UsageError(f"--out {printable(out)}: cannot be written: {error.strerror}") from error
    return path


def _print_result(
    numbers: Mapping[str, object],
    parts: Callable[[], Sequence[RenderableType]],
    plot: Path | None,
    given: GivenOptions,
) -> None:
    """Print ``numbers`` with ``--json``, otherwise the tables of ``parts``, and name the plot."""
    if given.json:
        terminal.show_json({**numbers, "picture": None if plot is None else str(plot)})
        return
    terminal.show(*parts())
    if plot is not None:
        terminal.show_plain(f"Plot: {plot}")


def _utility_numbers(results: UtilitySweep) -> dict[str, object]:
    """Return all measurements, slopes and comparisons as JSON values."""
    from checkins.simulation.excess_risk import CONFIDENCE

    return {
        "confidence": CONFIDENCE,
        "holds": results.all_bounds_hold,
        "bounds_below_worst_model": results.informative_bounds,
        "largest_share_of_bound": results.closest_to_bound.share_of_bound,
        "measured": [
            _measurement_numbers(purpose, measurement)
            for purpose, measurement in results.measured_risks
        ],
        "slopes": [_slope_numbers(series) for series in results.slot_series],
        "comparisons": [_comparison_numbers(pair) for pair in results.comparisons],
    }


def _measurement_numbers(purpose: str, measurement: MeasuredRisk) -> dict[str, object]:
    trial, problem = measurement.trial, measurement.trial.problem
    return {
        "why": purpose,
        "loss": str(problem.loss_kind),
        "protocol": str(trial.scheme),
        "dimension": problem.dimension,
        "diameter": problem.diameter,
        "slots": trial.slots,
        "clients": trial.clients,
        "participation": trial.participation,
        "noise_std": trial.noise_std,
        "risk": measurement.risk,
        "standard_error": measurement.standard_error,
        "upper": measurement.upper_limit,
        "bound": trial.bound,
        "paper_bound": trial.paper_bound,
        "worst_model_risk": trial.worst_risk,
        "share": measurement.share_of_bound,
    }


def _slope_numbers(series: SlotSeries) -> dict[str, object]:
    trial = series.largest.trial
    return {
        "loss": str(trial.problem.loss_kind),
        "protocol": str(trial.scheme),
        "clients_per_slot": trial.clients / trial.slots,
        "from_slots": series.measurements[1].trial.slots,
        "to_slots": trial.slots,
        "slope": series.slope,
        "standard_error": series.slope_error,
        "bound_slope": series.bound_slope,
    }


def _comparison_numbers(pair: Comparison) -> dict[str, object]:
    return {
        "same": pair.equal_quantity,
        "ratio": pair.ratio,
        "standard_error": pair.ratio_error,
        "paper_ratio": pair.paper_ratio,
        "bound_ratio": pair.bound_ratio,
        "fixed": _measurement_numbers(f"same {pair.equal_quantity}", pair.fixed),
        "averaged": _measurement_numbers(f"same {pair.equal_quantity}", pair.averaged),
    }
