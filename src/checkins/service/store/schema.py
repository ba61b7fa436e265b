"""The tables, what may never be in them, and the migration to this schema.

No column holds a time, an address or an order of arrival. ``tokens`` holds those that are not
spent: a spent one is gone. ``check_ins`` holds the slot in progress alone, under receipts drawn for
that slot, and is emptied in the transaction that closes it (invariants 1 and 8). In SQLite these
tables are ordered by hashes (no rowid), so the file does not keep the order of arrival either.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    inspect,
    text,
)

from checkins.errors import InvalidValue
from checkins.service.store.database import Database

SCRIPTS = Path(__file__).parent / "migrations"
NEWEST = "0003"
"""Revision of the last script: for a store that has it alembic is not loaded."""

metadata = MetaData()

facts = Table(
    "facts",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", Text, nullable=False),
    sqlite_with_rowid=False,
)
"""The epoch, the service's own key, and whether this is a copy."""

populations = Table(
    "populations",
    metadata,
    Column("key", Text, primary_key=True),
    Column("entries", BigInteger, nullable=False),
    Column("head", String(64), nullable=False),
)
"""Length and head of the ledger of each population."""

ledger = Table(
    "ledger",
    metadata,
    Column("population", ForeignKey("populations.key"), primary_key=True),
    Column("entry", BigInteger, primary_key=True, autoincrement=False),
    Column("line", LargeBinary, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("position", Integer, nullable=False, unique=True),
    Column("population", ForeignKey("populations.key"), nullable=False),
    Column("campaign", Text, nullable=False),
    Column("seal", String(80), nullable=False),
    Column("number", Integer, nullable=False),
    Column("dimension", Integer, nullable=False),
    Column("tensors", Text, nullable=False),
    Column("affordable", BigInteger, nullable=False),
    Column("certificate", Text, nullable=False),
    Column("phase", String(16), nullable=False),
    Column("slot_phase", String(16)),
    Column("closed", BigInteger, nullable=False),
    Column("contributors", BigInteger),
    Column("ending", String(16)),
    Column("filter", String(16)),
)
"""One run of a campaign: its specification and its state."""

learners = Table(
    "learners",
    metadata,
    Column("run", ForeignKey("runs.id"), primary_key=True),
    Column("model", LargeBinary, nullable=False),
    Column("gradient", LargeBinary),
    Column("slots", BigInteger, nullable=False),
    Column("velocity", LargeBinary),
)
"""The last released model of each run, and the state of its optimizer."""

enrolments = Table(
    "enrolments",
    metadata,
    Column("run", ForeignKey("runs.id"), primary_key=True),
    Column("credential", String(64), primary_key=True),
    Column("key", String(64), nullable=False),
    sqlite_with_rowid=False,
)
"""Hashes of the credentials that were given a token: each is given one."""

enrolled = Table(
    "enrolled",
    metadata,
    Column("run", ForeignKey("runs.id"), primary_key=True),
    Column("clients", BigInteger, nullable=False),
)
"""How many clients have enrolled in a run that is not over; whoever withdraws stays counted."""

tokens = Table(
    "tokens",
    metadata,
    Column("run", ForeignKey("runs.id"), primary_key=True),
    Column("token", String(64), primary_key=True),
    sqlite_with_rowid=False,
)
"""Hashes of the tokens that are not spent."""

check_ins = Table(
    "check_ins",
    metadata,
    Column("run", ForeignKey("runs.id"), primary_key=True),
    Column("receipt", String(64), primary_key=True),
    Column("slot", BigInteger, nullable=False),
    Column("token", String(64), nullable=False),
    Column("chosen", Boolean),
    Column("report", LargeBinary),
    UniqueConstraint("run", "token"),
    sqlite_with_rowid=False,
)
"""The slot in progress: who waits, who is chosen, whose report is in."""

releases = Table(
    "releases",
    metadata,
    Column("run", ForeignKey("runs.id"), primary_key=True),
    Column("slot", BigInteger, primary_key=True, autoincrement=False),
    Column("model_hash", String(64), nullable=False),
)
"""What the ledger holds of each release, without its sum."""

prices = Table(
    "prices",
    metadata,
    Column("run", ForeignKey("runs.id"), primary_key=True),
    Column("slots", BigInteger, primary_key=True, autoincrement=False),
    Column("epsilon", Float, nullable=False),
)
"""Epsilon after so many slots, rounded up, with all that the population spent before."""

curve = Table(
    "curve",
    metadata,
    Column("run", ForeignKey("runs.id"), primary_key=True),
    Column("slots", BigInteger, primary_key=True, autoincrement=False),
    Column("metrics", Text, nullable=False),
)
"""The released models, measured on a public holdout."""


def migrate(database: Database) -> None:
    """Run the missing migrations, all or none, in one process at a time; refuse a newer store."""
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
