"""Add the privacy filter with which a run was opened; null for runs before this migration."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("runs", sa.Column("filter", sa.String(16)))
