"""Intake of enrolments, check-ins and reports, many in one transaction (invariants 1, 3, 5, 6).

The protocol's state machine decides about each message. Its slot contains only the client of that
message, because no rule about a check-in or a report depends on other clients. The client gets its
response after the transaction is durable.
"""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from checkins.errors import ProtocolViolation
from checkins.protocol import server as servers
from checkins.protocol import slot as slots
from checkins.protocol.model_update import Learner
from checkins.protocol.report import Report
from checkins.protocol.server import Server
from checkins.protocol.slot import Acknowledge, CheckedIn, RecordCheckIn, ReportArrived, Slot
from checkins.randomizers import DeviceReport
from checkins.service.authentication import invalid_credential
from checkins.service.runs.report_sum import decode_report
from checkins.service.store import operators, participants, run_state
from checkins.service.store.database import ConcurrentUpdate, Database
from checkins.service.store.run_state import RunSpec, RunState

UNUSED_LEARNER = Learner(np.zeros(1))
"""A placeholder for the model and the optimizer state, which no decision here uses."""
RECEIPT_BYTES = 24  # number of random bytes in a receipt


@dataclass(frozen=True, slots=True)
class EnrolmentRequest:
    """The hashes of a new token, of the client's credential and of its idempotency key.

    Without an allow-list, the idempotency key also serves as the credential. Then ``credential``
    is the hash of that key, or None if the client sent no key. ``is_listed`` says whether the file
    of the allow-list has the credential, and is None without an allow-list.
    """

    token: str
    credential: str | None = None
    key: str = ""
    is_listed: bool | None = None


@dataclass(frozen=True, slots=True)
class CheckIn:
    """A check-in to a slot, with the hash of its token."""

    slot: int
    token: str


@dataclass(frozen=True, slots=True, eq=False)
class Submission:
    """A report for a slot, with the receipt of its check-in.

    ``units`` is the reported vector, as integers in units of the campaign's grid.
    """

    slot: int
    receipt: str
    units: Any


def take_check_ins(
    database: Database, spec: RunSpec, messages: Sequence[CheckIn]
) -> list[str | ProtocolViolation]:
    """Save check-ins and spend their tokens. Return a receipt or a refusal for each message."""
    tokens = sorted({message.token for message in messages})
    new_check_ins: dict[tuple[str, str], int] = {}
    answers: list[str | ProtocolViolation] = []
    with database.shared_transaction(spec.id) as connection:
        state = run_state.load_state(connection, spec.id)
        unspent = participants.unspent_tokens(connection, spec.id, tokens)
        spent_or_unknown = [token for token in tokens if token not in unspent]  # mostly retries
        receipts = participants.receipts_of(connection, spec.id, spent_or_unknown)
        for message, receipt in zip(messages, draw_receipts(len(messages)), strict=True):
            earlier_receipt = receipts.get(message.token)
            waiting = {} if earlier_receipt is None else {message.token: earlier_receipt}
            spent = message.token not in unspent
            event = CheckedIn(message.slot, message.token, receipt, has_participated=spent)
            try:
                _, effects = servers.step(_server(spec, state, receipts_by_token=waiting), event)
            except ProtocolViolation as refusal:
                answers.append(refusal)
                continue
            for effect in effects:
                if isinstance(effect, RecordCheckIn):
                    unspent.discard(effect.token)
                    receipts[effect.token] = effect.receipt
                    new_check_ins[effect.token, effect.receipt] = message.slot
                elif isinstance(effect, Acknowledge):
                    answers.append(effect.receipt)
        if new_check_ins:
            to_spend = sorted(token for token, _ in new_check_ins)  # in order, to avoid deadlocks
            if not participants.spend_tokens(connection, spec.id, to_spend):
                raise ConcurrentUpdate
            participants.add_check_ins(connection, spec.id, new_check_ins)
    return answers


def find_receipts(
    database: Database, spec: RunSpec, messages: Sequence[CheckIn]
) -> list[str | ProtocolViolation | None]:
    """Return the receipt of each check-in that was saved earlier, and save nothing.

    Return None for a token that is unspent. Any other token gets the refusal that it gets if the
    slot has room, because only clients may learn whether it has.
    """
    tokens = sorted({message.token for message in messages})
    with database.read_transaction() as connection:
        state = run_state.load_state(connection, spec.id)
        unspent = participants.unspent_tokens(connection, spec.id, tokens)
        receipts = participants.receipts_of(connection, spec.id, tokens)
    answers: list[str | ProtocolViolation | None] = []
    for message in messages:
        answer: str | ProtocolViolation | None = receipts.get(message.token)
        if answer is None and message.token not in unspent:
            event = CheckedIn(message.slot, message.token, receipt="", has_participated=True)
            try:
                servers.step(_server(spec, state, receipts_by_token={}), event)
            except ProtocolViolation as refusal:
                answer = refusal
        answers.append(answer)
    return answers


