"""`checkins check`: is this campaign file right, what does it cost, does it keep its budget?"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from checkins.cli import options, screen
from checkins.cli.failures import Refused, quoted
from checkins.cli.verify import failed, ledger_file

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from checkins.accounting import Certificate
    from checkins.campaign import Campaign, CampaignFile
    from checkins.campaign.spending import Spending
    from checkins.ledger.verification import Verification

File = Annotated[str, typer.Argument(metavar="CAMPAIGN.TOML", hidden=True, show_default=False)]
LedgerPlace = Annotated[
    options.Texts,
    options.text(
        "--ledger",
        "DIR",
        "Price the campaign after what the ledger of its population has spent: a folder that holds"
        " ledger.jsonl, or that file.",
    ),
]
ROUNDING = "epsilon is rounded up, affordable_slots down"
CURVE_SECONDS = 3.0
"""Once pricing has taken so much processor time, no further point of the curve is computed."""
GENERAL_ADVICE = "; add noise, or run fewer slots"


def check(
    context: typer.Context, file: File, ledger: LedgerPlace = None, json: options.Json = False
) -> None:
    """Validate a campaign file and show its certificate.

    Exit code 0: it keeps its budget; 1: it would spend more, and so would stop before its end, or
    the ledger is refused; 2: it is no campaign, or does not go with the ledger.
    """
    given = options.Given.of(context)
    path = ledger_file(given.texts["ledger"]) if "ledger" in given else None
    with screen.working("pricing the campaign", quiet=json):
        from checkins.campaign import read_campaign
        from checkins.errors import InvalidValue

        found = read_campaign(file)
        before = None if path is None else _verified(path, found)
        try:
            checked = _Checked.of(found, before)
            hint = "" if checked.within_budget else checked.hint()
        except InvalidValue as error:
            raise found.refusal(error) from error
    if json:
        screen.show_json(checked.as_dict())
    else:
        screen.show(*_parts(checked))
    if not checked.within_budget:
        raise failed(f"{checked.excess()}{hint}")


def _verified(path: Path, file: CampaignFile) -> Verification:
    """The ledger that the campaign would be written to next; it says itself what does not fit."""
    from checkins.ledger import InvalidLedger, lines, verify

    try:
        verified = verify(lines(path), path=str(path))
    except InvalidLedger as error:
        raise failed(str(error)) from error
    ledger = verified.ledger
    try:
        ledger.append(
            ledger.opening(file.campaign, model=[0.0], simulated=ledger.runs[0].simulated)
        )
    except InvalidLedger as error:
        raise Refused(f"{quoted(file.path)} does not go with {path}: {error}") from error
    return verified


@dataclass(frozen=True, slots=True)
class _Checked:
    """A campaign file, what it costs after a ledger if there is one, and along the way.

    There is no certificate where no epsilon is proved: the budget is exceeded by far.
    """

    file: CampaignFile
    before: Verification | None
    spending: Spending
    certificate: Certificate | None
    affordable: int | None
    curve: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, file: CampaignFile, before: Verification | None) -> _Checked:
        spending = _spending(file.campaign, before)
        started = time.process_time()
        certificate = _price(spending)
        epsilon = math.inf if certificate is None else certificate.epsilon
        slots = spending.slots
        curve = {slots: epsilon}
        if certificate is not None:
            for place in (slots // 2, 1, slots // 4, slots * 3 // 4):
                if time.process_time() - started > CURVE_SECONDS:
                    break
                if max(1, place) not in curve:
                    curve.update(spending.curve([max(1, place)]))
        kept = epsilon <= file.campaign.budget.epsilon
        affordable = slots if kept else _affordable(spending)
        return cls(file, before, spending, certificate, affordable, tuple(sorted(curve.items())))

    @property
    def campaign(self) -> Campaign:
        return self.file.campaign

    @property
    def within_budget(self) -> bool:
        return self.curve[-1][1] <= self.campaign.budget.epsilon

    def as_dict(self) -> dict[str, object]:
        budget = self.campaign.budget
        answer: dict[str, object] = {
            "name": self.campaign.name,
            "seal": self.campaign.seal,
            "within_budget": self.within_budget,
            "affordable_slots": self.affordable,
            "slots": self.spending.slots,
            "budget": {
                "epsilon": budget.epsilon,
                "delta": budget.delta,
                "adjacency": str(budget.adjacency),
            },
            "certificate": None if self.certificate is None else self.certificate.as_dict(),
            "spending": [{"slots": slots, "epsilon": epsilon} for slots, epsilon in self.curve],
            "rounding": ROUNDING,
            "missing": list(self.campaign.missing),
        }
        if self.before is not None:
            answer["ledger"] = {
                "head": self.before.ledger.head,
                "runs": len(self.before.ledger.runs),
                "epsilon": self.before.certificate.epsilon,
            }
        return answer

    def excess(self) -> str:
        """What is wrong with the budget, by its line."""
        from checkins.accounting.design import MOST_EPSILON
        from checkins.cli import digits
        from checkins.errors import InvalidValue

        budget = self.campaign.budget
        terms = f"delta = {budget.delta!r}, {budget.adjacency}"
        costs = f"is exceeded by far: no epsilon below {MOST_EPSILON:g} is proved ({terms})"
        if self.certificate is not None:
            after, brings = "", "costs"
            if self.before is not None:
                after = f"after the {digits.up(self.before.certificate.epsilon)} of the ledger, "
                brings = "brings the cost to"
            total = digits.up(self.certificate.epsilon)
            costs = f"is exceeded: {after}the campaign {brings} {total} ({terms})"
        if self.affordable is not None:
            costs += f" and would stop after {self.affordable:,} of {self.spending.slots:,} slots"
        return str(self.file.refusal(InvalidValue("epsilon", budget.epsilon, costs)))

    def hint(self) -> str:
        """What would keep the budget, where that is found in a few seconds."""
        if self.certificate is None or self.before is not None:
            return GENERAL_ADVICE
        return _remedy(self.campaign) or GENERAL_ADVICE


def _spending(campaign: Campaign, before: Verification | None) -> Spending:
    """The runs that are still to come, after those that a ledger holds."""
    from checkins.campaign.spending import Spending
    from checkins.ledger import spending_of

    return Spending(campaign) if before is None else spending_of(before.ledger, campaign)


def _price(spending: Spending) -> Certificate | None:
    """The price of all of it; None where the file is right and no epsilon is proved."""
    from checkins.campaign.partial_runs import PartialRun
    from checkins.campaign.spending import price
    from checkins.errors import InvalidValue

    try:
        left = replace(PartialRun.whole(spending.campaign), times=spending.repeats_left)
        return price([*spending.earlier, left], compare=True, rule=spending.rule)
    except InvalidValue as error:
        if _is_unbounded(error):
            return None
        raise


def _affordable(spending: Spending) -> int | None:
    """How far the budget goes; None where the search meets a price that is not bounded."""
    from checkins.errors import InvalidValue

    try:
        return spending.affordable_slots
    except InvalidValue as error:
        if _is_unbounded(error):
            return None
        raise


def _is_unbounded(error: Exception) -> bool:
    """Whether the accountant found no epsilon at this delta, or nothing left of delta."""
    return getattr(error, "name", None) in ("delta", "variation")


def _remedy(campaign: Campaign) -> str | None:
    """A value that keeps the budget, if the campaign may have it."""
    from checkins.accounting import Adjacency, GaussianNoise, Parameter, calibrate
    from checkins.campaign.partial_runs import PartialRun
    from checkins.campaign.spending import Spending
    from checkins.cli import tables
    from checkins.errors import CheckinsError

    gaussian = isinstance(campaign.design.randomizer, GaussianNoise)
    if gaussian and campaign.budget.adjacency is Adjacency.REPLACE_ONE:
        return None
    parameter = Parameter.NOISE_MULTIPLIER if gaussian else Parameter.LOCAL_EPSILON
    key = parameter.replace("-", "_")
    try:
        found = calibrate(
            campaign.design,
            parameter=parameter,
            epsilon=campaign.budget.epsilon,
            delta=campaign.budget.delta,
            adjacency=campaign.budget.adjacency,
            campaigns=campaign.repeats,
            variation=PartialRun.whole(campaign).variation,
        )
        value = tables.safe_value(parameter, found.value)
        noise = replace(campaign.design.randomizer, **{key: float(value)})  # type: ignore[arg-type]  # a float's key
        other = replace(campaign, design=replace(campaign.design, randomizer=noise))
        kept = Spending(other).within_budget
    except CheckinsError:
        return None
    return f"; {key} = {value} would keep it" if kept else None


def _parts(checked: _Checked) -> Iterator[RenderableType]:
    from rich.text import Text

    from checkins.cli import campaign_words, digits, tables

    campaign, budget = checked.campaign, checked.campaign.budget
    terms = f"delta = {budget.delta!r}, {budget.adjacency}"
    yield Text.assemble((quoted(campaign.name), "bold"), f" ({quoted(checked.file.path)})")
    yield Text(f"Seal: {campaign.seal}")
    yield Text(campaign_words.one_slot(campaign))
    after = ""
    if checked.before is not None:
        ledger, spent = checked.before.ledger, digits.up(checked.before.certificate.epsilon)
        runs = f"{len(ledger.runs):,} run{'' if len(ledger.runs) == 1 else 's'}"
        yield Text(f"Before it, the ledger holds {runs}: epsilon <= {spent} ({terms}).")
        yield Text(f"Head of the ledger: {ledger.head}")
        after = ", with the ledger"
    yield ""
    if checked.certificate is None:
        yield Text("No epsilon is proved: the budget is exceeded by far.")
    else:
        yield from tables.certificate_parts(checked.certificate)
    yield Text(f"\nSpent along the way{after} ({terms}; epsilon rounded up):")
    table = tables.plain_table("slots", "epsilon", right=("slots", "epsilon"))
    for slots, epsilon in checked.curve:
        table.add_row(f"{slots:,}", digits.up(epsilon))
    yield table
    yield from tables.listed(
        "Missing before clients can join", campaign_words.missing_lines(campaign)
    )
    if checked.within_budget:
        yield Text(
            f"The budget, epsilon = {budget.epsilon:g} at delta = {budget.delta!r}"
            f" ({budget.adjacency}), is kept."
        )
