"""What the page draws: the price of so many slots, and the released models on a public holdout."""

from __future__ import annotations

import json
from collections.abc import Mapping

from sqlalchemy import Table, insert, select

from checkins.service.store.database import Database
from checkins.service.store.tables import curve, prices

Prices = list[tuple[int, float]]
Curve = list[tuple[int, dict[str, float]]]


def load_prices(database: Database, run: str) -> Prices:
    """(slots, epsilon) in the order of slots."""
    c = prices.c
    with database.reading() as connection:
        rows = connection.execute(select(c.slots, c.epsilon).where(c.run == run).order_by(c.slots))
        return [(row.slots, row.epsilon) for row in rows]


def add_price(database: Database, run: str, *, slots: int, epsilon: float) -> None:
    _add(database, prices, run, slots, {"epsilon": epsilon})


def load_curve(database: Database, run: str, *, after: int = -1) -> Curve:
    """(slots, metrics) in the order of slots."""
    c = curve.c
    with database.reading() as connection:
        rows = connection.execute(
            select(c.slots, c.metrics).where(c.run == run, c.slots > after).order_by(c.slots)
        )
        return [(row.slots, json.loads(row.metrics)) for row in rows]


def add_point(database: Database, run: str, *, slots: int, metrics: Mapping[str, float]) -> None:
    _add(database, curve, run, slots, {"metrics": json.dumps(metrics)})


def _add(
    database: Database, table: Table, run: str, slots: int, values: Mapping[str, object]
) -> None:
    """Once is enough: another worker may have been quicker, and found the same."""
    with database.exclusive(f"progress {run}") as connection:
        there = connection.execute(
            select(table.c.slots).where(table.c.run == run, table.c.slots == slots)
        ).one_or_none()
        if there is None:
            connection.execute(insert(table).values(run=run, slots=slots, **values))
