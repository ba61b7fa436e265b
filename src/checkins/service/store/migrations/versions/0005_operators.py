"""Add the tables of operators' tokens, of their actions, and of changes of the allow-list."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "allow_list",
        sa.Column("credential", sa.String(64), primary_key=True),
        sa.Column("allowed", sa.Boolean, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "operators",
        sa.Column("name", sa.String(40), primary_key=True),
        sa.Column("token", sa.String(64), nullable=False, unique=True),
        sa.Column("role", sa.String(16), nullable=False),
    )
    op.create_table(
        "operator_log",
        sa.Column("entry", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("line", sa.LargeBinary, nullable=False),
    )
