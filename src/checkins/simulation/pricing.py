"""What a simulated campaign costs, worked out beside it: slots do not wait for the accountant."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace

from checkins.accounting import Certificate, Protocol
from checkins.campaign import Campaign, PartialRun, Spending, price

FIXED_BEFOREHAND = "that it stops here was decided beforehand, not by what was released"

_POINTS = 10


class Pricing:
    """The price along the way, as far as it is known by now."""

    def __init__(
        self, campaign: Campaign, pool: Executor, contributors: Sequence[Sequence[int]] = ()
    ) -> None:
        """The certificate is worked out from now on, what it costs on the way once asked for.

        ``contributors`` are the reports of each run of each seed: averaged updates are priced by
        them.
        """
        self._campaign = campaign
        self._pool = pool
        self._spending = Spending(campaign)
        self._known: list[tuple[int, float]] = []
        self._stopping = False
        runs: Sequence[PartialRun] = (PartialRun.whole(campaign),)
        if self._averaged:
            runs = self._dearest(contributors)
        self._certificate = pool.submit(price, runs, compare=True)
        self._curve: Future[None] | None = None

    def begin_curve(self) -> Future[None]:
        """Work out the price along the way, after everything that was asked for before."""
        if self._curve is None:
            self._curve = self._pool.submit(self._work)
        return self._curve

    @property
    def _averaged(self) -> bool:
        return self._campaign.design.protocol is Protocol.AVERAGED

    def _dearest(self, contributors: Sequence[Sequence[int]]) -> list[PartialRun]:
        """Runs that cost at least what those of any seed do: the fewest reports cost most.

        A run without any report costs nothing, and says nothing of the others.
        """
        slots = self._campaign.design.slots
        times = max((sum(count > 0 for count in runs) for runs in contributors), default=0)
        if not times:
            return [PartialRun(self._campaign, slots, contributors=0)]
        fewest = min(count for runs in contributors for count in runs if count)
        return [PartialRun(self._campaign, slots, contributors=fewest, times=times)]

    def _work(self) -> None:
        slots = self._spending.slots
        if self._averaged:  # it costs the same after any slot
            self._known.append((slots, self.whole.epsilon))
            return
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
        if slots >= self._spending.slots:
            return self.whole
        if self._averaged:
            found = price(self._dearest(contributors))
        else:
            run, slot = divmod(max(slots - 1, 0), self._campaign.design.slots)
            found = self._spending.after(slot + (slots > 0), run=run + 1)
        return replace(found, assumptions=(*found.assumptions, FIXED_BEFOREHAND))

    def close(self) -> None:
        """Stop after the point that is being worked out."""
        self._stopping = True
