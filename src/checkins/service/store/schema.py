"""The tables of the store, and the migration of older stores to this schema.

No column holds the time of a request, an address or the order of arrival. A client has one token
per run, which is deleted when a check-in spends it.
``check_ins`` contains only the slot in progress, and the transaction that closes the slot empties
it (invariants 1 and 8). In SQLite the tables about clients have no rowid and are ordered by hashes,
so the file does not reveal the order of arrival either.
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
from sqlalchemy.schema import SchemaItem

from checkins.errors import InvalidValue
from checkins.service.store.database import Database

MIGRATIONS_FOLDER = Path(__file__).parent / "migrations"
NEWEST_REVISION = "0005"  # revision of the last migration script
HASH_TYPE = String(64)  # SQL type of a hash in hex, and of a receipt

metadata = MetaData()


def _table(name: str, *items: SchemaItem) -> Table:
    return Table(name, metadata, *items)


def _table_by_hash(name: str, *items: SchemaItem) -> Table:
    """Return a table that SQLite orders by its primary key, not by the order of insertion."""
    return Table(name, metadata, *items, sqlite_with_rowid=False)


def _run_column() -> Column[str]:
    """Return a column with the id of a run, as part of the primary key."""
    return Column("run", ForeignKey("runs.id"), primary_key=True)


def _integer_key_column(name: str) -> Column[int]:
    """Return an integer column that is part of the primary key."""
    return Column(name, BigInteger, primary_key=True, autoincrement=False)


metadata_entries = _table_by_hash(
    "facts", Column("name", HASH_TYPE, primary_key=True), Column("value", Text, nullable=False)
)
"""Metadata of the store as named entries; see ``store/metadata.py``."""

populations = _table(
    "populations",
    Column("key", Text, primary_key=True),
    Column("entries", BigInteger, nullable=False),
    Column("head", HASH_TYPE, nullable=False),
)
"""The number of entries and the head (the last hash) of each population's ledger."""

ledger = _table(
    "ledger",
    Column("population", ForeignKey("populations.key"), primary_key=True),
    _integer_key_column("entry"),
    Column("line", LargeBinary, nullable=False),
)
"""The lines of each ledger."""

runs = _table(
    "runs",
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
"""The specification and the state of each run."""

learners = _table(
    "learners",
    _run_column(),
    Column("model", LargeBinary, nullable=False),
    Column("gradient", LargeBinary),
    Column("slots", BigInteger, nullable=False),
    Column("velocity", LargeBinary),
)
"""The current model of each run, and the state of its optimizer."""

exact_sums, noisy_sums = (
    _table(
        name,
        _run_column(),
        _integer_key_column("slot"),
        Column("sum", LargeBinary, nullable=False),
    )
    for name in ("exact_sums", "noisy_sums")
)
"""The last sums of runs whose noise is correlated across slots; see ``past_sums.py``.

``exact_sums`` is secret, and holds no sum that no later slot needs.
"""

enrolments = _table_by_hash(
    "enrolments",
    _run_column(),
    Column("credential", HASH_TYPE, primary_key=True),
    Column("key", HASH_TYPE, nullable=False),
)
"""Hashes of the credentials that have enrolled, each with the hash of its idempotency key."""

enrolled_counts = _table("enrolled", _run_column(), Column("clients", BigInteger, nullable=False))
"""Number of clients that have enrolled in each open run, including those that withdrew."""

tokens = _table_by_hash("tokens", _run_column(), Column("token", HASH_TYPE, primary_key=True))
"""Hashes of the tokens that no check-in has spent."""

check_ins = _table_by_hash(
    "check_ins",
    _run_column(),
    Column("receipt", HASH_TYPE, primary_key=True),
    Column("slot", BigInteger, nullable=False),
    Column("token", HASH_TYPE, nullable=False),
    Column("chosen", Boolean),
    Column("report", LargeBinary),
    UniqueConstraint("run", "token"),
)
"""The check-ins of the slot in progress. ``chosen`` is null until clients are chosen."""

releases = _table(
    "releases",
    _run_column(),
    _integer_key_column("slot"),
    Column("model_hash", HASH_TYPE, nullable=False),
)
"""The hash of each released model. The ledger contains these hashes too."""

epsilons = _table(
    "prices", _run_column(), _integer_key_column("slots"), Column("epsilon", Float, nullable=False)
)
"""Epsilon after a number of slots of a run and all earlier runs, rounded up."""

curve = _table(
    "curve", _run_column(), _integer_key_column("slots"), Column("metrics", Text, nullable=False)
)
"""Metrics of released models on the public holdout data: the learning curve of each run."""

allow_list = _table_by_hash(
    "allow_list",
    Column("credential", HASH_TYPE, primary_key=True),
    Column("allowed", Boolean, nullable=False),
)
"""Hashes of the keys that operators have added or revoked. They override the file."""

operators = _table(
    "operators",
    Column("name", String(40), primary_key=True),
    Column("token", HASH_TYPE, nullable=False, unique=True),
    Column("role", String(16), nullable=False),
)
"""The operators that were added while the service runs, with the hashes of their tokens."""

operator_log = _table(
    "operator_log", _integer_key_column("entry"), Column("line", LargeBinary, nullable=False)
)
"""The lines of the log of operators' actions (``ledger/operator_log.py``)."""


def migrate(database: Database) -> None:
    """Run the missing migrations in one transaction.

    Raise InvalidValue if a newer version of checkins has written the store.
    """
    if _has_newest_revision(database):
        return
    from alembic import command
    from alembic.config import Config
    from alembic.migration import MigrationContext
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS_FOLDER).replace("%", "%%"))
    scripts = ScriptDirectory.from_config(config)
    known_revisions = {script.revision for script in scripts.walk_revisions()}
    with database.exclusive_transaction("migrations") as connection:
        revision = MigrationContext.configure(connection).get_current_revision()
        if revision is not None and revision not in known_revisions:
            expected = "was written by a newer version of checkins: use that version"
            raise InvalidValue("store", revision, expected)
        if revision == scripts.get_current_head():
            return
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _has_newest_revision(database: Database) -> bool:
    with database.read_transaction() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return False
        revisions = connection.execute(text("SELECT version_num FROM alembic_version")).scalars()
        return list(revisions) == [NEWEST_REVISION]
