"""The requests of clients: enrol, check in, wait, report, withdraw, and read public data.

Routes only parse a request and send the response. Decisions are made here, or by the protocol's
state machine, which ``intake`` calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from checkins.protocol import wire
from checkins.protocol.wire import OutcomeName
from checkins.service.authentication import derived_token, hashed, new_token
from checkins.service.http.problems import Problem
from checkins.service.runs import cached_responses, clock_watch, intake
from checkins.service.runs.cached_responses import cached_model
from checkins.service.runs.intake import CheckIn, EnrolmentRequest
from checkins.service.runs.live_run import EARLY_S, LiveRun
from checkins.service.runs.memory_limits import REPORT_BYTES_PER_COORDINATE
from checkins.service.runs.runner import Runner
from checkins.service.store import ledgers, participants

LEDGER_PART_BYTES = 4_000_000
"""Approximate size of the parts in which a ledger is sent, so that memory does not hold it all."""
LINE_BYTES, NUMBER_BYTES = 500, 11
"""Approximate size of a ledger line without its sum, and of one number of the sum, in bytes."""


async def enrol(runner: Runner, live_run: LiveRun, credential: str | None, key: str | None) -> str:
    """Enrol a client, and return a token for one check-in.

    ``key`` is the idempotency key; ``credential`` or ``key`` is None if the client sent none. The
    same key and listed credential get the same token again.
    """
    admitted = runner.settings.enrolment.admits(credential)
    _refuse_if_over(live_run)
    if admitted is None and key is None:
        token, enrolment = new_token(), None
    else:
        run, listed = live_run.spec.id, admitted or ""
        token = derived_token(runner.key, run=run, credential=listed, once=key or "")
        enrolment = admitted or hashed(key or "")
    await live_run.enrolments.submit(EnrolmentRequest(hashed(token), enrolment, hashed(key or "")))
    return token


async def withdraw(runner: Runner, live_run: LiveRun, token: str) -> None:
    """Spend a token and erase its check-in. Raise ``refused`` if the service has neither."""
    _refuse_if_over(live_run)
    run = live_run.spec.id
    if not await runner.in_thread_or_busy(intake.withdraw, runner.database, run, hashed(token)):
        raise Problem("refused", "this token is unknown or spent; nothing is stored about it")


async def check_in(runner: Runner, live_run: LiveRun, slot: int, token: str) -> str:
    """Return the receipt of a check-in once it is durable. An early request waits for the slot."""
    _refuse_if_over(live_run)
    clock_watch.refuse_while_holding(runner.database)
    if live_run.is_early(slot):
        await _until_begun(live_run, runner, slot)
        clock_watch.refuse_while_holding(runner.database)
    receipt = await live_run.check_ins.submit(CheckIn(slot, hashed(token)))
    live_run.slots_of_receipts[receipt] = slot
    return receipt


async def slot_of(runner: Runner, live_run: LiveRun, receipt: str) -> int:
    """Return the slot of a receipt. Raise ``unknown-receipt`` if that slot is not in progress."""
    slot = live_run.slots_of_receipts.get(receipt)
    if slot is None:
        slot = await runner.load(participants.slot_of, live_run.spec.id, receipt)
    if slot is None:
        raise unknown_receipt()
    return slot


async def wait_for_outcome(
    runner: Runner, live_run: LiveRun, slot: int, receipt: str, *, timeout_s: float
) -> OutcomeName | None:
    """Return the outcome of a check-in once it is known, or None if the slot is over.

    If it is not known after ``timeout_s`` seconds, return ``waiting``.
    """
    outcome = live_run.outcome(slot, receipt)
    if outcome != "waiting":
        return outcome
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout_s
    with runner.metrics.waiters.track_inprogress():
        while outcome == "waiting" and not runner.stopping.is_set():
            left = until - loop.time()
            if left <= 0.0 or not await live_run.wait_for_change(timeout_s=left):
                break
            outcome = live_run.outcome(slot, receipt)
    return outcome


async def model(runner: Runner, live_run: LiveRun, slot: int, receipt: str) -> bytes:
    """Return the model that a chosen client trains, as safetensors.

    Raise ``refused`` if the receipt was not chosen in this slot.
    """
    if await wait_for_outcome(runner, live_run, slot, receipt, timeout_s=EARLY_S) != "chosen":
        raise Problem("refused", "this receipt was not chosen in this slot")
    return cached_model(live_run, live_run.snapshot)


@asynccontextmanager
async def receiving_report(
    runner: Runner, live_run: LiveRun, slot: int, receipt: str
) -> AsyncIterator[None]:
    """Reserve memory for a report before its body is read.

    Raise ``refused`` if the receipt was not chosen, because a slow sender would occupy memory that
    chosen clients need. One report per receipt is received at a time. A report that does not fit
    into the memory waits.
    """
    _refuse_if_over(live_run)
    if not await _is_chosen(live_run, runner, slot, receipt):
        raise Problem("refused", "no report is asked of this receipt in this slot")
    size = REPORT_BYTES_PER_COORDINATE * live_run.spec.dimension
    async with live_run.receiving(receipt), runner.report_memory.reserve(size):
        yield


async def _is_chosen(live_run: LiveRun, runner: Runner, slot: int, receipt: str) -> bool:
    """Return whether a receipt was chosen in a slot.

    The store is asked if this process has not read the choice of that slot.
    """
    if live_run.knows_choice(slot):
        return live_run.outcome(slot, receipt) == "chosen"
    return await runner.load(participants.is_chosen, live_run.spec.id, slot, receipt)


async def _until_begun(live_run: LiveRun, runner: Runner, slot: int) -> None:
    """Wait until a slot begins; raise ``too-early`` if it begins in more than ``EARLY_S``."""
    loop = asyncio.get_running_loop()
    ahead = live_run.spec.times.begins(slot) - runner.database.now()
    if slot > live_run.spec.rules.slots:
        raise Problem("refused", f"the run has {live_run.spec.rules.slots:,} slots")
    if ahead > EARLY_S:
        raise Problem("too-early", f"slot {slot} has not begun", retry_after=ahead)
    until = loop.time() + EARLY_S + live_run.spec.times.choose_s
    while live_run.is_early(slot) and not runner.stopping.is_set():
        left = until - loop.time()
        if left <= 0.0 or not await live_run.wait_for_change(timeout_s=left):
            raise Problem("busy", "the slot before is not closed yet", retry_after=1)
    # Wait for the fixed time of the release, because the time that it takes to close the previous
    # slot may depend on who was in it.
    await asyncio.sleep(max(0.0, live_run.spec.times.releases(slot - 1) - runner.database.now()))
    if live_run.is_early(slot):
        raise Problem("busy", "this coordinator is stopping; try again", retry_after=1)


def unknown_receipt() -> Problem:
    """Return the problem ``unknown-receipt``."""
    return Problem("unknown-receipt", "no check-in of the slot in progress has this receipt")


def _refuse_if_over(live_run: LiveRun) -> None:
    if live_run.is_over:
        raise Problem("over", "this run is over; its models and its ledger remain available")


async def progress(runner: Runner, live_run: LiveRun) -> wire.Progress:
    """Return the learning curve, the epsilons and the latest releases."""
    run, closed, most = (
        live_run.spec.id,
        live_run.public.state.closed,
        cached_responses.MOST_RELEASES,
    )
    releases = await runner.load(ledgers.last_releases, run, closed=closed, most=most)
    return cached_responses.progress(live_run, releases)


async def ledger_parts(runner: Runner, live_run: LiveRun, *, after: int) -> AsyncIterator[bytes]:
    """Return the public lines of a ledger after the first ``after`` lines, in parts.

    The first part is read before this function returns, so that the caller can still send an error
    if the store does not answer.
    """
    last, population = live_run.public.ledger.entries, live_run.spec.population
    most = max(1, LEDGER_PART_BYTES // (LINE_BYTES + NUMBER_BYTES * live_run.spec.dimension))

    async def part(done: int) -> list[bytes]:
        count = max(0, min(most, last - done))
        return await runner.load(ledgers.ledger_lines, population, after=done, most=count)

    async def parts(lines: list[bytes], done: int) -> AsyncIterator[bytes]:
        while lines:
            yield b"".join(lines)
            done += len(lines)
            lines = await part(done) if done < last else []

    return parts(await part(after), after)


async def ledger_head(runner: Runner, live_run: LiveRun, *, entries: int) -> str:
    """Return the head that a ledger had after ``entries`` entries.

    Raise ``unknown-entry`` if not so many entries are public yet.
    """
    public, population = live_run.public.ledger.entries, live_run.spec.population
    if entries > public:
        raise Problem("unknown-entry", f"it has {public:,} entries so far")
    (head,) = await runner.load(ledgers.ledger_heads, population, after=entries - 1, most=1)
    return head
