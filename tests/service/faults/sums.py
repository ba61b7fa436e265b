"""Who is in which total: what the clients know of their reports, held against the ledger."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from checkins.accounting import NoiseAt, Protocol
from checkins.campaign import Campaign
from checkins.ledger import Opened, SlotClosed
from tests.service.faults.findings import Findings, Kind
from tests.service.faults.presence import Filters
from tests.service.faults.story import Story

HERE, ELSEWHERE = 0.5, 0.8
"""Scores from which a report is in a total: of its own slot, and of any other."""


def room_of(campaign: Campaign) -> int | None:
    """How many reports a slot uses at most; None is every one."""
    averaged = campaign.design.protocol is Protocol.AVERAGED
    uses_all = averaged or campaign.noise_at is NoiseAt.SERVER
    return campaign.design.capacity or (None if uses_all else 1)


class Sums:
    """Who is in which total."""

    def __init__(
        self,
        campaign: Campaign,
        opened: Opened,
        entries: Sequence[SlotClosed],
        stories: Mapping[int, Story],
        findings: Findings,
    ) -> None:
        self.entries, self.findings = entries, findings
        self.room = room_of(campaign)
        self.averaged = campaign.design.protocol is Protocol.AVERAGED
        grid, describe = campaign.randomizer.grid, campaign.mechanism(opened.dimension)
        self.scale = describe.scale / grid
        self.stories = [story for story in stories.values() if len(story.reports) == 1]
        self.by_slot: dict[int | None, list[Story]] = defaultdict(list)
        for story in self.stories:
            self.by_slot[story.slot].append(story)

    def judge(self) -> dict[int, list[Story]]:
        """The clients that are in the total of each slot, by what the totals say."""
        taken, rests = {}, []
        for entry in self.entries:
            taken[entry.slot], rest = self._slot(entry)
            rests.append(rest)
        self._elsewhere(rests)
        return taken

    def _slot(self, entry: SlotClosed) -> tuple[list[Story], NDArray[np.int64] | None]:
        here, total = self.by_slot.get(entry.slot, []), entry.numbers()
        acknowledged = [story for story in here if story.taken]
        doubtful = [story for story in here if not story.taken]
        self.findings.acknowledged += len(acknowledged)
        if total is None:
            for story in acknowledged:
                self._lost(story, entry.slot)
            return [], None
        rest = total - sum((story.units for story in acknowledged), np.zeros_like(total))
        inside = list(acknowledged)
        while doubtful and (self.room is None or len(inside) < self.room):
            filters = self._filters(doubtful)
            scores = filters.scores(rest)
            best = int(np.argmax(scores))
            vectors = self._vectors(len(inside), entry)
            self.findings.chance += float(filters.chances(threshold=HERE, vectors=vectors).sum())
            if scores[best] < HERE:
                break
            inside.append(doubtful.pop(best))
            rest = rest - inside[-1].units
        self.findings.unacknowledged_in += len(inside) - len(acknowledged)
        self.findings.unacknowledged_out += len(doubtful)
        self._check_rest(entry, inside, rest)
        return inside, rest

    def _vectors(self, inside: int, entry: SlotClosed) -> int:
        """How many vectors of noise the rest holds at most."""
        if self.averaged:
            return max(0, (entry.contributors or 0) - inside)
        return max(0, (self.room or 0) - inside)

    def _check_rest(self, entry: SlotClosed, inside: list[Story], rest: NDArray[np.int64]) -> None:
        slot, full = entry.slot, self._vectors(len(inside), entry) == 0
        if self.averaged and entry.contributors != len(inside):
            self.findings.add(
                Kind.SUM, f"slot {slot} counts {entry.contributors}, not {len(inside)}"
            )
        if not self.averaged and self.room is not None and len(inside) > self.room:
            self.findings.add(Kind.SUM, f"slot {slot} took {len(inside)} reports")
        if inside:
            filters = self._filters(inside)
            scores = filters.scores(rest)
            vectors = self._vectors(len(inside), entry)
            self.findings.chance += float(filters.chances(threshold=HERE, vectors=vectors).sum())
            for story, score in zip(inside, scores, strict=True):
                if score <= -HERE:
                    self._lost(story, slot)
                elif score >= HERE:
                    self.findings.add(Kind.TWICE, f"client {story.client} in slot {slot}")
        if full:
            self.findings.full_slots += 1
            if rest.any():
                self.findings.add(Kind.SUM, f"slot {slot}: {np.count_nonzero(rest)} units are off")

    def _elsewhere(self, rests: Sequence[NDArray[np.int64] | None]) -> None:
        """No report is in the total of a slot that is not its own, nor one that was never sent."""
        if not self.stories:
            return
        filters = self._filters(self.stories)
        vectors = self.room if self.room is not None else 1
        chances = filters.chances(threshold=ELSEWHERE, vectors=vectors)
        self.findings.chance += float(chances.sum()) * len(rests)
        for entry, rest in zip(self.entries, rests, strict=True):
            if rest is None or not rest.any():
                continue
            for index in np.flatnonzero(filters.scores(rest) >= ELSEWHERE):
                story = self.stories[index]
                if story.slot != entry.slot:
                    self.findings.add(
                        Kind.MOVED,
                        f"client {story.client}, which drew {story.slot}, counts in {entry.slot}",
                    )

    def _filters(self, stories: Sequence[Story]) -> Filters:
        return Filters.of(np.array([story.units for story in stories]), scale=self.scale)

    def _lost(self, story: Story, slot: int) -> None:
        self.findings.add(Kind.LOST, f"client {story.client} in slot {slot}")
