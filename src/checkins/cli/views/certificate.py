"""Print a certificate: the guarantee, every method that was tried, and the assumptions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from checkins import formatting
from checkins.accounting import METHODS, Parameter
from checkins.cli.terminal import listed, plain_table

if TYPE_CHECKING:
    from checkins.accounting import Adjacency, Alternative, Calibration, Certificate

PROVES, COMPARES = "proves", "compares"
LOWER = "lower bound"


def certificate_parts(certificate: Certificate) -> list[RenderableType]:
    """Return the guarantee, the table of methods, the assumptions and a legend."""
    return [
        guarantee(certificate),
        methods_table(certificate),
        *listed("Assumes", certificate.assumptions),
        *_against_server(certificate),
        Text(
            "Rounding: epsilon is rounded up and the lower bound down, to 4 digits."
            f"{_roles(certificate)}",
            style="dim",
        ),
    ]


def calibration_parts(calibration: Calibration) -> list[RenderableType]:
    """Return the calibrated value and its certificate."""
    value = safe_value(calibration.parameter, calibration.value)
    found = Text.assemble(
        (f"{calibration.parameter} = {value}", "bold"), " meets the target epsilon:"
    )
    return [found, *certificate_parts(calibration.certificate)]


def safe_value(parameter: Parameter, value: float) -> str:
    """Format the calibrated value with six digits. Rounding never increases epsilon."""
    if parameter in (Parameter.SLOTS, Parameter.CAPACITY):
        return f"{int(value):,}"
    if parameter is Parameter.NOISE_MULTIPLIER:
        return formatting.up(value, 6)
    return formatting.down(value, 6)


def guarantee(certificate: Certificate, *, several: str = "campaigns") -> Text:
    """State the guarantee in one sentence. ``several`` says what is composed, such as runs."""
    count = certificate.campaigns
    repeated = f", {count:,} {several} together" if count > 1 else ""
    sentence = Text.assemble(
        (f"epsilon <= {formatting.up(certificate.epsilon)}", "bold green"),
        f" at delta = {certificate.delta!r} ({certificate.adjacency}{repeated}),"
        f" proved by {METHODS[certificate.method].partition(':')[0]}",
    )
    if certificate.epsilon_lower > 0.0:
        least = formatting.down(certificate.epsilon_lower)
        sentence.append(f". Lower bound: epsilon >= {least} for {_tight_case(certificate)}")
    return sentence.append(".")


def methods_table(certificate: Certificate) -> Table:
    """Return a row per method: the best, the other proofs, then the comparisons."""
    table = plain_table("method", "epsilon", "role", "note", right=("epsilon",))

    def rank(other: Alternative) -> tuple[bool, bool, bool]:
        return other.method != certificate.method, not other.proves, math.isinf(other.epsilon)

    for other in sorted(certificate.alternatives, key=rank):
        best = other.method == certificate.method
        style = "bold" if best else "" if other.proves else "dim"
        role = "" if math.isinf(other.epsilon) else PROVES if other.proves else COMPARES
        table.add_row(other.method, formatting.up(other.epsilon), role, other.note, style=style)
    if certificate.epsilon_lower > 0.0:
        lower = formatting.down(certificate.epsilon_lower)
        table.add_row(LOWER, lower, "", f"epsilon is at least this for {_tight_case(certificate)}")
    return table


def _roles(certificate: Certificate) -> str:
    """Explain the words of the column role that occur in the table of methods."""
    words = f' In the column role, "{PROVES}" marks a bound on the epsilon of this protocol'
    shown = (other for other in certificate.alternatives if math.isfinite(other.epsilon))
    if any(not other.proves for other in shown):
        words += f', and "{COMPARES}" the epsilon of another protocol with the same parameters'
    return f"{words}."


def _tight_case(certificate: Certificate) -> str:
    """Return what the lower bound is for. Rounding to a grid may lower epsilon slightly."""
    rounded = " without rounding to the grid" if certificate.variation > 0.0 else ""
    return certificate.epsilon_lower_of + rounded


def _against_server(certificate: Certificate) -> list[RenderableType]:
    """Return the guarantee against the server. Return an empty list if it is not computed."""
    local = certificate.against_server
    if local is None:
        return []
    bound = ""
    if math.isfinite(local.epsilon):
        epsilon = formatting.up(local.epsilon)
        bound = f"epsilon <= {epsilon} at delta = {certificate.delta!r} (replace-one), "
    return [f"Against the server: {bound}{local.note}."]


def side_by_side(title: str, certificates: Mapping[Adjacency, Certificate]) -> Table:
    """Return a table of methods for one design, with a column per neighbour relation."""
    names = [str(adjacency) for adjacency in certificates]
    table = plain_table("method", *names, "role", right=names, title=title)
    rows: dict[str, bool] = {}
    for certificate in certificates.values():
        rows[certificate.method] = True
        rows |= {other.method: other.proves for other in certificate.alternatives}
    for method in sorted(rows, key=lambda method: not rows[method]):
        table.add_row(
            method,
            *(_shown(epsilon_by(method, each), formatting.up) for each in certificates.values()),
            PROVES if rows[method] else COMPARES,
        )
    lower = [_shown(epsilon_by(LOWER, each), formatting.down) for each in certificates.values()]
    of = " / ".join(dict.fromkeys(_tight_case(each) for each in certificates.values()))
    table.add_row(LOWER, *lower, f"epsilon is at least this for {of}")
    return table


def epsilon_by(method: str, certificate: Certificate) -> float:
    """Return the epsilon of a method, or NaN if the certificate does not have the method."""
    if method == LOWER:
        return certificate.epsilon_lower
    if method == certificate.method:
        return certificate.epsilon
    found = (other.epsilon for other in certificate.alternatives if other.method == method)
    return next(found, math.nan)


def _shown(epsilon: float, rounded: Callable[[float], str]) -> str:
    return "" if math.isnan(epsilon) else rounded(epsilon)
