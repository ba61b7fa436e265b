"""Create the tables of the first version."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "facts",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "populations",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("entries", sa.BigInteger, nullable=False),
        sa.Column("head", sa.String(64), nullable=False),
    )
    op.create_table(
        "ledger",
        sa.Column("population", sa.Text, sa.ForeignKey("populations.key"), primary_key=True),
        sa.Column("entry", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("line", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("position", sa.Integer, nullable=False, unique=True),
        sa.Column("population", sa.Text, sa.ForeignKey("populations.key"), nullable=False),
        sa.Column("campaign", sa.Text, nullable=False),
        sa.Column("seal", sa.String(80), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("dimension", sa.Integer, nullable=False),
        sa.Column("tensors", sa.Text, nullable=False),
        sa.Column("affordable", sa.BigInteger, nullable=False),
        sa.Column("certificate", sa.Text, nullable=False),
        sa.Column("phase", sa.String(16), nullable=False),
        sa.Column("slot_phase", sa.String(16)),
        sa.Column("closed", sa.BigInteger, nullable=False),
        sa.Column("contributors", sa.BigInteger),
        sa.Column("ending", sa.String(16)),
    )
    op.create_table(
        "learners",
        _run(),
        sa.Column("model", sa.LargeBinary, nullable=False),
        sa.Column("gradient", sa.LargeBinary),
        sa.Column("slots", sa.BigInteger, nullable=False),
        sa.Column("velocity", sa.LargeBinary),
    )
    op.create_table(
        "enrolments",
        _run(),
        sa.Column("credential", sa.String(64), primary_key=True),
        sa.Column("key", sa.String(64), nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "tokens",
        _run(),
        sa.Column("token", sa.String(64), primary_key=True),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "check_ins",
        _run(),
        sa.Column("receipt", sa.String(64), primary_key=True),
        sa.Column("slot", sa.BigInteger, nullable=False),
        sa.Column("token", sa.String(64), nullable=False),
        sa.Column("chosen", sa.Boolean),
        sa.Column("report", sa.LargeBinary),
        sa.UniqueConstraint("run", "token"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "releases",
        _run(),
        sa.Column("slot", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("model_hash", sa.String(64), nullable=False),
    )
    op.create_table(
        "prices",
        _run(),
        sa.Column("slots", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("epsilon", sa.Float, nullable=False),
    )
    op.create_table(
        "curve",
        _run(),
        sa.Column("slots", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("metrics", sa.Text, nullable=False),
    )


def _run() -> "sa.Column[str]":
    return sa.Column("run", sa.String(32), sa.ForeignKey("runs.id"), primary_key=True)
