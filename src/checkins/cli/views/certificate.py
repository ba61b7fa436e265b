"""Texts and tables of a certificate: the guarantee, every method of proof, and the assumptions.

The certificate may belong to a checked campaign or to a verified ledger. A dummy is a report that
the server draws in place of a missing report.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from checkins import formatting
from checkins.accounting import METHODS, NoiseAt, Parameter, Protocol
from checkins.accounting.precision import Method
from checkins.cli.terminal import align_decimals, bullet_list, plain_table, printable

if TYPE_CHECKING:
    from checkins.accounting import Adjacency, Alternative, Calibration, Certificate
    from checkins.campaign import Campaign
    from checkins.cli.commands.check import CheckedCampaign
    from checkins.ledger.signature import SignedHead
    from checkins.ledger.verification import Verification

MOST_STATED_CHARACTERS = 500
"""Longest text of a ledger that is shown whole."""
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


SEAL_DIGITS = 12
"""Number of digits of a seal that the table of runs shows."""
MAX_NAME_CHARACTERS = 24

MISSING_KEY_TEXTS = {
    "[randomizer] clip": "the norm to which updates are clipped",
    "[randomizer] grid": "the distance between the values to which reports are rounded",
    "[randomizer] kind = gaussian, laplace or privunit": "randomized response cannot train a model",
    "[task]": "the data and the model that devices train",
    '[task] optimizer kind = "sgd"': "optimizers of optax work only in simulations",
    "[schedule]": "the times of the slots; only a simulation needs no schedule",
}
"""Maps each key that may be missing in a campaign file to an explanation for the user."""


def slot_description(campaign: Campaign) -> str:
    """Return two sentences: how clients draw a slot, and what the server does in a slot."""
    design = campaign.design
    slots = f"one of {design.slots:,} slots (time steps)"
    server = "In each slot, the server"
    if design.window is not None:
        slots = f"one of its next {design.window:,} slots (time steps), of {design.slots:,}"
        if design.window > 1:
            server = f"{_warm_up_text(design.window - 1)}, in each slot the server"
    probability = (
        "" if design.participation == 1.0 else f", with probability {design.participation:g}"
    )
    client_sentence = f"Each client draws {slots}{probability}."
    if design.protocol is Protocol.AVERAGED:
        reports = f"all reports ({_report_text(campaign)})"
        condition = (
            ""
            if design.least_reports is None
            else f" A slot with fewer than {design.least_reports:,} reports is skipped."
        )
        return f"{client_sentence} {server} averages {reports} and releases a model.{condition}"
    choice = "takes all check-ins"
    if design.capacity is not None:
        choice = f"chooses up to {design.capacity:,} check-ins uniformly at random"
    if campaign.noise_at is NoiseAt.SERVER:
        updates = f"their updates ({_clip_text(campaign)})"
        aggregation = f"sums {updates}, adds {_gaussian_text(campaign)} to the sum"
    else:
        reports = f"their reports ({_report_text(campaign)})"
        aggregation = f"sums {reports}, draws a dummy report for each missing report"
    if design.capacity == 1 and campaign.noise_at is not NoiseAt.SERVER:
        choice = "chooses one check-in uniformly at random"
        aggregation = (
            f"takes its report ({_report_text(campaign)}), or a dummy report if there is none"
        )
    return f"{client_sentence} {server} {choice}, {aggregation} and releases a model."


def _warm_up_text(slots: int) -> str:
    return f"After a warm-up of {slots:,} slot{'' if slots == 1 else 's'} that releases nothing"


def _clip_text(campaign: Campaign) -> str:
    from checkins.campaign import RandomizerKind

    randomizer = campaign.randomizer
    norm = "L1 norm" if randomizer.kind is RandomizerKind.LAPLACE else "norm"
    return f"clipped to {norm} {randomizer.clip:g}" if randomizer.clip is not None else "clipped"


def _gaussian_text(campaign: Campaign) -> str:
    deviation = (campaign.noise_multiplier or 0.0) * (campaign.randomizer.clip or 0.0)
    return f"Gaussian noise of standard deviation {deviation:g}"


def _report_text(campaign: Campaign) -> str:
    from checkins.campaign import RandomizerKind

    randomizer = campaign.randomizer
    if randomizer.kind is RandomizerKind.GAUSSIAN:
        return f"{_clip_text(campaign)}, with {_gaussian_text(campaign)}"
    if randomizer.kind is RandomizerKind.RANDOMIZED_RESPONSE:
        mechanism = f"by randomized response with {randomizer.categories:,} categories"
        return f"made {campaign.local_epsilon:g}-DP {mechanism}"
    mechanism = "Laplace noise" if randomizer.kind is RandomizerKind.LAPLACE else "PrivUnit"
    if randomizer.dimension is not None:
        mechanism += f" in dimension {randomizer.dimension:,}"
    return f"{_clip_text(campaign)}, made {campaign.local_epsilon:g}-DP by {mechanism}"


def missing_lines(campaign: Campaign) -> list[str]:
    """Return a line for each key that the file needs before clients can join."""
    return [f"{name}: {MISSING_KEY_TEXTS[name]}" for name in campaign.missing]


def checked_parts(checked: CheckedCampaign) -> Iterator[RenderableType]:
    """Yield what a slot does, the certificate, epsilon by number of slots, and missing keys."""
    campaign, budget = checked.campaign, checked.campaign.budget
    delta_text = f"delta = {budget.delta!r}, {budget.adjacency}"
    yield Text.assemble((printable(campaign.name), "bold"), f" ({printable(checked.file.path)})")
    yield f"Seal (hash of the parameters):\n{campaign.seal}"
    yield slot_description(campaign)
    composed = ""
    if checked.earlier is not None:
        ledger, spent = checked.earlier.ledger, formatting.up(checked.earlier.certificate.epsilon)
        runs = f"{len(ledger.runs):,} run{'' if len(ledger.runs) == 1 else 's'}"
        yield f"The ledger already has {runs}: epsilon <= {spent} ({delta_text})."
        yield f"Head of the ledger, the hash of its last line: {ledger.head}"
        composed = ", together with the runs in the ledger"
    yield ""
    if checked.certificate is None:
        yield "No epsilon can be proved, so the campaign exceeds its budget."
    else:
        yield from certificate_parts(checked.certificate)
    yield f"\nEpsilon by number of completed slots{composed} ({delta_text}; rounded up):"
    table = plain_table("slots", "epsilon <=", right=("slots",))
    epsilons = align_decimals([formatting.up(epsilon) for _, epsilon in checked.curve])
    for (slots, _), epsilon in zip(checked.curve, epsilons, strict=True):
        table.add_row(f"{slots:,}", epsilon)
    yield table
    yield from bullet_list("Keys to add before clients can join", missing_lines(campaign))
    if checked.within_budget:
        yield (
            f"The campaign is within its budget, epsilon = {budget.epsilon:g} at delta ="
            f" {budget.delta!r} ({budget.adjacency})."
        )


def _short_name(name: str) -> str:
    """Shorten the name of a campaign so that it fits into its column."""
    return printable(
        name if len(name) <= MAX_NAME_CHARACTERS else f"{name[: MAX_NAME_CHARACTERS - 3]}..."
    )


def _stated_text(text: str) -> Text:
    """Return a text of a ledger without control characters, cut off if it is very long."""
    shown = "".join(char if char.isprintable() else " " for char in text)
    cut_off = shown[: MOST_STATED_CHARACTERS - 3] + "..."
    return Text(shown if len(shown) <= MOST_STATED_CHARACTERS else cut_off)


def ledger_parts(
    verified: Verification, signed: SignedHead | None = None
) -> Iterator[RenderableType]:
    """Yield the table of runs of a verified ledger, its certificate and its notes.

    ``signed`` is a head whose signature was checked, or None.
    """
    entries = verified.ledger.entries
    yield Text.assemble(
        ("The ledger is intact", "bold green"),
        f": {entries:,} {'entry' if entries == 1 else 'entries'}. Every hash, seal and model"
        " was computed again.",
    )
    table = plain_table("campaign", "run", "slots", "status", "seal", right=("run", "slots"))
    for run in verified.ledger.runs:
        status = verified.status(run)
        table.add_row(
            _short_name(run.campaign.name),
            f"{run.number} of {run.campaign.repeats}",
            f"{run.slots_closed:,} of {run.campaign.design.slots:,}",
            status,
            run.seal[: len("sha256:") + SEAL_DIGITS] + "...",
            style="yellow" if status == "open" else "",
        )
    yield table
    yield f"Head: {verified.ledger.head}"
    if signed is not None:
        yield f"Signed up to line {signed.entries:,} by {signed.key}"
        if signed.entries < verified.ledger.entries:
            yield f"The {verified.ledger.entries - signed.entries:,} lines after it are not signed."
    current = verified.ledger.running
    if current is not None:
        yield (
            f"The last run is still open: {current.slots_closed:,} of"
            f" {current.campaign.design.slots:,} slots are closed. The certificate covers these"
            " slots. Only --head and --key detect that lines were removed at the end."
        )
    yield ""
    yield from certificate_parts(verified.certificate)
    verdict = "are within" if verified.within_budget else "exceed"
    yield f"The runs {verdict} the budget of the population, epsilon = {verified.budget:g}."
    if verified.simulated:
        yield "The ledger is simulated: its noise comes from a seed and gives no privacy."
    yield from bullet_list(
        "Assumptions that the ledger states in addition, which were not recomputed",
        map(_stated_text, verified.stated_assumptions),
    )
    yield from bullet_list("Notes", verified.notes)
