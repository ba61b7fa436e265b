"""The requests of clients: enrol, check in, wait, report, withdraw, and read public data.

Routes only parse a request and send the response. Decisions are made here, or by the protocol's
state machine, which ``intake`` calls. "Raise ``busy``" means: raise a ``Problem``, an HTTP error
response, of that type.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from checkins.errors import ProtocolViolation
from checkins.protocol import slot as slots
from checkins.protocol import wire
from checkins.protocol.wire import OutcomeName
from checkins.service.authentication import (
    derived_token,
    hashed,
    invalid_credential,
    new_token,
)
from checkins.service.http.problems import Problem
from checkins.service.runs import cached_responses, clock_jumps, intake
from checkins.service.runs.cached_responses import cached_model
from checkins.service.runs.intake import CheckIn, EnrolmentRequest, Submission
from checkins.service.runs.live_run import MAX_EARLY_S, LiveRun
from checkins.service.runs.memory_limits import REPORT_BYTES_PER_COORDINATE
from checkins.service.runs.runner import Runner
from checkins.service.store import ledgers, operators, participants

LEDGER_PART_BYTES = 4_000_000
"""Approximate size of the parts in which a ledger is sent, so that memory does not hold it all."""
LINE_BYTES_WITHOUT_SUM, SUM_BYTES_PER_COORDINATE = 500, 11
"""Approximate size of a slot's ledger line: a constant, and a part per coordinate of its sum."""


async def enrol(runner: Runner, live_run: LiveRun, credential: str | None, key: str | None) -> str:
    """Enrol a client, and return a token for one check-in.

    ``credential`` is what the client must show if enrolment is not open, and ``key`` is an
    idempotency key; each is None if the client sent none. A retry with the same key and the same
    credential from the allow-list gets the same token again.
    """
    enrolment = runner.settings.enrolment
    listed_hash = enrolment.admit(credential)  # None without an allow-list
    _refuse_if_over(live_run)
    is_listed = None if listed_hash is None else listed_hash in enrolment.allow_list
    if listed_hash is not None and not is_listed:  # strangers must not occupy transactions
        changes = await runner.read_store(operators.allow_list_changes, [listed_hash])
        if not changes.get(listed_hash, False):
            raise invalid_credential()
    if listed_hash is None and key is None:
        token, credential_hash = new_token(), None
    else:
        run, secret_key = live_run.spec.id, runner.secret_key
        token = derived_token(
            secret_key, run=run, credential=listed_hash or "", idempotency_key=key or ""
        )
        credential_hash = listed_hash or hashed(key or "")
    if not live_run.load.accepts_enrolment(waiting=live_run.enrolments.waiting):
        runner.metrics.count_refusal("overload")
        detail = "more clients enrol than can be served without delaying those in their slots"
        raise Problem("busy", detail, retry_after=live_run.spec.run_schedule.slot_s)
    request = EnrolmentRequest(hashed(token), credential_hash, hashed(key or ""), is_listed)
    await live_run.enrolments.submit(request)
    return token


async def withdraw(runner: Runner, live_run: LiveRun, token: str) -> None:
    """Delete a token and its check-in. Raise ``refused`` if the store has neither."""
    _refuse_if_over(live_run)
    run = live_run.spec.id
    if not await runner.in_thread_or_busy(intake.withdraw, runner.database, run, hashed(token)):
        raise Problem("refused", "this token is unknown or spent; nothing is stored about it")


async def check_in(runner: Runner, live_run: LiveRun, slot: int, token: str) -> str:
    """Return the receipt of a check-in once it is durable. A slightly early request waits."""
    _refuse_if_over(live_run)
    clock_jumps.refuse_while_holding(runner.database)
    if live_run.is_early(slot):
        await _wait_until_slot_begins(live_run, runner, slot)
        clock_jumps.refuse_while_holding(runner.database)
    message = CheckIn(slot, hashed(token))
    if _has_room(live_run, runner, slot):
        receipt = await live_run.check_ins.submit(message)
    else:
        receipt = await _receipt_of_retry(live_run, runner, message)
    live_run.slots_of_receipts[receipt] = slot
    return receipt


