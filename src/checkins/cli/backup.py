"""`checkins backup`: a copy of a store that cannot be mistaken for the store."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Annotated

import typer

from checkins.cli import options, screen
from checkins.cli.failures import Refused, quoted
from checkins.cli.options import Given, Texts, text

Store = Annotated[Texts, text("--store", "URL", "sqlite:///FILE.db, as given to serve.")]
Out = Annotated[Texts, text("--out", "FILE", "Where the copy goes.")]


def backup(
    context: typer.Context, store: Store = None, out: Out = None, json: options.Json = False
) -> None:
    """Copy a store of SQLite while its coordinator runs.

    The copy says that it is one. Served again with --restore, every campaign that was running in
    it is ended and priced to the last slot that its budget pays for: nobody can know what was
    released after the copy was made. The witness is not copied.
    """
    given = Given.of(context)
    place = given.need("store", "sqlite:///FILE.db")
    path = Path(given.need("out", "a file that does not exist"))
    if path.exists():
        raise Refused(f"--out {quoted(str(path))}: exists already; name another file")
    try:
        from sqlalchemy.exc import DBAPIError

        from checkins.service import backup
        from checkins.service.settings import shown_url
    except ImportError as error:
        raise Refused(
            f"backup needs the extra service ({error.name} is missing):"
            " pip install 'checkins[service]'"
        ) from error
    shown = Given({**given.texts, "store": shown_url(place)})
    try:
        with shown.in_own_words():
            epoch = backup.back_up(place, path)
    except (sqlite3.DatabaseError, DBAPIError) as error:
        raise Refused(f"--store {shown_url(place)}: is no store of checkins") from error
    if json:
        screen.show_json({"path": str(path), "epoch": epoch, "bytes": path.stat().st_size})
        return
    screen.show_plain(f"Wrote {path}: a copy of epoch {epoch}, {path.stat().st_size:,} bytes.")
    screen.show_plain(f"To use it: checkins serve --store sqlite:///{path} --restore")