def take_reports(
    database: Database, spec: RunSpec, messages: Sequence[Submission]
) -> list[ProtocolViolation | None]:
    """Save reports. Return None for each report that was accepted, and a refusal for any other."""
    receipts = sorted({message.receipt for message in messages})
    new_reports: dict[str, bytes] = {}
    answers: list[ProtocolViolation | None] = []
    with database.shared_transaction(spec.id) as connection:
        state = run_state.load_state(connection, spec.id)
        stored_check_ins = participants.lock_check_ins(connection, spec.id, receipts)
        for message in messages:
            row = stored_check_ins.get(message.receipt)
            stored = new_reports.get(message.receipt) or (None if row is None else row.report)
            server = _server(
                spec,
                state,
                receipts_by_token={} if row is None else {row.token: row.receipt},
                chosen_receipts=(message.receipt,) if row is not None and row.chosen else (),
                reports={} if stored is None else {message.receipt: decode_report(stored, spec)},
            )
            report = Report.from_device(DeviceReport(message.units, spec.sampler.grid))
            try:
                servers.step(server, ReportArrived(message.slot, message.receipt, report))
            except ProtocolViolation as refusal:
                answers.append(refusal)
                continue
            if stored is None:
                units = np.ascontiguousarray(message.units, dtype="<i4")
                new_reports[message.receipt] = units.tobytes()
            answers.append(None)
        participants.save_reports(connection, spec.id, new_reports)
    return answers


def take_enrolments(
    database: Database, spec: RunSpec, messages: Sequence[EnrolmentRequest]
) -> list[ProtocolViolation | None]:
    """Save enrolments. Return None for each that was accepted, and a refusal for any other.

    A credential has one token. If a credential enrols again with the same idempotency key, nothing
    changes, and a spent token stays spent. With another key the credential is refused. At most as
    many clients may enrol as the campaign declares, and a client that withdraws still counts. A key
    that an operator has revoked is refused, even if it has enrolled before.
    """
    run = spec.id
    sent = {message.credential for message in messages if message.credential is not None}
    answers: list[ProtocolViolation | None] = []
    new_tokens: list[str] = []
    new_keys: dict[str, str] = {}
    run_is_full = ProtocolViolation(
        f"no more clients may enrol in this run: the campaign declares at most"
        f" {spec.most_enrolled:,} of them, and its certificate may depend on that"
    )
    with database.shared_transaction(run) as connection:
        if run_state.load_state(connection, run).ending is not None:
            return [ProtocolViolation("the run is over")] * len(messages)
        clients = clients_before = participants.lock_enrolled_count(connection, run)
        keys = participants.enrolment_keys(connection, run, sorted(sent))
        may_enrol = operators.allow_list_changes(
            connection, sorted({m.credential or "" for m in messages if m.is_listed is not None})
        )
        for message in messages:
            if not may_enrol.get(message.credential or "", message.is_listed is not False):
                answers.append(invalid_credential())
                continue
            earlier_key = None if message.credential is None else keys.get(message.credential)
            if earlier_key is not None and earlier_key != message.key:
                answers.append(ProtocolViolation("this key has enrolled in this run already"))
                continue
            if earlier_key is None:
                if clients >= spec.most_enrolled:
                    answers.append(run_is_full)
                    continue
                clients += 1
                new_tokens.append(message.token)
                if message.credential is not None:
                    keys[message.credential] = new_keys[message.credential] = message.key
            answers.append(None)
        participants.add_enrolments(connection, run, new_keys)
        participants.add_tokens(connection, run, new_tokens)
        if clients != clients_before:
            participants.save_enrolled_count(connection, run, clients)
    return answers


def withdraw(database: Database, run: str, token: str) -> bool:
    """Delete a token and its check-in. Return False if the store has neither."""
    with database.shared_transaction(run) as connection:
        return participants.erase_client(connection, run, token)


def _server(spec: RunSpec, state: RunState, **slot_fields: Any) -> Server:
    """Return the state machine with the slot in progress.

    ``slot_fields`` are fields of ``Slot`` (``waiting``, ``chosen``, ``reports``) about one client.
    """
    slot = None
    if state.slot_phase is not None:
        slot = Slot(state.slot, spec.rules, state.slot_phase, **slot_fields)
        if slot.phase is slots.Phase.CHOOSING:  # the choice is in the store, so it is durable
            slot, _ = slots.step(slot, slots.ChoiceRecorded(slot.number))
    return Server(spec.rules, UNUSED_LEARNER, state.phase, state.closed, slot)


def draw_receipts(count: int) -> list[str]:
    """Draw ``count`` receipts, which are pseudonyms of check-ins that nobody can guess."""
    random_bytes = secrets.token_bytes(RECEIPT_BYTES * count)  # one system call for all receipts
    return [
        urlsafe_b64encode(random_bytes[start : start + RECEIPT_BYTES]).decode()
        for start in range(0, len(random_bytes), RECEIPT_BYTES)
    ]
