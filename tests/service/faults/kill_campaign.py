"""A whole campaign with clients, a reader and a coordinator that is killed again and again."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from tests.service.faults.findings import Findings
from tests.service.faults.history import check
from tests.service.faults.reader import Reader
from tests.soak import SOAK
from tests.support.campaigns import Plan
from tests.support.coordinator import Coordinator
from tests.support.crowd import Crowd, finished
from tests.support.forks import Forked
from tests.support.journal import Note, read
from tests.support.postgres import Postgres
from tests.support.waiting import PATIENCE_S

CAUGHT_UP = 3
"""Slots that a coordinator may be behind the clock while it is not behind."""
END = 15 if SOAK else 8
"""Nobody is killed in the last slots: a campaign that is over is not gone on with."""


@dataclass(slots=True)
class KillCampaign:
    """One campaign from its start to its verdict."""

    plan: Plan
    folder: Path
    store: str
    workers: int = 1
    database: Postgres | None = None
    """That of the store, if it is to crash too."""
    crowds: int = 1
    seed: int = 1
    start_s: float = 2.0
    """How long a coordinator takes to start here."""
    real: bool = SOAK
    """Whether the coordinator is the command itself, which computes epsilons in a process too.

    Except in ``make soak`` that is so until it is killed the second time: later ones are forked.
    Several workers are forked in any case, and compute no epsilons.
    """
    kills: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    notes: list[Note] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    coordinator: Coordinator = field(init=False)
    reader: Reader = field(init=False)

    def __post_init__(self) -> None:
        self.coordinator = Coordinator(
            self.plan.write(self.folder),
            self.store,
            workers=self.workers,
            real=self.real,
            forked_workers=True,
            start=f"+{2 * self.start_s + 1 + self.plan.clients / 150:.0f}",
        )

    def run(self, meanwhile: Callable[[KillCampaign], None]) -> Findings:
        """Start everyone, do what is to be done meanwhile, wait for the end and judge it."""
        with self.coordinator.running():
            self.reader = Reader(self.coordinator.url, self.campaign)
            with ExitStack() as stack:
                stack.enter_context(self.reader.watching())
                crowds = {crowd: stack.enter_context(crowd.running()) for crowd in self._crowds()}
                meanwhile(self)
                self._wait_for(crowds)
            self.lines = self.reader.finish()
            self.coordinator.stop()
        self.notes = list(read(self.folder.glob("journal-*.jsonl")))
        return check(self.lines, [*self.notes, *self.reader.notes], shown=[self.reader.ledger])

    def _crowds(self) -> list[Crowd]:
        each = -(-self.plan.clients // self.crowds)
        return [
            Crowd(
                self.coordinator.url,
                self.campaign,
                min(each, self.plan.clients - first),
                self.folder / f"journal-{first}.jsonl",
                first=first,
                state=self.folder / f"state-{first}",
            )
            for first in range(0, self.plan.clients, each)
        ]

    def _wait_for(self, crowds: dict[Crowd, Forked]) -> None:
        left_s = max(0.0, self.begins_s + self.plan.slots * self.plan.slot_s - time.time())
        for crowd, process in crowds.items():
            self.outcomes.update(finished(crowd, process, timeout_s=left_s + PATIENCE_S))
        assert self.reader.over.wait(left_s + PATIENCE_S), "the campaign does not end"

    @property
    def campaign(self) -> str:
        return self.coordinator.campaign

    @property
    def begins_s(self) -> float:
        return datetime.fromisoformat(str(self.coordinator.told["start"])).timestamp()

    @property
    def slots_due(self) -> int:
        """How many slots should be over by the clock."""
        return int((time.time() - self.begins_s) / self.plan.slot_s)

    def wait_until_caught_up(self) -> None:
        """After a start: what was missed is closed, and a slot runs in its own time."""
        while self.reader.slots_closed < self.slots_due - CAUGHT_UP and not self.nearly_over:
            time.sleep(self.reader.pause_s / 2)

    @property
    def nearly_over(self) -> bool:
        return self.slots_due > self.plan.slots - END


def kill_again_and_again(most: int, *, up_s: float) -> Callable[[KillCampaign], None]:
    """kill -9 at random moments: of all processes, or of one worker where there are several.

    Where the store is PostgreSQL it crashes too, and recovers by itself.
    One in four comes while the coordinator still catches up with the slots that it missed.
    """

    def kill(ordeal: KillCampaign) -> None:
        dice, coordinator = random.Random(ordeal.seed), ordeal.coordinator
        time.sleep(max(0.0, ordeal.begins_s - time.time()))
        while ordeal.kills.total() < most:
            if dice.random() < 0.75:
                ordeal.wait_until_caught_up()
            time.sleep(dice.uniform(0.0, 2.0 * up_s))
            if ordeal.nearly_over:
                return
            if ordeal.database is not None and dice.random() < 0.2:
                ordeal.database.crash()
                ordeal.kills["the database"] += 1
                continue
            if ordeal.workers > 1 and dice.random() < 0.5 and coordinator.kill_one_worker(dice):
                ordeal.kills["one worker"] += 1
                continue
            coordinator.kill()
            ordeal.kills["everything"] += 1
            coordinator.real &= SOAK or ordeal.kills["everything"] == 1
            coordinator.begin()

    return kill
