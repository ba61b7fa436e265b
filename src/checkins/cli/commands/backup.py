"""`checkins backup`: copy an SQLite store while its coordinator runs."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Annotated

import typer

from checkins.cli import params, terminal
from checkins.cli.errors import UsageError, missing_extra, quoted
from checkins.cli.params import GivenOptions, Texts, text

Store = Annotated[Texts, text("--store", "URL", "sqlite:///FILE.db, as given to serve.")]
Out = Annotated[Texts, text("--out", "FILE", "The file to write the copy to.")]


def backup(
    context: typer.Context, store: Store = None, out: Out = None, json: params.Json = False
) -> None:
    """Copy an SQLite store while its coordinator runs.

    The copy is marked as a copy. Serve it with --restore: every campaign that was running in it is
    then ended and accounted up to the last slot that its budget allows, since releases after the
    copy was made are unknown. The witness file is not copied.
    """
    given = GivenOptions.of(context)
    place = given.required("store", "sqlite:///FILE.db")
    path = Path(given.required("out", "a file that does not exist"))
    if path.exists():
        raise UsageError(f"--out {quoted(str(path))}: exists already; name another file")
    try:
        from sqlalchemy.exc import DBAPIError

        from checkins.service import backup
        from checkins.service.settings import redacted_url
    except ImportError as error:
        raise missing_extra("backup", "service", error) from error
    masked = GivenOptions({**given.texts, "store": redacted_url(place)})
    try:
        with masked.naming_options():
            epoch = backup.back_up(place, path)
    except (sqlite3.DatabaseError, DBAPIError) as error:
        raise UsageError(f"--store {redacted_url(place)}: is not a store of checkins") from error
    if json:
        terminal.show_json({"path": str(path), "epoch": epoch, "bytes": path.stat().st_size})
        return
    terminal.show_plain(f"Wrote {path}: a copy of epoch {epoch}, {path.stat().st_size:,} bytes.")
    terminal.show_plain(f"To use it: checkins serve --store sqlite:///{path} --restore")
