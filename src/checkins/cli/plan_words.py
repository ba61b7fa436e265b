"""A plan for people: the design, why, what lies beside it, what if, what next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from checkins.accounting import NoiseAt
from checkins.cli import digits, tables
from checkins.planning.explain import duration_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from checkins.planning import CalibratedDesign, Plan

BYTE_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def plan_parts(plan: Plan, *, place: str | None) -> Iterator[RenderableType]:
    """What is shown, from top to bottom."""
    best = plan.recommended
    yield Text.assemble(("Recommended: ", "bold"), (best.label, "bold green"))
    yield tables.promise(plan.certificate)
    yield _design(plan)
    yield from _reasons(plan)
    yield _front(plan)
    yield Text(
        f"* recommended. epsilon: proved, rounded up, at delta = {best.target.delta!r}"
        f" ({best.target.adjacency}). proxy: expected error, smaller is better. noise: multiplier"
        " of Gaussian noise, or local epsilon. design: runs x slots, where noise is added.",
        style="dim",
    )
    yield ""
    yield from tables.listed(
        "If the population is not what you think",
        (row.sentence for row in plan.sensitivity if row.factor != 1.0),
    )
    yield from _next(plan, place)


def _design(plan: Plan) -> RenderableType:
    best = plan.recommended
    shape, worth, seen = best.candidate, best.metrics, best.metrics.slot_load
    what = "noise multiplier" if shape.is_gaussian else "local epsilon"
    carried = f" at the {shape.noise_at}" if shape.is_gaussian else ""
    at_server = shape.is_gaussian and shape.noise_at is NoiseAt.SERVER
    hidden = "empty slots" if at_server else "dummies"
    rows = {
        "protocol": str(shape.protocol),
        "slots": f"{shape.slots:,}" + _in_runs(shape.repeats),
        "window": None if shape.window is None else f"{shape.window:,} slots",
        "participation": f"{shape.participation:g}",
        "capacity": None if best.capacity is None else f"{best.capacity}",
        "minibatch": f"{shape.minibatch:,}" if shape.minibatch > 1 else None,
        "randomizer": f"{shape.randomizer}{carried}",
        what: f"{best.level:g}",
        "model steps": f"{worth.steps:,}, each of about {_few(worth.clients_per_step)} clients",
        "noise per step": f"{worth.noise_per_step:.3g} clips in each number",
        hidden: f"{seen.dummies_share:.1%}",
        "time": f"{duration_text(seen.duration_s)}, slots of {seen.slot_s:g} s",
        "upload": f"{told_bytes(best.load)} a client on average",
    }
    table = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        if value is not None:
            table.add_row(Text(name, style="dim"), value)
    return Padding(table, (1, 0, 1, 2))


def _reasons(plan: Plan) -> Iterator[RenderableType]:
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for reason in plan.reasons:
        table.add_row("-", Text.assemble(reason.sentence, " ", (f"[{reason.theorem}]", "dim")))
    yield Text("Why:")
    yield Padding(table, (0, 0, 1, 2))


def _front(plan: Plan) -> RenderableType:
    table = tables.plain_table(
        "",
        "epsilon",
        "proxy",
        "time",
        "upload",
        "noise",
        "design",
        right=("epsilon", "proxy", "time", "upload", "noise"),
        title="Designs that no other beats in everything",
    )
    for design in plan.front:
        chosen = design is plan.recommended
        table.add_row(
            "*" if chosen else "",
            digits.up(design.epsilon),
            digits.nearest(design.metrics.proxy, 3),
            duration_text(design.metrics.duration_s),
            told_bytes(design.load),
            f"{design.level:.4g}",
            _short(design),
            style="bold" if chosen else "",
        )
    return table


def _short(design: CalibratedDesign) -> str:
    """The label in half a line."""
    return design.label.replace(" slots", "").replace(" slot", "").replace("fixed, ", "")


def _next(plan: Plan, place: str | None) -> Iterator[RenderableType]:
    if place is None:
        yield Text("Nothing was written; --out FILE writes the campaign.")
        return
    missing = plan.campaign.missing
    steps = {"check": "what it promises and spends", "audit": "attack it"}
    if "[task]" not in missing:
        steps["simulate"] = "what it would learn"
    table = Table.grid(padding=(0, 2))
    for step, what in steps.items():
        table.add_row(f"checkins {step} {place}", Text(what, style="dim"))
    if not missing:
        table.add_row(f"checkins serve {place} --start +60", Text("run it", style="dim"))
    yield Text(f"Wrote {place}. Next:")
    yield Padding(table, (0, 0, 0, 2))
    if missing:
        yield Text(f"  (before it can be served it needs: {', '.join(missing)})", style="dim")


def told_bytes(count: float) -> str:
    """Bytes for people.

    >>> told_bytes(56), told_bytes(158800), told_bytes(3.2e9)
    ('56 B', '159 kB', '3.2 GB')
    """
    for size, unit in BYTE_UNITS:
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.3g} B"


def _in_runs(repeats: int) -> str:
    return f" in each of {repeats:,} runs" if repeats > 1 else ""


def _few(count: float) -> str:
    return f"{count:,.0f}" if count >= 10 else f"{count:.2g}"