def _has_room(live_run: LiveRun, runner: Runner, slot: int) -> bool:
    """Return whether one more check-in can be served until the end of its slot.

    Return True too if the slot takes no check-ins now, which the state machine of the slot decides.
    """
    state = live_run.snapshot.state
    if slot != state.slot or state.slot_phase is not slots.Phase.COLLECTING:
        return True
    accepted, waiting = len(live_run.slots_of_receipts), live_run.check_ins.waiting
    now = runner.database.now()
    return live_run.load.accepts_check_in(slot, accepted=accepted, waiting=waiting, now=now)


async def _receipt_of_retry(live_run: LiveRun, runner: Runner, message: CheckIn) -> str:
    """Return the receipt of a check-in that was accepted earlier.

    Raise ``busy`` if the token is unspent: this slot has no room for the check-in, and the token
    stays unspent.
    """
    receipt = await live_run.retries.submit(message)
    if receipt is None:
        runner.metrics.count_refusal("overload")
        detail = "more clients have checked in to this slot than could report before it ends"
        ends_in_s = live_run.spec.run_schedule.ends(message.slot) - runner.database.now()
        raise Problem("busy", detail, retry_after=ends_in_s)
    return receipt


async def slot_of(runner: Runner, live_run: LiveRun, receipt: str) -> int:
    """Return the slot of a receipt. Raise ``unknown-receipt`` if that slot is not in progress."""
    slot = live_run.slots_of_receipts.get(receipt)
    if slot is None:
        slot = await runner.read_store(participants.slot_of, live_run.spec.id, receipt)
    if slot is None:
        raise unknown_receipt()
    return slot


async def wait_for_outcome(
    runner: Runner, live_run: LiveRun, slot: int, receipt: str, *, timeout_s: float
) -> OutcomeName | None:
    """Return the outcome of a check-in once it is known, or None if the slot is over.

    If the outcome is not known after ``timeout_s`` seconds, return ``waiting``.
    """
    outcome = live_run.outcome(slot, receipt)
    if outcome != "waiting":
        return outcome
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    with runner.metrics.waiters.track_inprogress():
        while outcome == "waiting" and not runner.stopping.is_set():
            remaining_s = deadline - loop.time()
            if remaining_s <= 0.0 or not await live_run.wait_for_change(timeout_s=remaining_s):
                break
            outcome = live_run.outcome(slot, receipt)
    return outcome


async def model(runner: Runner, live_run: LiveRun, slot: int, receipt: str) -> bytes:
    """Return the model from which a chosen client trains, as safetensors.

    Raise ``refused`` if the receipt was not chosen in this slot.
    """
    if await wait_for_outcome(runner, live_run, slot, receipt, timeout_s=MAX_EARLY_S) != "chosen":
        raise Problem("refused", "this receipt was not chosen in this slot")
    return cached_model(live_run, live_run.snapshot)


@asynccontextmanager
async def reserve_report_memory(
    runner: Runner, live_run: LiveRun, slot: int, receipt: str
) -> AsyncIterator[None]:
    """Reserve memory for a report before its body is read; release the memory at the end.

    Raise ``refused`` if the receipt was not chosen, because a slow sender would occupy memory that
    chosen clients need. One report per receipt is received at a time. A report waits until enough
    memory is free.
    """
    _refuse_if_over(live_run)
    if not await _is_chosen(live_run, runner, slot, receipt):
        raise Problem("refused", "this receipt was not chosen in this slot, so it sends no report")
    size = REPORT_BYTES_PER_COORDINATE * live_run.spec.dimension
    async with live_run.lock_receipt(receipt), runner.report_memory.reserve(size):
        yield


async def save_report(
    runner: Runner, live_run: LiveRun, slot: int, receipt: str, units: Any
) -> None:
    """Return once a report is durable, and count it in the load of its slot."""
    load, now = live_run.load, runner.database.now
    load.report_arrived(slot, receipt, now=now())
    try:
        await live_run.reports.submit(Submission(slot, receipt, units))
    except ProtocolViolation:
        load.report_was_refused(slot, receipt, now=now())
        raise
    load.report_was_saved(slot, receipt, now=now())


