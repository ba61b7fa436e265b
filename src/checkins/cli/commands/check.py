"""`checkins check` validates a campaign file; `checkins verify` checks the hash chain of a ledger.

A ledger is the file in which a service records every release of its campaigns. Both commands
compute a certificate again and compare its epsilon with the budget.
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
from checkins.cli.params import GivenOptions, options
from checkins.cli.terminal import UsageError, print_failure, printable
from checkins.errors import DeltaExhausted, InvalidValue, NotCovered

if TYPE_CHECKING:
    from checkins.accounting import Certificate
    from checkins.campaign import Campaign, CampaignFile
    from checkins.campaign.spending import Spending
    from checkins.ledger import Ledger
    from checkins.ledger.signature import SignedHead
    from checkins.ledger.verification import Verification

Result = TypeVar("Result")
LEDGER_OPTIONS = options("""
    --ledger DIR  The ledger, a record of earlier runs with the same clients: a folder with
        ledger.jsonl, or that file. The certificate then covers the runs in the ledger and this
        campaign together.
""")
ROUNDING_TEXT = "epsilon is rounded up, affordable_slots down"
CURVE_SECONDS = 3.0
"""Processor time in seconds after which no further point of the epsilon curve is computed."""
SIGNATURE_NAME = "signature.json"
"""Name of the file with a signed head in the folder of a ledger."""
GENERAL_ADVICE = "; add noise, or run fewer slots"
PROGRESS_BAR_BYTES = 1_000_000
"""Smallest size of a ledger for which a progress bar is shown. Verifying it takes seconds."""


@params.command(params.CAMPAIGN_FILE_ARGUMENT, *LEDGER_OPTIONS, params.JSON_OPTION)
def check(given: GivenOptions) -> None:
    """Validate a campaign file and show its certificate.

    Exit code 0: the campaign is within its privacy budget. 1: the campaign exceeds its budget, so
    it would stop early, or the ledger is not valid. 2: the file is not a valid campaign, or it
    cannot follow the runs in the ledger.
    """
    path = ledger_file(given.texts["ledger"]) if "ledger" in given else None
    with terminal.spinner("computing the certificate", quiet=given.json):
        from checkins.campaign import read_campaign

        campaign_file = read_campaign(given.values["file"])
        earlier = None if path is None else _verify_ledger(path, campaign_file)
        try:
            _check_dimension(campaign_file.campaign)
            checked = CheckedCampaign.of(campaign_file, earlier)
            hint = "" if checked.within_budget else checked.hint()
        except InvalidValue as error:
            raise campaign_file.refusal(error) from error
    if given.json:
        terminal.show_json(checked.as_dict())
    else:
        from checkins.cli.views.certificate import checked_parts

        terminal.show(*checked_parts(checked))
    if not checked.within_budget:
        raise print_failure(f"{checked.excess_message()}{hint}")


def _check_dimension(campaign: Campaign) -> None:
    """Raise InvalidValue if a model of this package has another dimension than the file states.

    The user's own models are not imported. A simulation compares their dimension.
    """
    task = campaign.task
    if campaign.randomizer.dimension is None or task is None or ":" in task.model:
        return
    from checkins.tasks.loaded_task import model_of

    try:
        parameters = model_of(task).dimension
    except InvalidValue:  # the number of classes is known only from the data
        return
    campaign.randomizer.check_dimension(parameters)


def _verify_ledger(path: Path, file: CampaignFile) -> Verification:
    """Verify the ledger. Raise if the campaign cannot be appended to it."""
    from checkins.ledger import InvalidLedger, lines, verify

    try:
        verified = verify(lines(path), path=str(path))
    except InvalidLedger as error:
        raise print_failure(str(error)) from error
    ledger = verified.ledger
    try:
        ledger.append(
            ledger.opening(
                file.campaign,
                model=[0.0] * (file.campaign.randomizer.dimension or 1),
                simulated=ledger.runs[0].simulated,
            )
        )
    except InvalidLedger as error:
        raise UsageError(f"{printable(file.path)} does not match {path}: {error}") from error
    return verified


@dataclass(frozen=True, slots=True)
class CheckedCampaign:
    """A campaign file with its certificate.

    ``earlier`` is the verified ledger of ``--ledger``, or None without that option. ``certificate``
    is None if no epsilon is proved. ``affordable_slots`` is the number of slots that the budget
    allows, or None if it could not be computed. ``curve`` has pairs: a number of slots, and the
    epsilon of their releases.
    """

    file: CampaignFile
    earlier: Verification | None
    spending: Spending
    certificate: Certificate | None
    affordable_slots: int | None
    curve: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, file: CampaignFile, earlier: Verification | None) -> CheckedCampaign:
        """Compute the certificate and the curve of a campaign, after the runs of ``earlier``."""
        from checkins.campaign.partial_runs import PartialRun
        from checkins.campaign.spending import Spending, certify_runs
        from checkins.ledger import spending_of

        campaign = file.campaign
        spending = Spending(campaign) if earlier is None else spending_of(earlier.ledger, campaign)
        remaining = replace(PartialRun.whole(campaign), times=spending.remaining_repeats)
        runs = [*spending.earlier, remaining]
        started = time.process_time()
        certificate = _if_proved(
            lambda: certify_runs(runs, compare=True, privacy_filter=spending.privacy_filter)
        )
        epsilon = math.inf if certificate is None else certificate.epsilon
        slots = spending.remaining_slots
        curve = {slots: epsilon}
        if certificate is not None:
            for count in (slots // 2, 1, slots // 4, slots * 3 // 4):
                if time.process_time() - started > CURVE_SECONDS:
                    break
                if max(1, count) not in curve:
                    curve.update(spending.curve([max(1, count)]))
        within_budget = epsilon <= file.campaign.budget.epsilon
        affordable = slots if within_budget else _if_proved(lambda: spending.affordable_slots)
        return cls(file, earlier, spending, certificate, affordable, tuple(sorted(curve.items())))

    @property
    def campaign(self) -> Campaign:
        return self.file.campaign

    @property
    def within_budget(self) -> bool:
        return self.curve[-1][1] <= self.campaign.budget.epsilon

    def as_dict(self) -> dict[str, object]:
        budget = self.campaign.budget
        result: dict[str, object] = {
            "name": self.campaign.name,
            "seal": self.campaign.seal,
            "within_budget": self.within_budget,
            "affordable_slots": self.affordable_slots,
            "slots": self.spending.remaining_slots,
            "budget": {
                "epsilon": budget.epsilon,
                "delta": budget.delta,
                "adjacency": str(budget.adjacency),
            },
            "certificate": None if self.certificate is None else self.certificate.as_dict(),
            "spending": [{"slots": slots, "epsilon": epsilon} for slots, epsilon in self.curve],
            "rounding": ROUNDING_TEXT,
            "missing": list(self.campaign.missing),
        }
        if self.earlier is not None:
            result["ledger"] = {
                "head": self.earlier.ledger.head,
                "runs": len(self.earlier.ledger.runs),
                "epsilon": self.earlier.certificate.epsilon,
            }
        return result

    def excess_message(self) -> str:
        """Return the error that the budget is exceeded. It names the line in the file."""
        from checkins import formatting
        from checkins.accounting.design import MOST_EPSILON

        budget = self.campaign.budget
        delta_text = f"delta = {budget.delta!r}, {budget.adjacency}"
        problem = f"is exceeded by far: no epsilon below {MOST_EPSILON:g} is proved ({delta_text})"
        if self.certificate is not None:
            subject = "the campaign has"
            if self.earlier is not None:
                spent = formatting.up(self.earlier.certificate.epsilon)
                subject = f"the ledger has epsilon <= {spent}, and together with the campaign"
            total = formatting.up(self.certificate.epsilon)
            problem = f"is exceeded: {subject} epsilon <= {total} ({delta_text})"
        if self.affordable_slots is not None:
            stop = f"{self.affordable_slots:,} of {self.spending.remaining_slots:,} slots"
            problem += f"; the campaign would stop after {stop}"
        return str(self.file.refusal(InvalidValue("epsilon", budget.epsilon, problem)))

    def hint(self) -> str:
        """Return advice on how to stay within the budget. It names a value if one is known."""
        if self.certificate is None or self.earlier is not None:
            return GENERAL_ADVICE
        return _noise_advice(self.campaign) or GENERAL_ADVICE


def _if_proved(compute: Callable[[], Result]) -> Result | None:
    """Return the result of ``compute``, or None if it raises because no epsilon is proved."""
    try:
        return compute()
    except (NotCovered, DeltaExhausted):
        return None


def _noise_advice(campaign: Campaign) -> str | None:
    """Return advice that names a noise level within the budget, or None if none was found."""
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
        calibration = calibrate(
            campaign.design,
            parameter=parameter,
            epsilon=campaign.budget.epsilon,
            delta=campaign.budget.delta,
            adjacency=campaign.budget.adjacency,
            campaigns=campaign.repeats,
            variation=PartialRun.whole(campaign).variation,
        )
        value = certificate.calibrated_value_text(parameter, calibration.value)
        noise = replace(campaign.design.randomizer, **{key: float(value)})  # type: ignore[arg-type]  # the field is a float
        changed = replace(campaign, design=replace(campaign.design, randomizer=noise))
        within_budget = Spending(changed).within_budget
    except CheckinsError:
        return None
    advice = f"; with {key} = {value} the campaign would be within its budget"
    return advice if within_budget else None


@params.command(
    params.argument("location", "DIR|URL"),
    *options("""
    --head HASH  Hash that the last line of the ledger must have, known from another source: 64
        hexadecimal digits.
    --key KEY  Public key of the service, known from another source: ed25519: and 64 hexadecimal
        digits. The ledger must be signed with this key, or with a key that replaced it.
    --signature FILE  For DIR with --key: the signed hash of a line, as GET
        URL/campaigns/ID/ledger/heads/LINES/signature returns it. Default: DIR/signature.json.
    --closed  Refuse the ledger if its last run is still open.
    """),
    *remote.CONNECTION_OPTIONS,
    params.JSON_OPTION,
)
def verify(given: GivenOptions) -> None:
    """Check a ledger and recompute its certificate.

    A ledger is the file in which a service records every release of its campaigns. The command
    computes every hash, seal, model and epsilon again, and refuses a ledger that was changed. DIR
    is a folder with ledger.jsonl, or that file. URL is the address of a service, or
    URL/campaigns/ID. Only --head and --key detect that lines were removed at the end, or that the
    whole ledger was replaced.

    Exit code 0: the ledger is intact, and its runs are within the budget. 1: the ledger is refused,
    or its runs exceed the budget. 2: there is no ledger.
    """
    head, closed = _expected_head(given), given.values["closed"]
    from checkins.ledger import verification
    from checkins.ledger.entry import InvalidLedger

    key = _trusted_key(given)
    try:
        with _open_ledger(given) as ledger:
            signed = None if key is None else ledger.saved_signature()
            verified = verification.verify(
                ledger.lines,
                head=head,
                checkpoint=None if signed is None else (signed.entries, signed.head),
                require_closed=closed,
                path=ledger.path,
            )
            if key is not None:
                place = str(ledger.signature_file)
                if signed is None:
                    signed, place = ledger.fetch_signature(verified.ledger)
                population = verified.ledger.runs[-1].campaign.population_key
                signed.check(trusted_key=key, population=population, place=place)
    except InvalidLedger as error:
        raise print_failure(str(error)) from error
    if given.json:
        signature = signed and {"key": signed.key, "entries": signed.entries}
        terminal.show_json({**verified.as_dict(), "signature": signature})
    else:
        from checkins.cli.views.certificate import ledger_parts

        terminal.show(*ledger_parts(verified, signed))
    if not verified.within_budget:
        raise print_failure(f"{ledger.path}: {_excess_message(verified)}")


@dataclass(frozen=True, slots=True)
class LedgerSource:
    """A ledger in a file or at a service. ``path`` is its path or URL, for error messages.

    ``signature_file`` is the file with a signed head, or None to fetch one with ``fetch``.
    """

    lines: Iterable[bytes]
    path: str
    signature_file: Path | None
    fetch: Callable[[int], tuple[bytes, str]] | None = None

    def saved_signature(self) -> SignedHead | None:
        """Return the signed head in the file; None if it is to be fetched."""
        from checkins.ledger.signature import SignedHead

        if self.signature_file is None:
            return None
        try:
            content = self.signature_file.read_bytes()
        except OSError as error:
            raise UsageError(
                f"--signature {printable(self.signature_file)}: cannot be read: {error.strerror}"
            ) from error
        return SignedHead.parse(content, place=str(self.signature_file))

    def fetch_signature(self, ledger: Ledger) -> tuple[SignedHead, str]:
        """Fetch the signature of the head of a ledger, and return it with its URL."""
        from checkins.ledger.entry import InvalidLedger
        from checkins.ledger.signature import SignedHead

        if self.fetch is None:
            raise UsageError(f"{printable(self.path)}: --key needs --signature FILE")
        content, url = self.fetch(ledger.entries)
        signed = SignedHead.parse(content, place=url)
        if (signed.entries, signed.head) != (ledger.entries, ledger.head):
            raise InvalidLedger("is signed for another head than that of the ledger", place=url)
        return signed, url


@contextmanager
def _open_ledger(given: GivenOptions) -> Iterator[LedgerSource]:
    """Open the ledger at the path or URL that the command was given."""
    path_or_url, quiet, saved = given.values["location"], given.json, given.path("signature")
    if remote.is_http_url(path_or_url):
        with (
            remote.connect(path_or_url, given) as (http, run),
            remote.stream_ledger(http, run) as (chunks, url),
            terminal.spinner("fetching and recomputing the ledger", quiet=quiet),
        ):

            def fetch(entries: int) -> tuple[bytes, str]:
                return remote.fetch_signed_head(http, run, entries)

            yield LedgerSource(remote.split_lines(chunks), url, saved, fetch)
        return
    from checkins.ledger.file import lines

    path = ledger_file(path_or_url)
    with _with_progress(lines(path), path, quiet=quiet) as watched_lines:
        yield LedgerSource(watched_lines, str(path), saved or path.with_name(SIGNATURE_NAME))


def _trusted_key(given: GivenOptions) -> str | None:
    """Return the public key of ``--key``, or None without this option."""
    if "key" not in given:
        if "signature" in given:
            raise given.invalid("signature", "needs --key")
        return None
    import cryptography  # noqa: F401  # if it is missing, fail before a ledger is fetched

    from checkins.ledger.signature import parse_public_key

    with given.errors_as_option_errors():
        return parse_public_key(given.texts["key"])


def _excess_message(verified: Verification) -> str:
    from checkins import formatting

    certificate = verified.certificate
    return (
        f"the budget of the population, epsilon = {verified.budget:g}, is exceeded: the runs have"
        f" epsilon <= {formatting.up(certificate.epsilon)} (delta = {certificate.delta!r},"
        f" {certificate.adjacency})"
    )


def _expected_head(given: GivenOptions) -> str | None:
    if "head" not in given:
        return None
    if not re.fullmatch(r"[0-9a-f]{64}", given.texts["head"]):
        raise given.invalid("head", "must be 64 hexadecimal digits, as verify prints after Head")
    return given.texts["head"]


def ledger_file(location: str) -> Path:
    """Return the path of the ledger at ``location``, a folder or a file. Raise if there is none."""
    from checkins.ledger.file import LEDGER_NAME, ledger_path

    if re.match(r"[a-z][a-z0-9+.-]*://", location, re.IGNORECASE):
        expected = f"must be a folder, a file {LEDGER_NAME}, or the URL of a coordinator"
        raise UsageError(f"{printable(location)}: {expected}")
    try:
        path = ledger_path(location)
        exists, is_folder = path.exists(), Path(location).is_dir()
    except (OSError, ValueError):  # not a valid file name
        raise UsageError(f"{printable(location)}: is not the name of a file or folder") from None
    if not exists:
        missing = f"contains no {LEDGER_NAME}" if is_folder else "no such file or folder"
        raise UsageError(f"{printable(location)}: {missing}")
    if path.is_dir():
        raise UsageError(f"{printable(str(path))}: is a folder, not a ledger")
    return path


@contextmanager
def _with_progress(lines: Iterable[bytes], path: Path, *, quiet: bool) -> Iterator[Iterable[bytes]]:
    """Yield the lines. Show a progress bar for a long ledger, a spinner for a short one."""
    size = path.stat().st_size
    if size < PROGRESS_BAR_BYTES:
        with terminal.spinner("recomputing the ledger", quiet=quiet):
            yield lines
        return
    with terminal.progress("recomputing the ledger", "{task.percentage:.0f}%", quiet=quiet) as bars:
        if bars is None:
            yield lines
            return
        task = bars.add_task("", total=size)

        def lines_with_progress() -> Iterator[bytes]:
            for line in lines:
                yield line
                bars.advance(task, len(line))

        yield lines_with_progress()
