"""Bring a database to the schema that this version knows; refuse one that is newer."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import inspect, text

from checkins.errors import InvalidValue
from checkins.service.store.database import Database

SCRIPTS = Path(__file__).parent / "migrations"
NEWEST = "0003"
"""The revision of the last script: a store that has it needs nothing, and alembic is not loaded."""


def migrate(database: Database) -> None:
    """Run the migrations that are missing, all of them or none; one process at a time does it."""
    if _is_newest(database):
        return
    from alembic import command
    from alembic.config import Config
    from alembic.migration import MigrationContext
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    newest = ScriptDirectory.from_config(config)
    known = {script.revision for script in newest.walk_revisions()}
    with database.exclusive("migrations") as connection:
        found = MigrationContext.configure(connection).get_current_revision()
        if found is not None and found not in known:
            raise InvalidValue(
                "store", found, "was written by a newer version of checkins: use that version"
            )
        if found == newest.get_current_head():
            return
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _is_newest(database: Database) -> bool:
    with database.reading() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return False
        found = connection.execute(text("SELECT version_num FROM alembic_version")).scalars()
        return list(found) == [NEWEST]