async def _is_chosen(live_run: LiveRun, runner: Runner, slot: int, receipt: str) -> bool:
    """Return whether a receipt was chosen in a slot.

    The store is queried if this process has not read which clients were chosen in that slot.
    """
    if live_run.has_read_choice(slot):
        return live_run.outcome(slot, receipt) == "chosen"
    return await runner.read_store(participants.is_chosen, live_run.spec.id, slot, receipt)


async def _wait_until_slot_begins(live_run: LiveRun, runner: Runner, slot: int) -> None:
    """Wait until a slot begins. Raise ``too-early`` if that is more than ``MAX_EARLY_S`` away."""
    loop = asyncio.get_running_loop()
    begins_in_s = live_run.spec.run_schedule.begins(slot) - runner.database.now()
    if slot > live_run.spec.rules.slots:
        raise Problem("refused", f"the run has only {live_run.spec.rules.slots:,} slots")
    if begins_in_s > MAX_EARLY_S:
        raise Problem("too-early", f"slot {slot} has not begun", retry_after=begins_in_s)
    deadline = loop.time() + MAX_EARLY_S + live_run.spec.run_schedule.choose_s
    while live_run.is_early(slot) and not runner.stopping.is_set():
        remaining_s = deadline - loop.time()
        if remaining_s <= 0.0 or not await live_run.wait_for_change(timeout_s=remaining_s):
            raise Problem("busy", "the previous slot is not closed yet", retry_after=1)
    # Wait until the scheduled release of the previous slot's model. How long it takes to close that
    # slot may depend on who was in it, so the response must not reveal when it was closed.
    await asyncio.sleep(
        max(0.0, live_run.spec.run_schedule.releases(slot - 1) - runner.database.now())
    )
    if live_run.is_early(slot):
        raise Problem("busy", "the coordinator is stopping; try again", retry_after=1)


def unknown_receipt() -> Problem:
    """Return the problem ``unknown-receipt``."""
    return Problem("unknown-receipt", "no check-in of the slot in progress has this receipt")


def _refuse_if_over(live_run: LiveRun) -> None:
    if live_run.is_over:
        raise Problem("over", "this run is over; its models and its ledger remain available")


async def progress(runner: Runner, live_run: LiveRun) -> wire.Progress:
    """Return the learning curve, the epsilons computed so far, and the latest releases."""
    run, closed = live_run.spec.id, live_run.public_snapshot.state.closed
    slots = cached_responses.MAX_RELEASES_SHOWN
    releases = await runner.read_store(ledgers.last_releases, run, last_slot=closed, slots=slots)
    return cached_responses.progress(live_run, releases)


async def ledger_parts(runner: Runner, live_run: LiveRun, *, after: int) -> AsyncIterator[bytes]:
    """Return an iterator over the public lines of a ledger after the first ``after``, in parts.

    The first part is read before this function returns, so that the caller can still send an error
    if the store does not answer.
    """
    last_entry, population = live_run.public_snapshot.ledger.entries, live_run.spec.population
    line_bytes = LINE_BYTES_WITHOUT_SUM + SUM_BYTES_PER_COORDINATE * live_run.spec.dimension
    lines_per_part = max(1, LEDGER_PART_BYTES // line_bytes)

    async def load_part(entry: int) -> list[bytes]:
        limit = max(0, min(lines_per_part, last_entry - entry))
        return await runner.read_store(ledgers.ledger_lines, population, after=entry, limit=limit)

    async def parts(lines: list[bytes], entry: int) -> AsyncIterator[bytes]:
        while lines:
            yield b"".join(lines)
            entry += len(lines)
            lines = await load_part(entry) if entry < last_entry else []

    return parts(await load_part(after), after)


async def ledger_head(runner: Runner, live_run: LiveRun, *, entries: int) -> str:
    """Return the head (the hash of the last line) that a ledger had after ``entries`` entries.

    Raise ``unknown-entry`` if fewer entries are public.
    """
    public_entries, population = live_run.public_snapshot.ledger.entries, live_run.spec.population
    if entries > public_entries:
        raise Problem("unknown-entry", f"the ledger has {public_entries:,} entries so far")
    (head,) = await runner.read_store(ledgers.ledger_heads, population, after=entries - 1, limit=1)
    return head
