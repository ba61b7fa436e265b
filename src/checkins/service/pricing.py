"""The price of so many slots, computed in a process of its own: it must not slow down a check-in.

Run as ``python -m checkins.service.pricing RUN``, with the store's address in the environment; it
ends with its parent.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from checkins.protocol.campaign import Spending
from checkins.protocol.ledger import earlier_of
from checkins.service.store import progress, records
from checkins.service.store.database import Database
from checkins.service.terms import Terms

MARKS = 20
STORE = "CHECKINS_PRICED_STORE"
"""The store's address may hold a password, so it is no argument that others could read."""


def marks(terms: Terms) -> Sequence[int]:
    """The slot counts that are priced: evenly up to the last one that is paid for.

    An epsilon between two of them is at most that of the next.
    """
    most = terms.affordable
    return sorted({-(-most * part // MARKS) for part in range(1, MARKS + 1)})


def price_marks(database: Database, run: str) -> None:
    """Price every mark that is not yet priced; the last one first, which bounds all others."""
    with database.reading() as connection:
        terms = records.load_terms(connection, run)
        if terms is None:
            return
        ledger = records.load_ledger(connection, terms.population)
    running = ledger.running
    if running is None or (running.seal, running.number) != (terms.seal, terms.number):
        return
    spending = Spending(terms.campaign, earlier_of(ledger))
    parent = os.getppid()
    for slots in reversed(marks(terms)):
        if os.getppid() != parent:
            return
        if slots not in dict(progress.load_prices(database, run)):
            epsilon = spending.epsilon_after(slots)
            progress.add_price(database, run, slots=slots, epsilon=epsilon)


if __name__ == "__main__":
    os.nice(10)
    price_marks(Database(os.environ[STORE]), sys.argv[1])
