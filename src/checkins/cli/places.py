"""Where results go: looked at before the work, and nothing is made there before there are any."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from checkins.cli.failures import Refused, quoted


def check_folder(out: Path) -> None:
    """Refuse a folder that could not be made, or not be written to; it is not made."""
    there = out
    with _told(out, "a folder"):
        while not there.exists() and there != there.parent:
            there = there.parent
        if not there.is_dir():
            raise Refused(f"--out {quoted(out)}: cannot be written: {quoted(there)} is a file")
        _try_to_write(there)


def check_file(out: Path, *, force: bool, instead: str = "") -> None:
    """Refuse a file that exists, unless it may be overwritten, or that could not be made."""
    with _told(out, "a file"):
        if out.is_dir():
            raise Refused(f"--out {quoted(out)}: is a folder; name a file in it")
        if out.exists() and not force:
            raise Refused(f"--out {quoted(out)}: exists already; --force overwrites it{instead}")
        if not out.parent.is_dir():
            raise Refused(
                f"--out {quoted(out)}: there is no folder {quoted(out.parent)}; make it first"
            )
        _try_to_write(out.parent)


def _try_to_write(folder: Path) -> None:
    with tempfile.TemporaryFile(dir=folder):
        pass


@contextmanager
def _told(out: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Refused(f"--out {quoted(out)}: cannot be written: {error.strerror}") from error
    except ValueError:
        raise Refused(f"--out {quoted(out)}: is not the name of {what}") from None
