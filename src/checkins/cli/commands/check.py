"""`checkins check` validates a campaign file; `checkins verify` checks the hash chain of a ledger.

Both recompute a certificate and compare it with the budget.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from checkins.cli import params, remote, terminal
from checkins.cli.errors import UsageError, print_failure, printable
from checkins.cli.params import GivenOptions, options
from checkins.errors import DeltaExhausted, InvalidValue, NotCovered

if TYPE_CHECKING:
    from checkins.accounting import Certificate
    from checkins.campaign import Campaign, CampaignFile
    from checkins.campaign.spending import Spending
    from checkins.ledger.verification import Verification

Found = TypeVar("Found")
LEDGER = options("""
    --ledger DIR  The ledger of the same population: a folder with ledger.jsonl, or that file. The
        certificate then covers the runs in the ledger and this campaign together.
""")
ROUNDING = "epsilon is rounded up, affordable_slots down"
CURVE_SECONDS = 3.0
"""Processor time, in seconds, after which no further point of the curve is computed."""
GENERAL_ADVICE = "; add noise, or run fewer slots"
LONG_BYTES = 1_000_000
"""A progress bar is shown for a ledger of at least this size."""


@params.command(params.CAMPAIGN_FILE, *LEDGER, params.JSON)
def check(given: GivenOptions) -> None:
    """Validate a campaign file and show its certificate.

    Exit code 0: the campaign is within its budget. 1: it exceeds its budget, so it would stop
    early, or the ledger is not valid. 2: the file is not a valid campaign, or it does not match the
    ledger.
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
        raise print_failure(f"{checked.excess()}{hint}")


def _verified(path: Path, file: CampaignFile) -> Verification:
    """Verify the ledger. Raise if the campaign cannot be appended to it."""
    from checkins.ledger import InvalidLedger, lines, verify

    try:
        verified = verify(lines(path), path=str(path))
    except InvalidLedger as error:
        raise print_failure(str(error)) from error
    ledger = verified.ledger
    try:
        ledger.append(
            ledger.opening(file.campaign, model=[0.0], simulated=ledger.runs[0].simulated)
        )
    except InvalidLedger as error:
        raise UsageError(f"{printable(file.path)} does not match {path}: {error}") from error
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
        """Return advice how to keep the budget: a changed value in the file, or general advice."""
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
    """Return advice: a value of the noise parameter that keeps the budget. None: none is known."""
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
    return f"; with {key} = {value} it would be within its budget" if within_budget else None


@params.command(
    params.argument("place", "DIR|URL"),
    *options("""
    --head HASH  Hash that the last line must have, known from elsewhere: 64 hexadecimal digits.
    --closed  Refuse the ledger if its last campaign is still open.
    """),
    params.JSON,
)
def verify(given: GivenOptions) -> None:
    """Check a ledger and recompute its certificate.

    Every hash, seal, model and epsilon is computed again. A ledger that was changed is refused. DIR
    is a folder with ledger.jsonl, or that file. URL is the address of a service, or
    URL/campaigns/ID. Only --head detects that lines were removed at the end, or that the whole
    ledger was replaced.

    Exit code 0: the ledger is intact and within its budget. 1: the ledger is refused, or it exceeds
    its budget. 2: there is no ledger.
    """
    expected, closed = _head(given), given.values["closed"]
    from checkins.ledger import verification
    from checkins.ledger.entry import InvalidLedger

    try:
        with _opened(given.values["place"], quiet=given.json) as (watched, path):
            verified = verification.verify(watched, head=expected, require_closed=closed, path=path)
    except InvalidLedger as error:
        raise print_failure(str(error)) from error
    if given.json:
        terminal.show_json(verified.as_dict())
    else:
        from checkins.cli.views.campaign import ledger_parts

        terminal.show(*ledger_parts(verified))
    if not verified.within_budget:
        raise print_failure(f"{path}: {_excess(verified)}")


@contextmanager
def _opened(place: str, *, quiet: bool) -> Iterator[tuple[Iterable[bytes], str]]:
    """Yield the lines of a ledger and its path or URL."""
    if remote.is_address(place):
        with (
            remote.service(place) as (http, run),
            remote.ledger(http, run) as (pieces, address),
            terminal.working("fetching and recomputing the ledger", quiet=quiet),
        ):
            yield _split(pieces), address
        return
    from checkins.ledger.file import lines

    path = ledger_file(place)
    with _watched(lines(path), path, quiet=quiet) as watched:
        yield watched, str(path)


def _split(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Split chunks of bytes into lines with their newlines. Stop at a line that is too long."""
    from checkins.ledger.entry import MOST_LINE_BYTES

    rest = bytearray()
    for chunk in chunks:
        lines, newline, last = chunk.rpartition(b"\n")
        if newline:
            yield from bytes(rest + lines + newline).splitlines(keepends=True)
            rest = bytearray(last)
        else:
            rest += chunk
        if len(rest) > MOST_LINE_BYTES:
            break
    if rest:
        yield bytes(rest)


def _excess(verified: Verification) -> str:
    from checkins import formatting

    certificate = verified.certificate
    return (
        f"the budget of the population, epsilon = {verified.budget:g}, is exceeded: the runs have"
        f" epsilon <= {formatting.up(certificate.epsilon)} (delta = {certificate.delta!r},"
        f" {certificate.adjacency})"
    )


def _head(given: GivenOptions) -> str | None:
    if "head" not in given:
        return None
    if not re.fullmatch(r"[0-9a-f]{64}", given.texts["head"]):
        raise given.invalid("head", "must be 64 hexadecimal digits, as verify prints them")
    return given.texts["head"]


def ledger_file(place: str) -> Path:
    """Return the path of a ledger. Raise a usage error if there is no ledger."""
    from checkins.ledger.file import NAME, ledger_path

    if re.match(r"[a-z][a-z0-9+.-]*://", place, re.IGNORECASE):
        raise UsageError(
            f"{printable(place)}: must be a folder, a {NAME}, or the address of a coordinator"
        )
    try:
        path = ledger_path(place)
        found, folder = path.exists(), Path(place).is_dir()
    except (OSError, ValueError):  # not a valid file name
        raise UsageError(f"{printable(place)}: is not the name of a file or folder") from None
    if not found:
        missing = f"contains no {NAME}" if folder else "no such file or folder"
        raise UsageError(f"{printable(place)}: {missing}")
    if path.is_dir():
        raise UsageError(f"{printable(str(path))}: is a folder, not a ledger")
    return path


@contextmanager
def _watched(lines: Iterable[bytes], path: Path, *, quiet: bool) -> Iterator[Iterable[bytes]]:
    """Yield the lines, with a progress bar for a long ledger and a spinner for a short one."""
    size = path.stat().st_size
    if size < LONG_BYTES:
        with terminal.working("recomputing the ledger", quiet=quiet):
            yield lines
        return
    with terminal.progress("recomputing the ledger", "{task.percentage:.0f}%", quiet=quiet) as bars:
        if bars is None:
            yield lines
            return
        task = bars.add_task("", total=size)

        def counted() -> Iterator[bytes]:
            for line in lines:
                yield line
                bars.advance(task, len(line))

        yield counted()
