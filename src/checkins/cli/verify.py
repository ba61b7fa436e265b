"""`checkins verify`: is this ledger what was written, and what did it really cost?"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from checkins.cli import failures, options, remote, screen
from checkins.cli.failures import Refused, quoted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from checkins.ledger.verification import Verification

Place = Annotated[str, typer.Argument(metavar="DIR|URL", show_default=False)]
Head = Annotated[
    options.Texts,
    options.text("--head", "HASH", "The hash of the last line, as it was published elsewhere."),
]
ClosedOnly = Annotated[
    bool, typer.Option("--closed", help="Refuse a ledger whose last campaign is still open.")
]

SEAL_DIGITS = 12
LONGEST_NAME = 24
LONG_BYTES = 1_000_000
"""Below it a ledger is read before a bar could be seen."""


def verify(
    context: typer.Context,
    place: Place,
    head: Head = None,
    closed: ClosedOnly = False,
    json: options.Json = False,
) -> None:
    """Recompute the certificate of a ledger, and refuse a tampered one.

    DIR holds ledger.jsonl, or is that file; URL is a coordinator's address, or URL/campaigns/ID.
    Every hash, seal, model and price is computed again. Without --head, a ledger that was cut at
    the end of a line or rewritten as a whole passes for one that was kept.

    Exit code 0: it is whole and within its budget; 1: it is refused, or more was spent than its
    budget; 2: there is no ledger.
    """
    given = options.Given.of(context)
    expected = _head(given)
    from checkins.ledger import verification
    from checkins.ledger.line import InvalidLedger

    try:
        with _opened(place, quiet=json) as (watched, path):
            verified = verification.verify(watched, head=expected, closed=closed, path=path)
    except InvalidLedger as error:
        raise failed(str(error)) from error
    if json:
        screen.show_json(verified.as_dict())
    else:
        screen.show(*_parts(verified))
    if not verified.within_budget:
        raise failed(f"{path}: {_excess(verified)}")


@contextmanager
def _opened(place: str, *, quiet: bool) -> Iterator[tuple[Iterable[bytes], str]]:
    """The lines of a ledger, from a file or from a service, and what messages call it."""
    if remote.is_address(place):
        with (
            remote.service(place) as (http, run),
            remote.ledger(http, run) as (pieces, address),
            screen.working("fetching and recomputing the ledger", quiet=quiet),
        ):
            yield _split(pieces), address
        return
    from checkins.ledger.file import lines

    path = ledger_file(place)
    with _watched(lines(path), path, quiet=quiet) as watched:
        yield watched, str(path)


def _split(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Lines with their newlines, however they arrive; a line that never ends is not collected."""
    from checkins.ledger.line import MOST_LINE_BYTES

    rest = bytearray()
    for chunk in chunks:
        whole, newline, last = chunk.rpartition(b"\n")
        if newline:
            yield from bytes(rest + whole + newline).splitlines(keepends=True)
            rest = bytearray(last)
        else:
            rest += chunk
        if len(rest) > MOST_LINE_BYTES:
            break
    if rest:
        yield bytes(rest)


def failed(problem: str) -> typer.Exit:
    """Exit code 1, once one line on standard error has said why."""
    print(f"checkins: {failures.one_line(problem)}", file=sys.stderr)
    return typer.Exit(failures.FAILURE)


def _excess(verified: Verification) -> str:
    from checkins.cli import digits

    certificate = verified.certificate
    return (
        f"the budget of the population, epsilon = {verified.budget:g}, is exceeded: what was run"
        f" costs {digits.up(certificate.epsilon)} (delta = {certificate.delta!r},"
        f" {certificate.adjacency})"
    )


def _head(given: options.Given) -> str | None:
    if "head" not in given:
        return None
    if not re.fullmatch(r"[0-9a-f]{64}", given.texts["head"]):
        raise given.contradiction("head", "must be 64 hexadecimal digits, as verify prints them")
    return given.texts["head"]


def ledger_file(place: str) -> Path:
    """The file of the ledger; what cannot be one is the caller's mistake."""
    from checkins.ledger.file import NAME, ledger_path

    if re.match(r"[a-z][a-z0-9+.-]*://", place, re.IGNORECASE):
        raise Refused(
            f"{quoted(place)}: must be a folder, a {NAME}, or the address of a coordinator"
        )
    try:
        path = ledger_path(place)
        found, folder = path.exists(), Path(place).is_dir()
    except (OSError, ValueError):  # a name that no file can have
        raise Refused(f"{quoted(place)}: is not the name of a file or folder") from None
    if not found:
        missing = f"holds no {NAME}" if folder else "no such file or folder"
        raise Refused(f"{quoted(place)}: {missing}")
    if path.is_dir():
        raise Refused(f"{quoted(str(path))}: is a folder, not a ledger")
    return path


@contextmanager
def _watched(lines: Iterable[bytes], path: Path, *, quiet: bool) -> Iterator[Iterable[bytes]]:
    """A bar for a long ledger, for people at a terminal; a spinner for a short one."""
    size = path.stat().st_size
    if quiet or size < LONG_BYTES or not sys.stderr.isatty():
        with screen.working("recomputing the ledger", quiet=quiet):
            yield lines
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("recomputing the ledger"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=size)

        def counted() -> Iterator[bytes]:
            for line in lines:
                yield line
                progress.advance(bar, len(line))

        yield counted()


def _short(name: str) -> str:
    """A name that leaves room for the facts."""
    return quoted(name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}...")


def _parts(verified: Verification) -> Iterator[RenderableType]:
    """What is whole, campaign by campaign; then what it costs, and what it rests on."""
    from rich.text import Text

    from checkins.cli import tables

    entries = verified.ledger.entries
    yield Text.assemble(
        ("The ledger is whole", "bold green"),
        f": {entries:,} {'entry' if entries == 1 else 'entries'}, every hash, seal and model"
        " recomputed.",
    )
    table = tables.plain_table("campaign", "run", "slots", "status", "seal", right=("run", "slots"))
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
            f" {current.campaign.design.slots:,} slots. This is the price so far; only --head tells"
            " whether lines were cut off."
        )
    yield ""
    yield from tables.certificate_parts(verified.certificate)
    held = "is kept" if verified.within_budget else "is exceeded"
    yield f"The budget of the population, epsilon = {verified.budget:g}, {held}."
    if verified.simulated:
        yield "Simulated: the noise came from a seed, and protects nobody."
    yield from tables.listed("Notes", verified.notes)
