"""Add the tables with the last sums of runs whose noise is correlated across slots."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    for name in ("exact_sums", "noisy_sums"):
        op.create_table(
            name,
            sa.Column("run", sa.String(32), sa.ForeignKey("runs.id"), primary_key=True),
            sa.Column("slot", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("sum", sa.LargeBinary, nullable=False),
        )
