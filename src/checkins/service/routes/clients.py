"""What clients do: enrol, check in, ask, fetch the model, report, withdraw."""

from __future__ import annotations

import asyncio
import hmac
import re
from base64 import urlsafe_b64encode
from hashlib import sha256

from fastapi import APIRouter, Request, Response, status

from checkins.protocol.report import MEDIA_TYPE, report_from_bytes
from checkins.service import clock_watch, intake, randomness, wire
from checkins.service.intake import CheckIn, Enrolment, Submission, hashed
from checkins.service.live_run import EARLY_S, LiveRun
from checkins.service.memory import REPORT_BYTES
from checkins.service.problems import Problem
from checkins.service.released import released_model
from checkins.service.routes.requests import (
    BINARY,
    JSON,
    PARAMETERS,
    RECEIPT,
    bearer_of,
    credential_of,
    desk_of,
    number_of,
    refusals,
    refuse_if_over,
    runner_of,
    slot_of,
    takes,
    unless_gone,
)
from checkins.service.routes.routing import PlainRoute
from checkins.service.runner import Runner

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
    desk, runner, key = await desk_of(request), runner_of(request), _key_of(request)
    admitted = runner.settings.enrolment.admits(credential_of(request))
    refuse_if_over(desk)
    if admitted is None and key is None:
        token, enrolment = randomness.token(), None
    else:
        token = _derived(runner.key, desk.terms.id, admitted or "", key or "")
        enrolment = admitted or hashed(key or "")
    await desk.enrolments.submit(Enrolment(hashed(token), enrolment, hashed(key or "")))
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
    desk, runner, token = await desk_of(request), runner_of(request), hashed(bearer_of(request))
    refuse_if_over(desk)
    if not await runner.ask(intake.withdraw, runner.database, desk.terms.id, token):
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
    desk, slot, token = await desk_of(request), slot_of(request), hashed(bearer_of(request))
    runner = runner_of(request)
    refuse_if_over(desk)
    clock_watch.refuse_while_holding(runner.database)
    if desk.is_early(slot):
        await _until_begun(desk, runner, slot)
        clock_watch.refuse_while_holding(runner.database)
    receipt = await desk.check_ins.submit(CheckIn(slot, token))
    desk.issued[receipt] = slot
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
    desk, runner, wait = await desk_of(request), runner_of(request), number_of(request, "wait")
    receipt = request.path_params["receipt"]
    if not re.fullmatch(RECEIPT, receipt):
        raise _no_receipt()
    slot = desk.issued.get(receipt)
    if slot is None:
        slot = await runner.ask(intake.slot_of, runner.database, desk.terms.id, receipt)
    if slot is None:
        raise _no_receipt()
    most_s = min(wait, runner.settings.limits.waiting_s)
    outcome = desk.outcome(slot, receipt)
    if outcome == "waiting":
        waiting = _outcome(desk, runner, slot, receipt, most_s=most_s)
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
    desk, slot, receipt = await desk_of(request), slot_of(request), bearer_of(request)
    outcome = await _outcome(desk, runner_of(request), slot, receipt, most_s=EARLY_S)
    if outcome != "chosen":
        raise Problem("refused", "this receipt is not that of a client chosen in this slot")
    return Response(released_model(desk, desk.standing), media_type=MEDIA_TYPE)


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
    desk, slot, receipt = await desk_of(request), slot_of(request), bearer_of(request)
    refuse_if_over(desk)
    runner, size = runner_of(request), REPORT_BYTES * desk.terms.dimension
    # Before its body is read: whoever sends slowly holds room, which is for those who were chosen.
    if not await _is_asked(desk, runner, slot, receipt):
        raise Problem("refused", "no report is asked of this receipt in this slot")
    # One at a time of a receipt, and more than fit wait before they are read.
    async with desk.report_of(receipt), runner.arriving.lent(size):
        units = report_from_bytes(await request.body(), dimension=desk.terms.dimension)
        await desk.reports.submit(Submission(slot, receipt, units))
    return Response(b'{"status":"taken"}', media_type=JSON)


async def _is_asked(desk: LiveRun, runner: Runner, slot: int, receipt: str) -> bool:
    """Whether a report is asked of a receipt; the store is asked where this desk may be behind."""
    if desk.knows(slot):
        return desk.outcome(slot, receipt) == "chosen"
    return await runner.ask(intake.is_asked, runner.database, desk.terms.id, slot, receipt)


async def _outcome(
    desk: LiveRun, runner: Runner, slot: int, receipt: str, *, most_s: float
) -> str | None:
    """What became of a check-in, once it is known or time is up."""
    outcome = desk.outcome(slot, receipt)
    if outcome != "waiting":
        return outcome
    loop = asyncio.get_running_loop()
    until = loop.time() + most_s
    with runner.metrics.waiters.track_inprogress():
        while outcome == "waiting" and not runner.stopping.is_set():
            left = until - loop.time()
            if left <= 0.0 or not await desk.change(most_s=left):
                break
            outcome = desk.outcome(slot, receipt)
    return outcome


async def _until_begun(desk: LiveRun, runner: Runner, slot: int) -> None:
    """Let a client that is a little early wait; send one that is earlier away."""
    loop = asyncio.get_running_loop()
    ahead = desk.terms.begins(slot) - runner.database.now()
    if ahead > EARLY_S or slot > desk.terms.rules.slots:
        if slot > desk.terms.rules.slots:
            raise Problem("refused", f"the run has {desk.terms.rules.slots:,} slots")
        raise Problem("too-early", f"slot {slot} has not begun", retry_after=ahead)
    until = loop.time() + EARLY_S + desk.terms.choose_s
    while desk.is_early(slot) and not runner.stopping.is_set():
        left = until - loop.time()
        if left <= 0.0 or not await desk.change(most_s=left):
            raise Problem("busy", "the slot before is not closed yet", retry_after=1)
    # However long the slot before took to close, which may depend on who was there.
    await asyncio.sleep(max(0.0, desk.terms.shown(slot - 1) - runner.database.now()))
    if desk.is_early(slot):
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
    """The token of a credential and a key: the same as often as it is asked for."""
    message = "\n".join((run, credential, once)).encode()
    return urlsafe_b64encode(hmac.digest(key, message, sha256)[: randomness.TOKEN_BYTES]).decode()


def _no_receipt() -> Problem:
    return Problem("unknown-receipt", "no check-in of the slot in progress has this receipt")
