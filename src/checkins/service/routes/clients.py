"""Routes of clients: enrol, check in, ask for the outcome, fetch the model, report, withdraw."""

from __future__ import annotations

import asyncio
import hmac
import re
from base64 import urlsafe_b64encode
from hashlib import sha256

from fastapi import APIRouter, Request, Response, status

from checkins.protocol.report import MEDIA_TYPE, report_from_bytes
from checkins.service.http.problems import Problem
from checkins.service.routes import wire
from checkins.service.routes.requests import (
    BINARY,
    JSON,
    PARAMETERS,
    RECEIPT,
    PlainRoute,
    bearer_of,
    credential_of,
    live_run_of,
    number_of,
    refusals,
    refuse_if_over,
    runner_of,
    slot_of,
    takes,
    unless_gone,
)
from checkins.service.runs import clock_watch, intake, randomness
from checkins.service.runs.cached_responses import cached_model
from checkins.service.runs.intake import CheckIn, Enrolment, Submission, hashed
from checkins.service.runs.live_run import EARLY_S, LiveRun
from checkins.service.runs.memory_limits import REPORT_BYTES
from checkins.service.runs.runner import Runner

router = APIRouter(prefix="/campaigns/{run}", tags=["clients"], route_class=PlainRoute)


@router.post(
    "/enrolments",
    response_model=wire.Token,
    status_code=status.HTTP_201_CREATED,
    summary="Enrol in a run",
    openapi_extra=takes("run", "Idempotency-Key", security="enrolment"),
    responses=refusals("unknown-campaign", "not-enrolled", "refused", "over", "invalid"),
)
async def enrol(request: Request) -> Response:
    """A token for one check-in. It says nothing about when you will come, or whether."""
    live_run, runner, key = await live_run_of(request), runner_of(request), _key_of(request)
    admitted = runner.settings.enrolment.admits(credential_of(request))
    refuse_if_over(live_run)
    if admitted is None and key is None:
        token, enrolment = randomness.token(), None
    else:
        token = _derived(runner.key, live_run.spec.id, admitted or "", key or "")
        enrolment = admitted or hashed(key or "")
    await live_run.enrolments.submit(Enrolment(hashed(token), enrolment, hashed(key or "")))
    return Response(
        b'{"token":"%b"}' % token.encode(),
        status_code=status.HTTP_201_CREATED,
        media_type=JSON,
    )


@router.delete(
    "/enrolments",
    status_code=status.HTTP_204_NO_CONTENT,
    summary="Withdraw",
    openapi_extra=takes("run", security="token"),
    responses=refusals("unknown-campaign", "not-enrolled", "refused", "over"),
)
async def withdraw(request: Request) -> Response:
    """Your token is spent, and what you have in the slot in progress is erased."""
    live_run, runner, token = (
        await live_run_of(request),
        runner_of(request),
        hashed(bearer_of(request)),
    )
    refuse_if_over(live_run)
    if not await runner.ask(intake.withdraw, runner.database, live_run.spec.id, token):
        raise Problem("refused", "this token is unknown here, or spent: nothing of it is kept")
    return Response(status_code=status.HTTP_204_NO_CONTENT)


@router.post(
    "/slots/{slot}/check-ins",
    response_model=wire.Receipt,
    status_code=status.HTTP_202_ACCEPTED,
    summary="Check in to a slot",
    openapi_extra=takes("run", "slot", security="token"),
    responses=refusals(
        "unknown-campaign", "not-enrolled", "refused", "too-early", "over", "invalid"
    ),
)
async def check_in(request: Request) -> Response:
    """Your one participation is used up once this is answered, chosen or not. The answer never says
    who else is waiting."""
    live_run, slot, token = await live_run_of(request), slot_of(request), hashed(bearer_of(request))
    runner = runner_of(request)
    refuse_if_over(live_run)
    clock_watch.refuse_while_holding(runner.database)
    if live_run.is_early(slot):
        await _until_begun(live_run, runner, slot)
        clock_watch.refuse_while_holding(runner.database)
    receipt = await live_run.check_ins.submit(CheckIn(slot, token))
    live_run.issued[receipt] = slot
    return Response(
        b'{"receipt":"%b"}' % receipt.encode(),
        status_code=status.HTTP_202_ACCEPTED,
        media_type=JSON,
    )


@router.get(
    "/check-ins/{receipt}",
    response_model=wire.Outcome,
    summary="Ask whether you were chosen",
    openapi_extra=takes("run", "receipt", "wait"),
    responses=refusals("unknown-campaign", "unknown-receipt", "invalid"),
)
async def ask(request: Request) -> Response:
    """Waits until the choice is made, which is durable before anyone is told."""
    live_run, runner, wait = (
        await live_run_of(request),
        runner_of(request),
        number_of(request, "wait"),
    )
    receipt = request.path_params["receipt"]
    if not re.fullmatch(RECEIPT, receipt):
        raise _no_receipt()
    slot = live_run.issued.get(receipt)
    if slot is None:
        slot = await runner.ask(intake.slot_of, runner.database, live_run.spec.id, receipt)
    if slot is None:
        raise _no_receipt()
    most_s = min(wait, runner.settings.limits.waiting_s)
    outcome = live_run.outcome(slot, receipt)
    if outcome == "waiting":
        waiting = _outcome(live_run, runner, slot, receipt, most_s=most_s)
        outcome = await unless_gone(request, waiting)
    if outcome is None:
        raise _no_receipt()
    runner.metrics.long_poll(outcome)
    return Response(b'{"outcome":"%b","slot":%d}' % (outcome.encode(), slot), media_type=JSON)


