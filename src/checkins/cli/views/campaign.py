"""Print a checked campaign and a verified ledger, with their certificates.

A dummy is a report that the server draws in place of a missing one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from checkins import formatting
from checkins.accounting import NoiseAt, Protocol
from checkins.campaign import Campaign, RandomizerKind
from checkins.cli.errors import printable
from checkins.cli.terminal import listed, plain_table
from checkins.cli.views.certificate import certificate_parts

if TYPE_CHECKING:
    from checkins.cli.commands.check import CheckedCampaign
    from checkins.ledger.verification import Verification

SEAL_DIGITS = 12
LONGEST_NAME = 24

NEEDED = {
    "[randomizer] clip": "the norm that updates are clipped to",
    "[randomizer] grid": "the step of the grid that reports are rounded to",
    "[randomizer] kind = gaussian, laplace or privunit": "categories cannot train a model",
    "[task]": "what is learned",
    '[task] optimizer kind = "sgd"': "optimizers of optax work only in simulations",
    "[schedule]": "when slots begin; only a simulation needs no schedule",
}


def one_slot(campaign: Campaign) -> str:
    """Describe in two sentences what clients and server do in one slot."""
    design = campaign.design
    where = f"one of {design.slots:,} slots (time steps)"
    slot = "In each slot, the server"
    if design.window is not None:
        where = f"one of its next {design.window:,} slots (time steps), of {design.slots:,}"
        if design.window > 1:
            slot = f"{_warm_up(design.window - 1)}, in each slot the server"
    probability = (
        "" if design.participation == 1.0 else f", with probability {design.participation:g}"
    )
    drawn = f"Each client draws {where}{probability}."
    if design.protocol is Protocol.AVERAGED:
        return f"{drawn} {slot} averages all reports ({_report(campaign)}) and releases a model."
    picked = "takes all check-ins"
    if design.capacity is not None:
        picked = f"chooses up to {design.capacity:,} check-ins uniformly at random"
    if campaign.noise_at is NoiseAt.SERVER:
        summed = f"sums their updates ({_clipped(campaign)}), adds {_gaussian(campaign)} to the sum"
    else:
        summed = f"sums their reports ({_report(campaign)}), adds a dummy for each missing report"
    if design.capacity == 1 and campaign.noise_at is not NoiseAt.SERVER:
        picked = "chooses one check-in uniformly at random"
        summed = f"takes its report ({_report(campaign)}), or a dummy if there is none"
    return f"{drawn} {slot} {picked}, {summed} and releases a model."


def _warm_up(slots: int) -> str:
    return f"After a warm-up of {slots:,} slot{'' if slots == 1 else 's'} that releases nothing"


def _clipped(campaign: Campaign) -> str:
    chosen = campaign.randomizer
    norm = "L1 norm" if chosen.kind is RandomizerKind.LAPLACE else "norm"
    return f"clipped to {norm} {chosen.clip:g}" if chosen.clip is not None else "clipped"


def _gaussian(campaign: Campaign) -> str:
    deviation = (campaign.noise_multiplier or 0.0) * (campaign.randomizer.clip or 0.0)
    return f"Gaussian noise of standard deviation {deviation:g}"


def _report(campaign: Campaign) -> str:
    chosen = campaign.randomizer
    if chosen.kind is RandomizerKind.GAUSSIAN:
        return f"{_clipped(campaign)}, with {_gaussian(campaign)}"
    if chosen.kind is RandomizerKind.RANDOMIZED_RESPONSE:
        how = f"by randomized response among {chosen.categories:,}"
        return f"{campaign.local_epsilon:g}-DP {how}"
    how = "Laplace noise" if chosen.kind is RandomizerKind.LAPLACE else "PrivUnit"
    return f"{_clipped(campaign)}, {campaign.local_epsilon:g}-DP by {how}"


def missing_lines(campaign: Campaign) -> list[str]:
    """Return what the file lacks before clients can join, with an explanation of each key."""
    return [f"{name}: {NEEDED[name]}" for name in campaign.missing]


def checked_parts(checked: CheckedCampaign) -> Iterator[RenderableType]:
    """Return what one slot does, the certificate, epsilon by slots, and missing keys."""
    campaign, budget = checked.campaign, checked.campaign.budget
    terms = f"delta = {budget.delta!r}, {budget.adjacency}"
    yield Text.assemble((printable(campaign.name), "bold"), f" ({printable(checked.file.path)})")
    yield f"Seal: {campaign.seal}"
    yield one_slot(campaign)
    after = ""
    if checked.before is not None:
        ledger, spent = checked.before.ledger, formatting.up(checked.before.certificate.epsilon)
        runs = f"{len(ledger.runs):,} run{'' if len(ledger.runs) == 1 else 's'}"
        yield f"The ledger already has {runs}: epsilon <= {spent} ({terms})."
        yield f"Head of the ledger: {ledger.head}"
        after = ", composed with the ledger"
    yield ""
    if checked.certificate is None:
        yield "No epsilon is proved, so the campaign exceeds its budget."
    else:
        yield from certificate_parts(checked.certificate)
    yield f"\nEpsilon after each number of slots{after} ({terms}; rounded up):"
    table = plain_table("slots", "epsilon", right=("slots", "epsilon"))
    for slots, epsilon in checked.curve:
        table.add_row(f"{slots:,}", formatting.up(epsilon))
    yield table
    yield from listed("Missing before clients can join", missing_lines(campaign))
    if checked.within_budget:
        yield (
            f"The campaign is within its budget, epsilon = {budget.epsilon:g} at delta ="
            f" {budget.delta!r} ({budget.adjacency})."
        )


def _short(name: str) -> str:
    """Shorten a campaign's name to fit its column."""
    return printable(name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}...")


def ledger_parts(verified: Verification) -> Iterator[RenderableType]:
    """Return the runs of a verified ledger, its certificate and its notes."""
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
            _short(run.campaign.name),
            f"{run.number} of {run.campaign.repeats}",
            f"{run.slots_closed:,} of {run.campaign.design.slots:,}",
            status,
            run.seal[: len("sha256:") + SEAL_DIGITS] + "...",
            style="yellow" if status == "open" else "",
        )
    yield table
    yield f"Head: {verified.ledger.head}"
    current = verified.ledger.running
    if current is not None:
        yield (
            f"The last campaign is open: {current.slots_closed:,} of"
            f" {current.campaign.design.slots:,} slots are closed, which the certificate covers."
            " Only --head detects that lines were removed at the end of the ledger."
        )
    yield ""
    yield from certificate_parts(verified.certificate)
    verdict = "are within" if verified.within_budget else "exceed"
    yield f"The runs {verdict} the budget of the population, epsilon = {verified.budget:g}."
    if verified.simulated:
        yield "The ledger is simulated: its noise was drawn from a seed and gives no privacy."
    yield from listed("Notes", verified.notes)
