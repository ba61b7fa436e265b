"""Taking in what clients send, many at a time in one transaction (invariants 1, 3, 5 and 6).

The machine decides about each message. It is shown the slot as far as that client is in it: its
rules never look at anybody else for a check-in, a question or a report. A batch is durable when its
transaction is, and only then is anyone answered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from sqlalchemy import Connection, bindparam, delete, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from checkins.errors import ProtocolViolation
from checkins.protocol import server as servers
from checkins.protocol import slot as slots
from checkins.protocol.model_update import Learner
from checkins.protocol.report import Report
from checkins.protocol.server import Server
from checkins.protocol.slot import Acknowledge, CheckedIn, RecordCheckIn, ReportArrived, Slot
from checkins.randomizers import DeviceReport
from checkins.service import randomness
from checkins.service.run_spec import RunSpec
from checkins.service.slot_transitions import report_of
from checkins.service.store import records, tables
from checkins.service.store.bulk import among, insert_all
from checkins.service.store.database import Database
from checkins.service.store.records import RunState

check_ins, tokens, enrolments = tables.check_ins, tables.tokens, tables.enrolments
NO_MODEL = Learner(np.zeros(1))
"""No message of a client asks for the model of the machine."""
TRIES = 5
T = TypeVar("T")


class ConcurrentUpdate(Exception):
    """Another worker changed the same rows first: look again."""


def retry_on_conflict(attempt: Callable[[], T]) -> T:
    """The result of a transaction that may be overtaken; looks again a few times."""
    for _ in range(TRIES - 1):
        try:
            return attempt()
        except (ConcurrentUpdate, IntegrityError):
            continue
        except DBAPIError as error:
            if not (error.connection_invalidated or _is_deadlock(error)):
                raise
    return attempt()


def _is_deadlock(error: DBAPIError) -> bool:
    return getattr(error.orig, "sqlstate", None) in ("40P01", "40001")


def hashed(secret: str) -> str:
    """What the store keeps of a token or a key."""
    return hashlib.sha256(secret.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Enrolment:
    """A token for a credential, under the key that its client chose; all are hashes.

    Without a credential it is anybody's.
    """

    token: str
    credential: str | None = None
    key: str = ""


@dataclass(frozen=True, slots=True)
class CheckIn:
    """A client asks to take part in a slot; ``token`` is hashed."""

    slot: int
    token: str


@dataclass(frozen=True, slots=True, eq=False)
class Submission:
    """A report for a slot, under the receipt of a check-in."""

    slot: int
    receipt: str
    units: Any


def take_check_ins(
    database: Database, terms: RunSpec, messages: Sequence[CheckIn]
) -> list[str | ProtocolViolation]:
    """A receipt for each, or why not; the participation of the token is used up with it."""
    wanted = sorted({message.token for message in messages})
    new: list[dict[str, Any]] = []
    answers: list[str | ProtocolViolation] = []
    with database.shared(terms.id) as connection:
        stage = records.load_stage(connection, terms.id)
        unspent = _unspent(connection, terms.id, wanted)
        others = [token for token in wanted if token not in unspent]  # retries, mostly
        receipts = _receipts(connection, terms.id, others)
        for message, receipt in zip(messages, randomness.receipts(len(messages)), strict=True):
            here = receipts.get(message.token)
            server = _shown(terms, stage, waiting={} if here is None else {message.token: here})
            spent = message.token not in unspent
            event = CheckedIn(message.slot, message.token, receipt, spent=spent)
            try:
                _, effects = servers.step(server, event)
            except ProtocolViolation as refusal:
                answers.append(refusal)
                continue
            for effect in effects:
                if isinstance(effect, RecordCheckIn):
                    unspent.discard(effect.token)
                    receipts[effect.token] = effect.receipt
                    new.append(
                        {
                            "run": terms.id,
                            "receipt": effect.receipt,
                            "slot": message.slot,
                            "token": effect.token,
                        }
                    )
                elif isinstance(effect, Acknowledge):
                    answers.append(effect.receipt)
        if new:
            new.sort(key=lambda row: str(row["token"]))  # the same order in every worker
            _spend(connection, terms.id, [str(row["token"]) for row in new])
            insert_all(connection, check_ins, new)
    return answers


def _spend(connection: Connection, run: str, spent: Sequence[str]) -> None:
    """Delete tokens; another worker may have been quicker with one of them."""
    gone = sum(
        connection.execute(delete(tokens).where(tokens.c.run == run, some)).rowcount
        for some in among(connection, tokens.c.token, spent)
    )
    if gone != len(spent):
        raise ConcurrentUpdate


def take_reports(
    database: Database, terms: RunSpec, messages: Sequence[Submission]
) -> list[ProtocolViolation | None]:
    """None for each that is durable now, or why it is not taken."""
    wanted = sorted({message.receipt for message in messages})
    new: dict[str, bytes] = {}
    answers: list[ProtocolViolation | None] = []
    with database.shared(terms.id) as connection:
        stage = records.load_stage(connection, terms.id)
        found = {
            row.receipt: row
            for some in among(connection, check_ins.c.receipt, wanted)
            for row in connection.execute(
                select(
                    check_ins.c.receipt, check_ins.c.token, check_ins.c.chosen, check_ins.c.report
                )
                .where(check_ins.c.run == terms.id, some)
                .order_by(check_ins.c.receipt)
                .with_for_update()  # another worker may have another report of the same client
            )
        }
        for message in messages:
            row = found.get(message.receipt)
            held = new.get(message.receipt) or (None if row is None else row.report)
            server = _shown(
                terms,
                stage,
                waiting={} if row is None else {row.token: row.receipt},
                chosen=(message.receipt,) if row is not None and row.chosen else (),
                reports={} if held is None else {message.receipt: report_of(held, terms)},
            )
            report = Report.from_device(DeviceReport(message.units, terms.sampler.grid))
            try:
                servers.step(server, ReportArrived(message.slot, message.receipt, report))
            except ProtocolViolation as refusal:
                answers.append(refusal)
                continue
            if held is None:
                new[message.receipt] = np.ascontiguousarray(message.units, dtype="<i4").tobytes()
            answers.append(None)
        if new:
            rows = [{"a": terms.id, "b": receipt, "c": new[receipt]} for receipt in sorted(new)]
            connection.execute(_KEEP, rows)
    return answers


def take_enrolments(
    database: Database, terms: RunSpec, messages: Sequence[Enrolment]
) -> list[ProtocolViolation | None]:
    """Give each credential its one token; refuse one that was given another under another key.

    The same credential with the same key changes nothing: a token that is spent stays spent. Nobody
    enrols beyond the population that the campaign declares: whoever withdraws stays counted.
    """
    run = terms.id
    named = sorted({message.credential for message in messages if message.credential is not None})
    answers: list[ProtocolViolation | None] = []
    new_tokens: list[str] = []
    new_keys: dict[str, str] = {}
    with database.shared(run) as connection:
        if records.load_stage(connection, run).ending is not None:
            return [ProtocolViolation("the run is over")] * len(messages)
        clients = before_all = records.lock_enrolled(connection, run)
        keys = {
            row.credential: row.key
            for some in among(connection, enrolments.c.credential, named)
            for row in connection.execute(
                select(enrolments.c.credential, enrolments.c.key).where(
                    enrolments.c.run == run, some
                )
            )
        }
        for message in messages:
            before = None if message.credential is None else keys.get(message.credential)
            if before is not None and before != message.key:
                answers.append(
                    ProtocolViolation("this key has enrolled in this run: it is given one token")
                )
                continue
            if before is None:
                if clients >= terms.most_enrolled:
                    answers.append(_full(terms))
                    continue
                clients += 1
                new_tokens.append(message.token)
                if message.credential is not None:
                    keys[message.credential] = new_keys[message.credential] = message.key
            answers.append(None)
        insert_all(
            connection,
            enrolments,
            [{"run": run, "credential": c, "key": new_keys[c]} for c in sorted(new_keys)],
        )
        insert_all(
            connection, tokens, [{"run": run, "token": token} for token in sorted(new_tokens)]
        )
        if clients != before_all:
            records.save_enrolled(connection, run, clients)
    return answers


def _full(terms: RunSpec) -> ProtocolViolation:
    return ProtocolViolation(
        f"nobody more may enrol in this run: it promises its clients that there are at most"
        f" {terms.most_enrolled:,} of them, and its certificate may depend on that"
    )


def withdraw(database: Database, run: str, token: str) -> bool:
    """Spend a token; whatever it has in the slot in progress is erased, as if it had vanished."""
    with database.shared(run) as connection:
        spent = connection.execute(
            delete(tokens).where(tokens.c.run == run, tokens.c.token == token)
        ).rowcount
        gone = connection.execute(
            delete(check_ins).where(check_ins.c.run == run, check_ins.c.token == token)
        ).rowcount
    return bool(spent or gone)


def slot_of(database: Database, run: str, receipt: str) -> int | None:
    """The slot that a receipt is for, while it is in progress."""
    with database.reading() as connection:
        return connection.execute(
            select(check_ins.c.slot).where(check_ins.c.run == run, check_ins.c.receipt == receipt)
        ).scalar_one_or_none()


def is_asked(database: Database, run: str, slot: int, receipt: str) -> bool:
    """Whether a receipt is that of a client that was chosen in this slot, which is in progress."""
    here = check_ins.c
    with database.reading() as connection:
        chosen = connection.execute(
            select(here.chosen).where(here.run == run, here.receipt == receipt, here.slot == slot)
        ).scalar_one_or_none()
    return bool(chosen)


_KEEP = (
    update(check_ins)
    .where(check_ins.c.run == bindparam("a"), check_ins.c.receipt == bindparam("b"))
    .values(report=bindparam("c"))
)


def _shown(terms: RunSpec, stage: RunState, **seen: Any) -> Server:
    """The machine with the slot in progress, as far as one client is in it."""
    slot = None
    if stage.slot_phase is not None:
        slot = Slot(stage.slot, terms.rules, stage.slot_phase, **seen)
        if slot.phase is slots.Phase.CHOOSING:  # read from the database, so it is durable
            slot, _ = slots.step(slot, slots.ChoiceRecorded(slot.number))
    return Server(terms.rules, NO_MODEL, stage.phase, stage.closed, slot)


def _receipts(connection: Connection, run: str, wanted: Sequence[str]) -> dict[str, str]:
    return {
        row.token: row.receipt
        for some in among(connection, check_ins.c.token, wanted)
        for row in connection.execute(
            select(check_ins.c.token, check_ins.c.receipt).where(check_ins.c.run == run, some)
        )
    }


def _unspent(connection: Connection, run: str, wanted: Sequence[str]) -> set[str]:
    return {
        token
        for some in among(connection, tokens.c.token, wanted)
        for token in connection.execute(
            select(tokens.c.token).where(tokens.c.run == run, some)
        ).scalars()
    }
