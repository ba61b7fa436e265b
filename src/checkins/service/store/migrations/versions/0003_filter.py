"""The filter that a run was opened with; none in runs from before there were filters."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("runs", sa.Column("filter", sa.String(16)))
