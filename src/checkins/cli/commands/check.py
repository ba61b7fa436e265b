"""`checkins check`: validate a campaign file and compare its certificate with its budget."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from checkins.cli import params, terminal
from checkins.cli.commands.verify import ledger_file
from checkins.cli.errors import UsageError, failed, quoted
from checkins.errors import DeltaExhausted, InvalidValue, NotCovered

if TYPE_CHECKING:
    from pathlib import Path

    from checkins.accounting import Certificate
    from checkins.campaign import Campaign, CampaignFile
    from checkins.campaign.spending import Spending
    from checkins.ledger.verification import Verification

Found = TypeVar("Found")
LEDGER = params.text(
    "--ledger",
    "DIR",
    "The ledger of the population: a folder that contains ledger.jsonl, or that file. The"
    " certificate then covers the runs in the ledger and this campaign together.",
)
ROUNDING = "epsilon is rounded up, affordable_slots down"
CURVE_SECONDS = 3.0
"""Processor time, in seconds, after which no further point of the curve is computed."""
GENERAL_ADVICE = "; add noise, or run fewer slots"


@params.command(params.CAMPAIGN_FILE, LEDGER, params.JSON)
def check(given: params.GivenOptions) -> None:
    """Validate a campaign file and show its certificate.

    Exit code 0: the campaign is within its budget. 1: it exceeds its budget and would stop before
    its end, or the ledger is not valid. 2: the file is not a valid campaign, or it does not match
    the ledger.
    """
    path = ledger_file(given.texts["ledger"]) if "ledger" in given else None
    with terminal.working("computing the certificate", quiet=given.json):
        from checkins.campaign import read_campaign

        found = read_campaign(given.values["file"])
        before = None if path is None else _verified(path, found)
        try:
            checked = CheckedCampaign.of(found, before)
            hint = "" if checked.within_budget else checked.hint()
        except InvalidValue as error:
            raise found.refusal(error) from error
    if given.json:
        terminal.show_json(checked.as_dict())
    else:
        from checkins.cli.views.campaign import checked_parts

        terminal.show(*checked_parts(checked))
    if not checked.within_budget:
        raise failed(f"{checked.excess()}{hint}")


def _verified(path: Path, file: CampaignFile) -> Verification:
    """Verify the ledger. Raise if the campaign cannot be appended to it."""
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
        raise UsageError(f"{quoted(file.path)} does not match {path}: {error}") from error
    return verified


@dataclass(frozen=True, slots=True)
class CheckedCampaign:
    """A campaign file with its certificate.

    ``before`` is the verified ledger of ``--ledger``, or None. ``certificate`` is None if no
    epsilon is proved. ``affordable`` is the number of slots that the budget allows, or None if it
    could not be computed. ``curve`` has pairs: a number of slots, and epsilon after these slots.
    """

    file: CampaignFile
    before: Verification | None
    spending: Spending
    certificate: Certificate | None
    affordable: int | None
    curve: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, file: CampaignFile, before: Verification | None) -> CheckedCampaign:
        from checkins.campaign.partial_runs import PartialRun
        from checkins.campaign.spending import Spending, certify_runs
        from checkins.ledger import spending_of

        campaign = file.campaign
        spending = Spending(campaign) if before is None else spending_of(before.ledger, campaign)
        left = replace(PartialRun.whole(campaign), times=spending.repeats_left)
        runs = [*spending.earlier, left]
        started = time.process_time()
        certificate = _or_none(lambda: certify_runs(runs, compare=True, rule=spending.rule))
        epsilon = math.inf if certificate is None else certificate.epsilon
        slots = spending.slots
        curve = {slots: epsilon}
        if certificate is not None:
            for place in (slots // 2, 1, slots // 4, slots * 3 // 4):
                if time.process_time() - started > CURVE_SECONDS:
                    break
                if max(1, place) not in curve:
                    curve.update(spending.curve([max(1, place)]))
        within_budget = epsilon <= file.campaign.budget.epsilon
        affordable = slots if within_budget else _or_none(lambda: spending.affordable_slots)
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
        """Return the message that the budget is exceeded. It names the line in the file."""
        from checkins import formatting
        from checkins.accounting.design import MOST_EPSILON

        budget = self.campaign.budget
        terms = f"delta = {budget.delta!r}, {budget.adjacency}"
        problem = f"is exceeded by far: no epsilon below {MOST_EPSILON:g} is proved ({terms})"
        if self.certificate is not None:
            what = "the campaign has"
            if self.before is not None:
                spent = formatting.up(self.before.certificate.epsilon)
                what = f"the ledger has epsilon <= {spent}, and with the campaign it has"
            total = formatting.up(self.certificate.epsilon)
            problem = f"is exceeded: {what} epsilon <= {total} ({terms})"
        if self.affordable is not None:
            problem += f" and would stop after {self.affordable:,} of {self.spending.slots:,} slots"
        return str(self.file.refusal(InvalidValue("epsilon", budget.epsilon, problem)))

    def hint(self) -> str:
        """Return a change of the file that would keep the budget, or general advice."""
        if self.certificate is None or self.before is not None:
            return GENERAL_ADVICE
        return _remedy(self.campaign) or GENERAL_ADVICE


def _or_none(compute: Callable[[], Found]) -> Found | None:
    """Return the result of ``compute``. Return None if no epsilon is proved."""
    try:
        return compute()
    except (NotCovered, DeltaExhausted):
        return None


def _remedy(campaign: Campaign) -> str | None:
    """Return a value of the noise parameter that keeps the budget. None: no value was found."""
    from checkins.accounting import Adjacency, GaussianNoise, Parameter, calibrate
    from checkins.campaign.partial_runs import PartialRun
    from checkins.campaign.spending import Spending
    from checkins.cli.views import certificate
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
        value = certificate.safe_value(parameter, found.value)
        noise = replace(campaign.design.randomizer, **{key: float(value)})  # type: ignore[arg-type]  # the field is a float
        other = replace(campaign, design=replace(campaign.design, randomizer=noise))
        within_budget = Spending(other).within_budget
    except CheckinsError:
        return None
    return f"; {key} = {value} would keep it" if within_budget else None
