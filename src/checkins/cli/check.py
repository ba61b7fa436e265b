"""`checkins check`: is this campaign file right, what does it cost, does it keep its budget?"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from checkins.cli import failures, options, screen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from checkins.accounting import Certificate
    from checkins.protocol.campaign.description import Campaign
    from checkins.protocol.campaign.file import CampaignFile

File = Annotated[str, typer.Argument(metavar="CAMPAIGN.TOML", hidden=True, show_default=False)]
ROUNDING = "epsilon is rounded up, affordable_slots down"


def check(file: File, json: options.Json = False) -> None:
    """Validate a campaign file and show its certificate.

    Exit code 0: it keeps its budget; 1: it would spend more, and so would stop before its end; 2:
    it is no campaign.
    """
    with screen.working("pricing the campaign", quiet=json):
        from checkins.cli import question

        asked = question.from_files([file], options.Given({}))
        certificate = asked.price()
        with asked.in_the_askers_words():
            checked = _Checked.of(asked.files[0], certificate)
        hint = "" if checked.within_budget else _hint(checked.campaign)
    if json:
        screen.show_json(checked.as_dict())
    else:
        screen.show(*_parts(checked))
    if not checked.within_budget:
        print(f"checkins: {checked.excess()}{hint}", file=sys.stderr)
        raise typer.Exit(failures.FAILURE)


@dataclass(frozen=True, slots=True)
class _Checked:
    """A campaign file, its certificate, and what is spent along the way."""

    file: CampaignFile
    certificate: Certificate
    slots: int
    affordable: int
    curve: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, file: CampaignFile, certificate: Certificate) -> _Checked:
        from checkins.protocol.campaign.spending import Spending

        spending = Spending(file.campaign)
        slots = spending.slots
        kept = certificate.epsilon <= file.campaign.budget.epsilon
        places = sorted({1, *(max(1, slots * quarter // 4) for quarter in (1, 2, 3))} - {slots})
        return cls(
            file,
            certificate,
            slots,
            slots if kept else spending.affordable_slots,
            (*spending.curve(places), (slots, certificate.epsilon)),
        )

    @property
    def campaign(self) -> Campaign:
        return self.file.campaign

    @property
    def within_budget(self) -> bool:
        return self.certificate.epsilon <= self.campaign.budget.epsilon

    def as_dict(self) -> dict[str, object]:
        budget = self.campaign.budget
        return {
            "name": self.campaign.name,
            "seal": self.campaign.seal,
            "within_budget": self.within_budget,
            "affordable_slots": self.affordable,
            "slots": self.slots,
            "budget": {
                "epsilon": budget.epsilon,
                "delta": budget.delta,
                "adjacency": str(budget.adjacency),
            },
            "certificate": self.certificate.as_dict(),
            "spending": [{"slots": slots, "epsilon": epsilon} for slots, epsilon in self.curve],
            "rounding": ROUNDING,
            "missing": list(self.campaign.missing),
        }

    def excess(self) -> str:
        """What is wrong with the budget, by its line."""
        from checkins.cli import digits
        from checkins.errors import InvalidValue

        budget = self.campaign.budget
        cost = (
            f"is exceeded: the campaign costs {digits.up(self.certificate.epsilon)}"
            f" (delta = {budget.delta!r}, {budget.adjacency}) and would stop after"
            f" {self.affordable:,} of {self.slots:,} slots"
        )
        return str(self.file.refusal(InvalidValue("epsilon", budget.epsilon, cost)))


def _parts(checked: _Checked) -> Iterator[RenderableType]:
    from rich.text import Text

    from checkins.cli import campaign_words, digits, tables
    from checkins.cli.failures import quoted

    campaign, budget = checked.campaign, checked.campaign.budget
    yield Text.assemble((quoted(campaign.name), "bold"), f" ({quoted(checked.file.path)})")
    yield Text(f"Seal: {campaign.seal}")
    yield Text(campaign_words.one_slot(campaign))
    yield ""
    yield from tables.certificate_parts(checked.certificate)
    terms = f"delta = {budget.delta!r}, {budget.adjacency}"
    yield Text(f"\nSpent along the way ({terms}; epsilon rounded up):")
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


def _hint(campaign: Campaign) -> str:
    """What would keep the budget, where that is found in a few seconds."""
    from checkins.accounting import Adjacency, GaussianNoise, Parameter, calibrate
    from checkins.cli import tables
    from checkins.errors import CheckinsError
    from checkins.protocol.campaign.spending import RunSoFar

    gaussian = isinstance(campaign.design.randomizer, GaussianNoise)
    if gaussian and campaign.budget.adjacency is Adjacency.REPLACE_ONE:
        return "; add noise, or run fewer slots"
    parameter = Parameter.NOISE_MULTIPLIER if gaussian else Parameter.LOCAL_EPSILON
    try:
        found = calibrate(
            campaign.design,
            parameter=parameter,
            epsilon=campaign.budget.epsilon,
            delta=campaign.budget.delta,
            adjacency=campaign.budget.adjacency,
            campaigns=campaign.repeats,
            variation=RunSoFar.whole(campaign).variation,
        )
    except CheckinsError:
        return "; add noise, or run fewer slots"
    key = parameter.replace("-", "_")
    return f"; {key} = {tables.safe_value(parameter, found.value)} would keep it"
