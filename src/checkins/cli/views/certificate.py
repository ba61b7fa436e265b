"""Texts and tables of a certificate: the guarantee, every method of proof, and the assumptions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from checkins import formatting
from checkins.accounting import METHODS, Parameter
from checkins.accounting.precision import Method
from checkins.cli.terminal import align_decimals, bullet_list, plain_table

if TYPE_CHECKING:
    from checkins.accounting import Adjacency, Alternative, Calibration, Certificate

COMPARISON, LOWER_BOUND = "another protocol", "lower bound"


def certificate_parts(certificate: Certificate) -> list[RenderableType]:
    """Return the guarantee, the table of methods, the assumptions and a legend."""
    return [
        guarantee_sentence(certificate),
        methods_table(certificate),
        *_dummy_definition(certificate),
        *bullet_list("Assumptions", certificate.assumptions),
        *_against_server(certificate),
        Text(
            "Rounding: epsilon is rounded up and the lower bound down, to 4 digits.",
            style="dim",
        ),
    ]


def calibration_parts(calibration: Calibration) -> list[RenderableType]:
    """Return the calibrated value and its certificate."""
    value = calibrated_value_text(calibration.parameter, calibration.value)
    headline = Text.assemble(
        (f"{calibration.parameter} = {value}", "bold"), " meets the target epsilon:"
    )
    return [headline, *certificate_parts(calibration.certificate)]


def calibrated_value_text(parameter: Parameter, value: float) -> str:
    """Format a calibrated value with six digits, rounded so that epsilon does not increase."""
    if parameter in (Parameter.SLOTS, Parameter.CAPACITY):
        return f"{int(value):,}"
    if parameter is Parameter.NOISE_MULTIPLIER:
        return formatting.up(value, 6)
    return formatting.down(value, 6)


def guarantee_sentence(certificate: Certificate, *, counted_noun: str = "campaigns") -> Text:
    """Return the guarantee as a sentence. It calls several campaigns together ``counted_noun``."""
    count = certificate.campaigns
    repeated = f", {count:,} {counted_noun} together" if count > 1 else ""
    sentence = Text.assemble(
        (f"epsilon <= {formatting.up(certificate.epsilon)}", "bold green"),
        f" at delta = {certificate.delta!r} ({certificate.adjacency}{repeated}),"
        f" proved by {METHODS[certificate.method].partition(':')[0]}",
    )
    if certificate.epsilon_lower > 0.0:
        lower = formatting.down(certificate.epsilon_lower)
        sentence.append(f". Lower bound: epsilon >= {lower} for {_lower_bound_case(certificate)}")
    return sentence.append(".")


def methods_table(certificate: Certificate) -> Table:
    """Return a table with a row per method: the best bound, other bounds, then other protocols."""
    table = plain_table("method", "epsilon <=", "note")

    def rank(bound: Alternative) -> tuple[bool, bool, bool]:
        return bound.method != certificate.method, not bound.proves, math.isinf(bound.epsilon)

    bounds = sorted(useful_alternatives(certificate), key=rank)
    epsilons = align_decimals([formatting.up(bound.epsilon) for bound in bounds])
    for bound, epsilon in zip(bounds, epsilons, strict=True):
        best = bound.method == certificate.method
        style = "bold" if best else "" if bound.proves else "dim"
        note = bound.note if bound.proves else f"{COMPARISON}: {bound.note}"
        table.add_row(bound.method, epsilon, note, style=style)
    return table


def useful_alternatives(certificate: Certificate) -> list[Alternative]:
    """Return the alternatives. Leave out a bound that needs a population and is not smaller."""
    without_population = epsilon_of_method(Method.EXACT, certificate)
    return [
        bound
        for bound in certificate.alternatives
        if bound.method != Method.EXACT_POPULATION
        or bound.method == certificate.method
        or not bound.epsilon >= without_population
    ]


def _dummy_definition(certificate: Certificate) -> list[RenderableType]:
    """Return the sentence that defines a dummy, if an assumption mentions dummies."""
    if not any("dumm" in assumption for assumption in certificate.assumptions):
        return []
    return ["A dummy is a report that the server draws in place of a missing report."]


def _lower_bound_case(certificate: Certificate) -> str:
    """Return what the lower bound is about. Rounding noise to a grid may lower epsilon."""
    mechanism = certificate.epsilon_lower_of
    if certificate.variation == 0.0:
        return mechanism
    conjunction = "and if" if ", if " in mechanism else "if"
    return f"{mechanism}, {conjunction} noise were not rounded to a grid"


def _against_server(certificate: Certificate) -> list[RenderableType]:
    """Return the guarantee if the server is the adversary, or nothing if it is not computed."""
    local = certificate.against_server
    if local is None:
        return []
    bound = ""
    if math.isfinite(local.epsilon):
        epsilon = formatting.up(local.epsilon)
        bound = f"epsilon <= {epsilon} at delta = {certificate.delta!r} (replace-one) "
    return [f"If the server is the adversary: {bound}{local.note}."]


def methods_by_adjacency(title: str, certificates: Mapping[Adjacency, Certificate]) -> Table:
    """Return a table of methods for one design, with a column for each neighbour relation."""
    names = [str(adjacency) for adjacency in certificates]
    table = plain_table("method", *names, "note", title=title)
    columns, proves_by_method = list(certificates.values()), dict[str, bool]()
    for certificate in columns:
        proves_by_method[certificate.method] = True
        proves_by_method |= {bound.method: bound.proves for bound in certificate.alternatives}
    methods = sorted(proves_by_method, key=lambda method: not proves_by_method[method])
    epsilons = [
        align_decimals(
            [
                *(_cell(epsilon_of_method(method, each), formatting.up) for method in methods),
                _cell(epsilon_of_method(LOWER_BOUND, each), formatting.down),
            ]
        )
        for each in columns
    ]
    cases = " / ".join(dict.fromkeys(_lower_bound_case(each) for each in columns))
    notes = ["upper bound" if proves_by_method[method] else COMPARISON for method in methods]
    rows = zip((*methods, ""), *epsilons, (*notes, f"{LOWER_BOUND} for {cases}"), strict=True)
    for row in rows:
        table.add_row(*row)
    return table


def epsilon_of_method(method: str, certificate: Certificate) -> float:
    """Return the epsilon of a method, or NaN if the certificate does not have the method."""
    if method == LOWER_BOUND:
        return certificate.epsilon_lower
    if method == certificate.method:
        return certificate.epsilon
    epsilons = (bound.epsilon for bound in certificate.alternatives if bound.method == method)
    return next(epsilons, math.nan)


def _cell(epsilon: float, rounded: Callable[[float], str]) -> str:
    return "" if math.isnan(epsilon) else rounded(epsilon)
