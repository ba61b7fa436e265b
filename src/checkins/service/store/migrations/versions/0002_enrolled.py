"""Add the table with the number of clients that have enrolled in each open run."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "enrolled",
        sa.Column("run", sa.String(32), sa.ForeignKey("runs.id"), primary_key=True),
        sa.Column("clients", sa.BigInteger, nullable=False),
    )
    # Count the clients of open runs from their rows. A client that enrolled without an idempotency
    # key and spent its token in an earlier slot has no row, so it is not counted.
    op.execute(
        """
        INSERT INTO enrolled (run, clients)
        SELECT id, CASE WHEN listed > present THEN listed ELSE present END
        FROM (
            SELECT runs.id AS id,
                (SELECT count(*) FROM enrolments WHERE enrolments.run = runs.id) AS listed,
                (SELECT count(*) FROM tokens WHERE tokens.run = runs.id)
                + (SELECT count(*) FROM check_ins WHERE check_ins.run = runs.id) AS present
            FROM runs WHERE runs.ending IS NULL
        ) AS counted
        """
    )
