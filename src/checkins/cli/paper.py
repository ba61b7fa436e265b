"""`checkins paper`: the paper's table, figure and theorems, evaluated, printed and drawn.

The defaults here are illustrations; no run is priced by them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from checkins.cli import options, screen
from checkins.cli.failures import FAILURE, Refused, quoted
from checkins.cli.options import Given, Texts, text

if TYPE_CHECKING:
    from rich.console import RenderableType

app = typer.Typer(
    help="The paper's own results: Table 1, Figure 2 and every theorem.", no_args_is_help=True
)

SMOOTH = {"lipschitz": 1.0, "smoothness": 1.0, "diameter": 1.0, "dimension": 10, "noise_std": 0.1}
"""Where the sheet evaluates the statements on utility."""

Clients = Annotated[Texts, text("--clients", "N", "Number of clients.")]
Slots = Annotated[Texts, text("--slots", "M", "Time steps of a campaign.")]
Participation = Annotated[
    Texts, text("--participation", "P", "Probability that a client checks in at all.")
]
Capacity = Annotated[Texts, text("--capacity", "K", "Check-ins that a slot uses at most.")]
LocalEpsilon = Annotated[Texts, text("--local-epsilon", "E", "Epsilon of one report.")]
LocalDelta = Annotated[Texts, text("--local-delta", "D", "Delta of one report.")]
Delta = Annotated[Texts, text("--delta", "D", "Delta of the guarantee.")]
Longest = Annotated[Texts, text("--slots", "M", "Time steps of the longest campaigns.")]
Seeds = Annotated[Texts, text("--seeds", "N", "Campaigns that a measured mean is taken over.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Save a picture there too.", show_default=False),
]


@app.command("table1")
def table1(
    context: typer.Context,
    clients: Clients = None,
    slots: Slots = None,
    local_epsilon: LocalEpsilon = None,
    delta: Delta = None,
    out: Out = None,
    json: options.Json = False,
) -> None:
    """Table 1: five sources of amplification, as numbers.

    Without options: 100,000 clients, 1,000 slots, local epsilon 2, delta 1e-6.
    """
    with screen.working("evaluating Table 1", quiet=json):
        from checkins.accounting import paper
        from checkins.cli import paper_tables, plots

        given = Given.of(context)
        setting = _numbers(given, clients=100_000, slots=1_000, local_epsilon=2.0, delta=1e-6)
        with given.in_own_words():
            rows = paper.table1(**setting)  # type: ignore[arg-type]  # counts stay int
        saved = _drawn(
            out, "table1.png", lambda path: plots.draw_table1(rows, path, setting=setting)
        )
    _answer(
        {"setting": setting, "rows": [asdict(row) for row in rows]},
        lambda: paper_tables.table1_parts(rows, setting),
        saved,
        json=json,
    )


@app.command("figure2")
def figure2(
    context: typer.Context,
    delta: Delta = None,
    out: Out = None,
    json: options.Json = False,
) -> None:
    """Figure 2: epsilon after shuffling n reports.

    Without options: delta 1e-6, as in the paper.
    """
    with screen.working("evaluating Figure 2", quiet=json):
        from checkins.accounting import paper
        from checkins.cli import paper_tables, plots

        given = Given.of(context)
        setting = _numbers(given, delta=paper.FIGURE_DELTA)
        with given.in_own_words():
            curves = paper.figure2(local_epsilons=plots.FIGURE_GRID, delta=setting["delta"])
        saved = _drawn(
            out,
            "figure2.png",
            lambda path: plots.draw_figure2(curves, path, delta=setting["delta"]),
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
    _answer(
        {"setting": setting, "curves": listed},
        lambda: paper_tables.figure2_parts(curves, setting),
        saved,
        json=json,
    )


@app.command("theorems")
def theorems(
    context: typer.Context,
    clients: Clients = None,
    slots: Slots = None,
    participation: Participation = None,
    capacity: Capacity = None,
    local_epsilon: LocalEpsilon = None,
    local_delta: LocalDelta = None,
    delta: Delta = None,
    out: Out = None,
    json: options.Json = False,
) -> None:
    """Every statement of the paper at one setting.

    A picture shows the paper's bound beside the exact one.

    Without options: 10,000 clients, 1,000 slots, participation 0.1, capacity 30,
    local epsilon 0.5, local delta 1e-20, delta 1e-6.
    """
    with screen.working("evaluating the theorems", quiet=json):
        from checkins.accounting import paper
        from checkins.cli import paper_tables, plots

        given = Given.of(context)
        setting = _numbers(
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
            if setting[name] > paper_tables.MOST_IN_SHEET:
                raise given.contradiction(
                    name, f"must be an integer from 1 to {paper_tables.MOST_IN_SHEET:,} here"
                )
        with given.in_own_words():
            rows = paper.theorem_sheet(paper.Setting(**setting, **SMOOTH))  # type: ignore[arg-type]
            saved = _drawn(out, "theorems.png", lambda path: plots.draw_theorems(setting, path))
    _answer(
        {"setting": setting | SMOOTH, "rows": [asdict(row) for row in rows]},
        lambda: paper_tables.theorems_parts(rows, setting),
        saved,
        json=json,
    )


@app.command("utility")
def utility(
    context: typer.Context,
    slots: Longest = None,
    seeds: Seeds = None,
    out: Out = None,
    json: options.Json = False,
) -> None:
    """The utility theorems, held against simulated campaigns.

    Convex problems with a known optimum: measured excess risk beside its
    bound, how it falls with the slots, and fixed against averaged. Exits 1
    if a measurement does not lie under its bound.

    Without options: up to 4,096 slots, 128 seeds.
    """
    from checkins.cli import paper_utility

    given = Given.of(context)
    setting = _numbers(given, slots=4_096, seeds=128)
    for name, (fewest, most) in paper_utility.LIMITS.items():
        if not fewest <= setting[name] <= most:
            raise given.contradiction(name, f"must be an integer from {fewest:,} to {most:,} here")
    found = paper_utility.measured(int(setting["slots"]), int(setting["seeds"]), quiet=json)
    saved = _drawn(out, "utility.png", lambda path: paper_utility.draw(found, path))
    _answer(
        {"setting": setting, **paper_utility.numbers(found)},
        lambda: paper_utility.parts(found),
        saved,
        json=json,
    )
    if not found.holds:
        raise typer.Exit(FAILURE)


def _numbers(given: Given, **defaults: float) -> dict[str, float]:
    """The options as numbers, or their defaults; whole where the default is whole."""
    from checkins import validate
    from checkins.cli import values

    checks = {"participation": validate.probability, "local_epsilon": validate.positive}
    found: dict[str, float] = {}
    with given.in_own_words():
        for name, default in defaults.items():
            if name not in given:
                found[name] = default
            elif isinstance(default, int):
                found[name] = values.whole(name, given.texts[name])
            else:
                check = checks.get(name, validate.open_unit)
                found[name] = values.real(name, given.texts[name], check)
    return found


def _drawn(out: Path | None, name: str, draw: Callable[[Path], None]) -> Path | None:
    """Draw into the folder, if there is one; return where the picture is."""
    if out is None:
        return None
    path = out / name
    try:
        out.mkdir(parents=True, exist_ok=True)
        draw(path)
    except OSError as error:
        raise Refused(f"--out {quoted(out)}: cannot be written: {error.strerror}") from error
    return path


def _answer(
    numbers: Mapping[str, object],
    parts: Callable[[], Sequence[RenderableType]],
    saved: Path | None,
    *,
    json: bool,
) -> None:
    if json:
        screen.show_json({**numbers, "picture": None if saved is None else str(saved)})
        return
    screen.show(*parts())
    if saved is not None:
        screen.show_plain(f"Picture: {saved}")
