"""How many clients have enrolled in each run that is not over."""

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
    # Of a run that is open, those who are still known: a spent token without a key left no trace.
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