@router.get(
    "/slots/{slot}/model",
    response_class=Response,
    summary="The model before a slot",
    openapi_extra=takes("run", "slot", security="receipt"),
    responses={
        200: {
            "description": "Named float64 tensors as safetensors",
            "content": {MEDIA_TYPE: {"schema": BINARY}},
        },
        **refusals("unknown-campaign", "not-enrolled", "refused", "invalid"),
    },
)
async def model(request: Request) -> Response:
    """For those who were chosen, with their receipt."""
    live_run, slot, receipt = await live_run_of(request), slot_of(request), bearer_of(request)
    outcome = await _outcome(live_run, runner_of(request), slot, receipt, most_s=EARLY_S)
    if outcome != "chosen":
        raise Problem("refused", "this receipt is not that of a client chosen in this slot")
    return Response(cached_model(live_run, live_run.snapshot), media_type=MEDIA_TYPE)


@router.put(
    "/slots/{slot}/report",
    response_model=wire.Taken,
    summary="Hand in a report",
    openapi_extra=takes("run", "slot", security="receipt", body=MEDIA_TYPE),
    responses=refusals(
        "unknown-campaign",
        "not-enrolled",
        "refused",
        "over",
        "invalid",
        "too-large",
        "encoded",
        "too-many",
    ),
)
async def report(request: Request) -> Response:
    """One flat tensor "report" of 32-bit integers in grid units, as safetensors. Sending the same
    bytes again is answered the same; other bytes are refused."""
    live_run, slot, receipt = await live_run_of(request), slot_of(request), bearer_of(request)
    refuse_if_over(live_run)
    runner, size = runner_of(request), REPORT_BYTES * live_run.spec.dimension
    # Before its body is read: whoever sends slowly holds room, which is for those who were chosen.
    if not await _is_asked(live_run, runner, slot, receipt):
        raise Problem("refused", "no report is asked of this receipt in this slot")
    # One at a time of a receipt, and more than fit wait before they are read.
    async with live_run.report_of(receipt), runner.report_memory.reserve(size):
        units = report_from_bytes(await request.body(), dimension=live_run.spec.dimension)
        await live_run.reports.submit(Submission(slot, receipt, units))
    return Response(b'{"status":"taken"}', media_type=JSON)


async def _is_asked(live_run: LiveRun, runner: Runner, slot: int, receipt: str) -> bool:
    """Return whether a receipt was chosen; the store is asked if this process may be behind."""
    if live_run.knows(slot):
        return live_run.outcome(slot, receipt) == "chosen"
    return await runner.ask(intake.is_asked, runner.database, live_run.spec.id, slot, receipt)


async def _outcome(
    live_run: LiveRun, runner: Runner, slot: int, receipt: str, *, most_s: float
) -> str | None:
    """Return the outcome of a check-in once it is known, or after ``most_s``."""
    outcome = live_run.outcome(slot, receipt)
    if outcome != "waiting":
        return outcome
    loop = asyncio.get_running_loop()
    until = loop.time() + most_s
    with runner.metrics.waiters.track_inprogress():
        while outcome == "waiting" and not runner.stopping.is_set():
            left = until - loop.time()
            if left <= 0.0 or not await live_run.change(most_s=left):
                break
            outcome = live_run.outcome(slot, receipt)
    return outcome


async def _until_begun(live_run: LiveRun, runner: Runner, slot: int) -> None:
    """Wait until a slot begins; raise ``too-early`` if that takes more than ``EARLY_S``."""
    loop = asyncio.get_running_loop()
    ahead = live_run.spec.begins(slot) - runner.database.now()
    if ahead > EARLY_S or slot > live_run.spec.rules.slots:
        if slot > live_run.spec.rules.slots:
            raise Problem("refused", f"the run has {live_run.spec.rules.slots:,} slots")
        raise Problem("too-early", f"slot {slot} has not begun", retry_after=ahead)
    until = loop.time() + EARLY_S + live_run.spec.choose_s
    while live_run.is_early(slot) and not runner.stopping.is_set():
        left = until - loop.time()
        if left <= 0.0 or not await live_run.change(most_s=left):
            raise Problem("busy", "the slot before is not closed yet", retry_after=1)
    # However long the slot before took to close, which may depend on who was there.
    await asyncio.sleep(max(0.0, live_run.spec.shown(slot - 1) - runner.database.now()))
    if live_run.is_early(slot):
        raise Problem("busy", "this coordinator is stopping; come again", retry_after=1)


def _key_of(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    schema = PARAMETERS["Idempotency-Key"]["schema"]
    if key is not None and not (
        schema["minLength"] <= len(key) <= schema["maxLength"]
        and re.fullmatch(schema["pattern"], key)
    ):
        raise Problem("invalid", "Idempotency-Key: must be 16 to 200 visible characters")
    return key


def _derived(key: bytes, run: str, credential: str, once: str) -> str:
    """Return the token derived from a credential and a key: always the same one."""
    message = "\n".join((run, credential, once)).encode()
    return urlsafe_b64encode(hmac.digest(key, message, sha256)[: randomness.TOKEN_BYTES]).decode()


def _no_receipt() -> Problem:
    return Problem("unknown-receipt", "no check-in of the slot in progress has this receipt")
