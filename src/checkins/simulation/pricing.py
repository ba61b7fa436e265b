"""What a simulated campaign costs, worked out beside it: slots do not wait for the accountant."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from itertools import zip_longest

from checkins.accounting import Certificate, Protocol
from checkins.protocol.campaign import Campaign, RunSoFar, Spending, price

_POINTS = 10


class Pricing:
    """The price along the way, as far as it is known by now."""

    def __init__(self, campaign: Campaign, pool: Executor) -> None:
        """The certificate is worked out from now on, what it costs on the way once asked for."""
        self._campaign = campaign
        self._pool = pool
        self._spending = Spending(campaign)
        self._known: list[tuple[int, float]] = []
        self._stopping = False
        self._certificate = pool.submit(price, (RunSoFar.whole(campaign),), compare=True)
        self._curve: Future[None] | None = None

    def begin_curve(self) -> Future[None]:
        """Work out the price along the way, after everything that was asked for before."""
        if self._curve is None:
            self._curve = self._pool.submit(self._work)
        return self._curve

    def _work(self) -> None:
        slots = self._spending.slots
        for count in sorted({max(1, slots * part // _POINTS) for part in range(1, _POINTS + 1)}):
            if self._stopping:
                return
            [point] = self._spending.curve([count])
            self._known.append(point)

    def epsilon_so_far(self, slots: int) -> float | None:
        """At most what so many slots have cost; None while that is being worked out."""
        place = bisect.bisect_left(self._known, (slots, 0.0))
        return self._known[place][1] if place < len(self._known) else None

    @property
    def whole(self) -> Certificate:
        """The certificate of every run to its end."""
        return self._certificate.result()

    def curve(self) -> list[tuple[int, float]]:
        """(slots, epsilon) along the way, worked out to the end."""
        self.begin_curve().result()
        return list(self._known)

    def known(self, slots: int) -> list[tuple[int, float]]:
        """Those points up to ``slots`` that are worked out by now."""
        return [point for point in self._known if point[0] <= slots]

    def certificate(self, slots: int, contributors: Sequence[Sequence[int]]) -> Certificate:
        """What was run: so many slots; for averaged updates the fewest reports of any seed."""
        campaign = self._campaign
        if campaign.design.protocol is Protocol.AVERAGED:
            # A seed that was stopped has fewer runs than another, and still the same price.
            fewest = [min(runs) for runs in zip_longest(*contributors, fillvalue=math.inf)]
            whole = campaign.design.slots
            return price([RunSoFar(campaign, whole, contributors=int(n)) for n in fewest])
        if slots >= self._spending.slots:
            return self.whole
        run, slot = divmod(max(slots - 1, 0), campaign.design.slots)
        return self._spending.after(slot + (slots > 0), run=run + 1)

    def close(self) -> None:
        """Stop after the point that is being worked out."""
        self._stopping = True
