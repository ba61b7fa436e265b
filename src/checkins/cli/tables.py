"""What people see: a sentence that can be quoted, then a table, then what it rests on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from checkins.accounting import METHODS, Parameter
from checkins.cli import digits

if TYPE_CHECKING:
    from checkins.accounting import Adjacency, Alternative, Calibration, Certificate

PROVES, COMPARES = "proves", "compares"
LOWER = "lower bound"


def certificate_parts(certificate: Certificate) -> list[RenderableType]:
    """A certificate for people: the promise, every method tried, the assumptions, the rounding."""
    return [
        promise(certificate),
        methods_table(certificate),
        *listed("Assumes", certificate.assumptions),
        *_against_server(certificate),
        Text(
            "Rounding: epsilon up, lower bound down, to 4 digits. Methods marked as compares"
            " price another protocol and prove nothing here.",
            style="dim",
        ),
    ]


def calibration_parts(calibration: Calibration) -> list[RenderableType]:
    """The value that was solved for, then its certificate."""
    value = safe_value(calibration.parameter, calibration.value)
    found = Text.assemble(
        (f"{calibration.parameter} = {value}", "bold"), " is what meets the target:"
    )
    return [found, *certificate_parts(calibration.certificate)]


def safe_value(parameter: Parameter, value: float) -> str:
    """The solved value in six digits, rounded to the side that spends less."""
    if parameter in (Parameter.SLOTS, Parameter.CAPACITY):
        return f"{int(value):,}"
    if parameter is Parameter.NOISE_MULTIPLIER:
        return digits.up(value, 6)
    return digits.down(value, 6)


def promise(certificate: Certificate) -> Text:
    """The guarantee in one sentence."""
    repeated = f", {certificate.campaigns:,} campaigns" if certificate.campaigns > 1 else ""
    sentence = Text.assemble(
        (f"epsilon <= {digits.up(certificate.epsilon)}", "bold green"),
        f" at delta = {certificate.delta!r} ({certificate.adjacency}{repeated}),"
        f" proved by {METHODS[certificate.method].partition(':')[0]}",
    )
    if certificate.epsilon_lower > 0.0:
        least = digits.down(certificate.epsilon_lower)
        sentence.append(f"; for {_of_what(certificate)}, no epsilon below {least} is true")
    return sentence.append(".")


def methods_table(certificate: Certificate) -> Table:
    """Every method that was tried: the one that won first, those that prove before others."""
    table = plain_table("method", "epsilon", "role", "note", right=("epsilon",))
    for other in sorted(certificate.alternatives, key=lambda found: _rank(found, certificate)):
        won = other.method == certificate.method
        style = "bold" if won else "" if other.proves else "dim"
        table.add_row(other.method, digits.up(other.epsilon), _role(other), other.note, style=style)
    if certificate.epsilon_lower > 0.0:
        lower = digits.down(certificate.epsilon_lower)
        table.add_row(LOWER, lower, "", f"for {_of_what(certificate)}, no smaller one is true")
    return table


def _of_what(certificate: Certificate) -> str:
    """What runs on a grid is a rounding of the design, and may be a little more private."""
    rounded = ", before it is rounded to its grid" if certificate.variation > 0.0 else ""
    return certificate.epsilon_lower_of + rounded


def _against_server(certificate: Certificate) -> list[RenderableType]:
    """What holds if the server itself is the adversary."""
    local = certificate.against_server
    if local is None:
        return []
    if math.isinf(local.epsilon):
        return [Text(f"Against the server itself: {local.note}.")]
    return [
        Text(
            f"Against the server itself: epsilon <= {digits.up(local.epsilon)} at delta ="
            f" {certificate.delta!r} (replace-one), {local.note}."
        )
    ]


def _rank(other: Alternative, certificate: Certificate) -> tuple[bool, bool, bool]:
    return other.method != certificate.method, not other.proves, math.isinf(other.epsilon)


def _role(other: Alternative) -> str:
    if math.isinf(other.epsilon):
        return ""
    return PROVES if other.proves else COMPARES


def side_by_side(title: str, prices: Mapping[Adjacency, Certificate]) -> Table:
    """What each method says of one design, one column for each neighbour relation."""
    names = [str(adjacency) for adjacency in prices]
    table = plain_table("method", *names, "role", right=names, title=title)
    rows: dict[str, bool] = {}
    for certificate in prices.values():
        rows[certificate.method] = True
        rows |= {other.method: other.proves for other in certificate.alternatives}
    for method in sorted(rows, key=lambda method: not rows[method]):
        table.add_row(
            method,
            *(_shown(epsilon_by(method, price), digits.up) for price in prices.values()),
            PROVES if rows[method] else COMPARES,
        )
    lower = [_shown(epsilon_by(LOWER, price), digits.down) for price in prices.values()]
    of = " / ".join(dict.fromkeys(_of_what(price) for price in prices.values()))
    table.add_row(LOWER, *lower, f"for {of}, no smaller one is true")
    return table


def epsilon_by(method: str, certificate: Certificate) -> float:
    """What a method says; NaN where it says nothing."""
    if method == LOWER:
        return certificate.epsilon_lower
    if method == certificate.method:
        return certificate.epsilon
    said = (other.epsilon for other in certificate.alternatives if other.method == method)
    return next(said, math.nan)


def _shown(epsilon: float, rounded: Callable[[float], str]) -> str:
    return "" if math.isnan(epsilon) else rounded(epsilon)


def plain_table(*columns: str, right: Sequence[str] = (), title: str | None = None) -> Table:
    """A table with a rule under its head and nothing else."""
    table = Table(
        box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False
    )
    for column in columns:
        last = column == columns[-1]
        table.add_column(
            column,
            justify="right" if column in right else "left",
            no_wrap=not last,
            overflow="fold",
        )
    return table


def listed(title: str, lines: Iterable[str], *, numbered: bool = False) -> list[RenderableType]:
    """A title and a list under it; nothing for an empty list."""
    found = list(lines)
    if not found:
        return []
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for number, line in enumerate(found, start=1):
        table.add_row(f"({number})" if numbered else "-", Text(line))
    return [Text(f"{title}:"), Padding(table, (0, 0, 1, 2))]
