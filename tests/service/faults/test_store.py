"""After a slot has closed nothing in the store or in the logs tells who was in it, or when."""

from __future__ import annotations

import json
import secrets
import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from tests.service.faults.history import check
from tests.service.faults.reader import Reader
from tests.service.faults.store_forensics import (
    INSTANT,
    Table,
    checkpointed_bytes,
    instants,
    present,
    tables_of,
    traces,
)
from tests.support.campaigns import Plan
from tests.support.coordinator import Coordinator
from tests.support.crowd import Crowd, finished
from tests.support.journal import Note, read
from tests.support.proxy import Proxy, Seen
from tests.support.waiting import PATIENCE_S, wait_until

SLOTS = 15
ABOUT_CLIENTS = ("tokens", "check_ins", "enrolments")
"""Tables that hold anything of clients while a run lasts."""


@dataclass(frozen=True, slots=True)
class Known:
    """The secrets of clients, as the network and their journals show them."""

    seen: list[Seen]
    notes: list[Note]

    @property
    def receipts(self) -> dict[str, int]:
        """Each with its slot."""
        return {n.receipt: n.slot for n in self.notes if n.receipt and n.slot is not None}

    def of_slots(self, closed: int) -> set[bytes]:
        """What would tell who was in slots that are over: receipts, spent tokens, reports."""
        receipts = {receipt for receipt, slot in self.receipts.items() if slot <= closed}
        spent = {
            seen.key
            for seen in self.seen
            if seen.route == "POST check-ins" and seen.status == 202 and _slot(seen) <= closed
        }
        reports = {n.report for n in self.notes if n.report and (n.slot or 0) <= closed}
        return traces(receipts | spent) | reports

    @property
    def all(self) -> set[bytes]:
        """What must not outlive the run: those too, unspent tokens, and keys of enrolments."""
        keys = {seen.key for seen in self.seen if seen.key}
        keys |= {seen.idempotency for seen in self.seen if seen.idempotency}
        return traces(keys | set(self.receipts)) | {n.report for n in self.notes if n.report}


def _slot(seen: Seen) -> int:
    return int(seen.path.split("/slots/")[1].split("/")[0])


@pytest.mark.slow
def test_nothing_about_clients_stays_behind(store: str, tmp_path: Path, start_s: float) -> None:
    """On both stores, with a kill -9 in the middle: in the tables, SQLite's bytes, and the logs."""
    slot_s = round(max(0.3, 0.15 * start_s), 2)
    plan = Plan(slots=SLOTS, slot_s=slot_s, choose_s=slot_s / 2, clients=4 * SLOTS)
    coordinator = Coordinator(plan.write(tmp_path), store, start=f"+{2 * start_s + 3:.0f}")
    journal = tmp_path / "journal.jsonl"
    with coordinator.running():
        campaign = coordinator.campaign
        reader, network = Reader(coordinator.url, campaign), Proxy(coordinator.port)
        with network.open() as proxy, reader.watching():
            crowd = Crowd(proxy.url, campaign, plan.clients, journal)
            with crowd.running() as process:
                wait_for_slot(reader, SLOTS // 3)
                coordinator.kill()
                half_way = Known(list(network.seen), list(read([journal])))
                check_closed_slots(store, half_way, tmp_path)
                coordinator.begin()
                finished(crowd, process, timeout_s=SLOTS * slot_s + PATIENCE_S)
            assert reader.over.wait(PATIENCE_S)
        lines = reader.finish()
        known = Known(network.seen, list(read([journal])))
        check_closed_slots(store, known, tmp_path)
        coordinator.stop()
    findings = check(lines, [*known.notes, *reader.notes], shown=[reader.ledger])
    print(f"\n{len(known.all)} traces; {findings}")
    assert not findings.violations, str(findings)
    assert findings.acknowledged > 0
    check_the_end(store, known, coordinator, plan)


def wait_for_slot(reader: Reader, slot: int) -> None:
    wait_until(lambda: reader.slots_closed >= slot, f"slot {slot} is closed")


def check_closed_slots(store: str, known: Known, folder: Path) -> None:
    """While a run lasts: the slot in progress, and tokens that are not spent; of others nothing."""
    tables = tables_of(store)
    closed = len([row for row in tables["ledger"].rows if b'"slot-closed"' in row_bytes(row)])
    assert closed > 0
    gone = known.of_slots(closed)
    assert gone
    for table in tables.values():
        assert present(gone, table.text) == [], table.name
    if store.startswith("sqlite"):
        copy = Path(shutil.copytree(folder, folder.parent / f"copy-{secrets.token_hex(4)}"))
        path = copy / Path(store.removeprefix("sqlite:///")).name
        assert present(gone, checkpointed_bytes(path)) == []


def row_bytes(row: tuple[object, ...]) -> bytes:
    return Table("", "", [row]).text


def check_the_end(store: str, known: Known, coordinator: Coordinator, plan: Plan) -> None:
    """Once it is over: no token, key, receipt or report, no moment of a check-in, no order."""
    begins = datetime.fromisoformat(str(coordinator.told["start"])).timestamp()
    during = (begins - 3600.0, begins + plan.slots * plan.slot_s + 3600.0)
    for table in tables_of(store).values():
        assert present(known.all, table.text) == [], table.name
        assert instants(table.numbers, between=during) == [], table.name
        if table.name == "operator_log":
            # the time of the one action of this run, by the operator who started it
            assert [json.loads(line)["action"] for (_, line) in table.rows] == ["campaign-opened"]
            continue
        sealed = coordinator.told["start"]
        for found in INSTANT.findall(table.text.decode("utf-8", "replace")):
            assert str(sealed).startswith(found.rstrip("0")), (table.name, found)
        if table.name in ABOUT_CLIENTS:
            assert table.rows == []
            check_order(store, table)
    for log in (coordinator.log, coordinator.stderr):
        assert present(known.all, log.read_bytes()) == []
    if store.startswith("sqlite"):
        path = Path(store.removeprefix("sqlite:///"))
        assert present(known.all, checkpointed_bytes(path)) == []


def check_order(store: str, table: Table) -> None:
    """No row of a client has a number, a time, or a place that tells when it came."""
    declared = table.declared.lower()
    for word in ("timestamp", "date", "time", "serial", "nextval", "autoincrement", "yes"):
        assert word not in declared.split(), (table.name, declared)
    if store.startswith("sqlite"):
        assert "without rowid" in declared
