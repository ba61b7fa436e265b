"""`checkins verify`: check the hash chain of a ledger and recompute its certificate."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from checkins.cli import params, remote, terminal
from checkins.cli.errors import UsageError, failed, quoted

if TYPE_CHECKING:
    from checkins.ledger.verification import Verification

LONG_BYTES = 1_000_000
"""A progress bar is shown for a ledger of at least this size."""


@params.command(
    params.argument("place", "DIR|URL"),
    params.text("--head", "HASH", "The hash that the last line must have, as published elsewhere."),
    params.flag("--closed", "Exit with 1 if the last campaign of the ledger is still open."),
    params.JSON,
)
def verify(given: params.GivenOptions) -> None:
    """Recompute the certificate of a ledger.

    Every hash, seal, model and epsilon is computed again, and a ledger that was changed is refused.
    DIR is a folder that contains ledger.jsonl, or that file. URL is the address of a coordinator,
    or URL/campaigns/ID. Two changes are detected only with --head: lines were removed at the end,
    or the whole ledger was written anew.

    Exit code 0: the ledger is intact and within its budget. 1: the ledger is refused, or its budget
    is exceeded. 2: there is no ledger.
    """
    expected, closed = _head(given), given.values["closed"]
    from checkins.ledger import verification
    from checkins.ledger.line import InvalidLedger

    try:
        with _opened(given.values["place"], quiet=given.json) as (watched, path):
            verified = verification.verify(watched, head=expected, closed=closed, path=path)
    except InvalidLedger as error:
        raise failed(str(error)) from error
    if given.json:
        terminal.show_json(verified.as_dict())
    else:
        from checkins.cli.views.campaign import ledger_parts

        terminal.show(*ledger_parts(verified))
    if not verified.within_budget:
        raise failed(f"{path}: {_excess(verified)}")


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
    from checkins.ledger.line import MOST_LINE_BYTES

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


def _head(given: params.GivenOptions) -> str | None:
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
            f"{quoted(place)}: must be a folder, a {NAME}, or the address of a coordinator"
        )
    try:
        path = ledger_path(place)
        found, folder = path.exists(), Path(place).is_dir()
    except (OSError, ValueError):  # not a valid file name
        raise UsageError(f"{quoted(place)}: is not the name of a file or folder") from None
    if not found:
        missing = f"contains no {NAME}" if folder else "no such file or folder"
        raise UsageError(f"{quoted(place)}: {missing}")
    if path.is_dir():
        raise UsageError(f"{quoted(str(path))}: is a folder, not a ledger")
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
