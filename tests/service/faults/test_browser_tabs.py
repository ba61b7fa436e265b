"""A campaign whose devices are tabs of chromium, which are killed and reloaded at random.

The history checker judges it from the ledger and from what the tabs noted, as with other devices.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.service.faults.history import check
from tests.service.faults.reader import Reader
from tests.soak import SOAK
from tests.support.browser import unless_crashed
from tests.support.campaigns import DIMENSION, Plan
from tests.support.coordinator import Coordinator
from tests.support.journal import Note
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from tests.service.faults.findings import Findings
    from tests.support.browser import Browser, Page

TABS, KILLS, SLOTS = (50, 250, 30) if SOAK else (8, 16, 8)
SLOWER = (1.0, 3.0, 9.0)
"""How much longer slots are made where a busy machine let too little happen in shorter ones."""

LIVE = """([run, client, dimension]) => {
  const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  const live = async () => {
    const { Device, IndexedDbStore } = await import("/client.js");
    const trainer = async ({ weights }) => {
      const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", weights));
      await window.note(JSON.stringify({ client, event: "trained", model_hash: hex(digest) }));
      const update = new Float64Array(dimension);
      update[client] = 1;
      return { weights: update };
    };
    const onEvent = (event) => window.note(JSON.stringify({ ...event, client }));
    const store = new IndexedDbStore(`device ${client}`);
    return new Device({ url: location.origin, run, trainer, store, onEvent }).run();
  };
  live().then(
    (outcome) => window.note(JSON.stringify({ client, ended: outcome })),
    (error) => {
      const ended = `${error.constructor.name}: ${error.message}`;
      return window.note(JSON.stringify({ client, ended }));
    },
  );
}"""


@dataclass
class Tabs:
    """One tab for each device, in one profile of the browser."""

    browser: Browser
    url: str
    run: str
    seed: int = 1
    notes: list[Note] = field(default_factory=list)
    ended: dict[int, str] = field(default_factory=dict)
    pages: dict[int, Page] = field(default_factory=dict)
    crashed: set[int] = field(default_factory=set)
    kills: Counter[str] = field(default_factory=Counter)

    def play(self, until_s: float) -> None:
        """Open all tabs, kill and reload them at random, and wait until every device has ended."""
        context = self.browser.new_context()
        try:
            context.set_default_timeout(1000.0 * PATIENCE_S)
            context.expose_binding("note", lambda _, line: self._hear(line))
            idle = context.new_page()  # a blank page, which is never killed
            self.crashed = set(range(TABS))
            dice, deadline = random.Random(self.seed), time.monotonic() + until_s
            while len(self.ended) < TABS and time.monotonic() < deadline:
                idle.wait_for_timeout(dice.uniform(0, 200))
                for client in sorted(self.crashed):
                    self._open(context, client)
                if self.kills.total() < KILLS:
                    self._kill(context, dice)
            assert len(self.ended) == TABS, f"{TABS - len(self.ended)} devices have not ended"
        finally:
            context.close()

    def _kill(self, context: Any, dice: random.Random) -> None:
        living = [client for client in self.pages if client not in self.ended.keys() | self.crashed]
        if not living:
            return
        client = dice.choice(living)
        how = dice.choice(("reload", "close", "close", "crash"))
        self.kills[how] += 1
        if how == "reload":
            with unless_crashed():  # the tab has crashed meanwhile
                self.pages[client].reload()
                self._start(client)
        elif how == "close":
            self._open(context, client)
        else:  # kills the process, and so all tabs that it shows
            with unless_crashed():
                self.pages[client].goto("chrome://crash")
            self.crashed.add(client)

    def _open(self, context: Any, client: int) -> None:
        """Open the tab of a device, in place of its last one."""
        self.crashed.discard(client)
        page = context.new_page()
        page.on("crash", lambda _: self.crashed.add(client))
        old = self.pages.get(client)
        self.pages[client] = page
        if old is not None:
            old.close()
        with unless_crashed():  # the tab has crashed meanwhile
            page.goto(f"{self.url}/client.js")  # any document of this origin
            self._start(client)

    def _start(self, client: int) -> None:
        self.ended.pop(client, None)
        self.pages[client].evaluate(LIVE, [self.run, client, DIMENSION])

    def _hear(self, line: str) -> None:
        told = json.loads(line)
        if "in use by another tab" in told.get("ended", ""):
            self.crashed.add(told["client"])  # its last tab is not closed yet: open it again
        elif "ended" in told:
            self.ended[told["client"]] = told["ended"]
        elif (note := Note.parse(line)) is not None:
            self.notes.append(note)


def campaign_of_tabs(folder: Path, browser: Browser, slower: float) -> tuple[Findings, Tabs]:
    """Run one campaign to its end, and judge it."""
    folder.mkdir()
    plan = Plan(slots=SLOTS, slot_s=2.0 * slower, choose_s=1.0 * slower, clients=TABS)
    start = f"+{5 + TABS // 4}"
    coordinator = Coordinator(plan.write(folder), f"sqlite:///{folder}/store.db", start=start)
    with coordinator.running():
        reader = Reader(coordinator.url, coordinator.campaign)
        tabs = Tabs(browser, coordinator.url, coordinator.campaign)
        with reader.watching():
            tabs.play(PATIENCE_S + plan.slots * plan.slot_s)
            assert reader.over.wait(PATIENCE_S + plan.slots * plan.slot_s)
        lines = reader.finish()
        coordinator.stop()
    return check(lines, [*tabs.notes, *reader.notes], shown=[reader.ledger]), tabs


@pytest.mark.slow
def test_no_contribution_of_a_tab_is_lost_or_counted_twice(
    tmp_path: Path, browser: Browser
) -> None:
    for slower in SLOWER:
        findings, tabs = campaign_of_tabs(tmp_path / f"{slower}", browser, slower)
        outcomes = Counter(tabs.ended.values())
        print(f"\n{dict(tabs.kills)} kills, {dict(outcomes)}\n{findings}")
        assert not findings.violations, str(findings)
        assert findings.chance <= 1e-9
        assert findings.slots == SLOTS
        assert not [why for why in outcomes if "InvalidState" in why or "Error" in why], outcomes
        if findings.acknowledged > TABS // 4 and tabs.kills.total() >= KILLS // 2:
            return
    raise AssertionError(f"too little happened: {dict(tabs.kills)} kills, {findings}")
