"""What clients do: enrol, check in, ask, fetch the model, report, withdraw."""

from __future__ import annotations

import asyncio
import hmac
from base64 import urlsafe_b64encode
from hashlib import sha256
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Request, Response, status

from checkins.protocol.encoding import MEDIA_TYPE, report_from_bytes
from checkins.service import dice, taking, wire
from checkins.service.desk import EARLY_S, Desk
from checkins.service.problems import Problem, documented
from checkins.service.released import released_model
from checkins.service.routes.parts import Credential, SlotNumber, TheDesk, TheRunner, required
from checkins.service.runner import Runner
from checkins.service.taking import CheckIn, Submission, hashed

router = APIRouter(prefix="/campaigns/{run}", tags=["clients"])
ReceiptInPath = Annotated[str, Path(min_length=8, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=16,
        max_length=200,
        description="Anything random: the same key gets the same token, if an answer is lost",
    ),
]
SAFETENSORS = {"content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}}


@router.post(
    "/enrolments",
    response_model=wire.Token,
    status_code=status.HTTP_201_CREATED,
    summary="Enrol in a run",
    responses=documented("unknown-campaign", "not-enrolled", "refused", "over", "invalid"),
)
async def enrol(
    desk: TheDesk, runner: TheRunner, credential: Credential, key: IdempotencyKey = None
) -> wire.Token:
    """A token for one check-in. It says nothing about when you will come, or whether."""
    admitted = runner.settings.enrolment.admits(credential)
    _refuse_if_over(desk)
    run = desk.terms.id
    if admitted is None and key is None:
        token = dice.token()
        await runner.thread(taking.admit, runner.database, run, [hashed(token)])
        return wire.Token(token=token)
    token = _derived(runner.key, run, admitted or "", key or "")

    def keep() -> bool:
        return taking.again(
            lambda: taking.enrol(
                runner.database,
                run,
                token=hashed(token),
                credential=admitted or hashed(key or ""),
                key=hashed(key or ""),
            )
        )

    if not await runner.thread(keep):
        raise Problem("refused", "this key has enrolled in this run; it is given one token")
    return wire.Token(token=token)


@router.delete(
    "/enrolments",
    status_code=status.HTTP_204_NO_CONTENT,
    summary="Withdraw",
    responses=documented("unknown-campaign", "not-enrolled", "refused", "over"),
)
async def withdraw(desk: TheDesk, runner: TheRunner, credential: Credential) -> Response:
    """Your token is spent, and what you have in the slot in progress is erased."""
    _refuse_if_over(desk)
    token = hashed(required(credential))
    if not await runner.thread(taking.withdraw, runner.database, desk.terms.id, token):
        raise Problem("refused", "this token is unknown here, or spent: nothing of it is kept")
    return Response(status_code=status.HTTP_204_NO_CONTENT)


@router.post(
    "/slots/{slot}/check-ins",
    response_model=wire.Receipt,
    status_code=status.HTTP_202_ACCEPTED,
    summary="Check in to a slot",
    responses=documented(
        "unknown-campaign", "not-enrolled", "refused", "too-early", "over", "invalid"
    ),
)
async def check_in(
    desk: TheDesk, runner: TheRunner, slot: SlotNumber, credential: Credential
) -> Response:
    """Your one participation is used up once this is answered, chosen or not. The answer never says
    who else is waiting."""
    token = hashed(required(credential))
    _refuse_if_over(desk)
    if desk.is_early(slot):
        await _until_begun(desk, runner, slot)
    receipt = await desk.check_ins.submit(CheckIn(slot, token))
    desk.issued[receipt] = slot
    return Response(
        b'{"receipt":"%b"}' % receipt.encode(),
        status_code=status.HTTP_202_ACCEPTED,
        media_type="application/json",
    )


@router.get(
    "/check-ins/{receipt}",
    response_model=wire.Outcome,
    summary="Ask whether you were chosen",
    responses=documented("unknown-campaign", "unknown-receipt", "invalid"),
)
async def ask(
    desk: TheDesk,
    runner: TheRunner,
    receipt: ReceiptInPath,
    wait: Annotated[float, Query(ge=0.0, le=60.0, description="Seconds to wait at most")] = 30.0,
) -> Response:
    """Waits until the choice is made, which is durable before anyone is told."""
    slot = desk.issued.get(receipt)
    if slot is None:
        slot = await runner.thread(taking.slot_of, runner.database, desk.terms.id, receipt)
    if slot is None:
        raise _no_receipt()
    loop = asyncio.get_running_loop()
    until = loop.time() + min(wait, runner.settings.limits.waiting_s)
    outcome = desk.outcome(slot, receipt)
    if outcome == "waiting":
        with runner.metrics.waiters.track_inprogress():
            while outcome == "waiting" and not runner.stopping.is_set():
                left = until - loop.time()
                if left <= 0.0 or not await desk.change(most_s=left):
                    break
                outcome = desk.outcome(slot, receipt)
    if outcome is None:
        raise _no_receipt()
    runner.metrics.long_poll(outcome)
    return Response(
        b'{"outcome":"%b","slot":%d}' % (outcome.encode(), slot), media_type="application/json"
    )


@router.get(
    "/slots/{slot}/model",
    response_class=Response,
    summary="The model before a slot",
    responses={
        200: {"description": "Named float64 tensors as safetensors", **SAFETENSORS},
        **documented("unknown-campaign", "not-enrolled", "refused", "invalid"),
    },
)
async def model(desk: TheDesk, slot: SlotNumber, credential: Credential) -> Response:
    """For those who were chosen, with their receipt."""
    if not desk.is_chosen(slot, required(credential)):
        raise Problem("refused", "this receipt is not that of a client chosen in this slot")
    return Response(released_model(desk), media_type=MEDIA_TYPE)


@router.put(
    "/slots/{slot}/report",
    response_model=wire.Taken,
    summary="Hand in a report",
    openapi_extra={"requestBody": {"required": True, **SAFETENSORS}},
    responses=documented(
        "unknown-campaign", "not-enrolled", "refused", "over", "invalid", "too-large", "encoded"
    ),
)
async def report(
    request: Request, desk: TheDesk, slot: SlotNumber, credential: Credential
) -> Response:
    """One flat tensor "report" of 32-bit integers in grid units, as safetensors. Sending the same
    bytes again is answered the same; other bytes are refused."""
    receipt = required(credential)
    _refuse_if_over(desk)
    units = report_from_bytes(await request.body(), dimension=desk.terms.dimension)
    await desk.reports.submit(Submission(slot, receipt, units))
    return Response(b'{"status":"taken"}', media_type="application/json")


async def _until_begun(desk: Desk, runner: Runner, slot: int) -> None:
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


def _refuse_if_over(desk: Desk) -> None:
    if desk.is_over:
        raise Problem("over", "this run is over; its models and its ledger stay")


def _derived(key: bytes, run: str, credential: str, once: str) -> str:
    """The token of a credential and a key: the same as often as it is asked for."""
    message = "\n".join((run, credential, once)).encode()
    return urlsafe_b64encode(hmac.digest(key, message, sha256)[: dice.TOKEN_BYTES]).decode()


def _no_receipt() -> Problem:
    return Problem("unknown-receipt", "no check-in of the slot in progress has this receipt")
