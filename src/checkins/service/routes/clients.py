"""Routes for clients: enrol, check in, ask for the outcome, fetch the model, report, withdraw.

The docstring of a route is its description in the OpenAPI document, and addresses the client.
"""

from __future__ import annotations

import re

from fastapi import APIRouter, Request, Response, status

from checkins.protocol import wire
from checkins.protocol.report import report_from_bytes
from checkins.service.http.problems import Problem
from checkins.service.routes.requests import (
    PARAMETERS,
    RECEIPT_PATTERN,
    PlainRoute,
    bearer_of,
    credential_of,
    integer_of,
    json_response,
    live_run_of,
    number_of,
    openapi_options,
    runner_of,
    unless_disconnected,
    with_model_of,
)
from checkins.service.runs import cached_responses, client_requests
from checkins.service.runs.live_run import LiveRun

router = APIRouter(tags=["clients"], route_class=PlainRoute)


@router.post(
    wire.ENROLMENTS_PATH,
    status_code=status.HTTP_201_CREATED,
    **openapi_options(
        "Enrol in a run",
        wire.Token,
        "run Idempotency-Key",
        security="enrolment",
        problems=("refused", "over", "invalid"),
    ),
)
async def enrol(request: Request) -> Response:
    """The response contains a token for one check-in. Enrolling does not reveal whether you will
    check in, or in which slot."""
    live_run, key = await live_run_of(request), _idempotency_key_of(request)
    token = await client_requests.enrol(runner_of(request), live_run, credential_of(request), key)
    return json_response(wire.Token(token=token), code=status.HTTP_201_CREATED)


@router.delete(
    wire.ENROLMENTS_PATH,
    status_code=status.HTTP_204_NO_CONTENT,
    **openapi_options(
        "Withdraw from a run", None, "run", security="token", problems=("refused", "over")
    ),
)
async def withdraw(request: Request) -> Response:
    """Your token becomes invalid. Your check-in and your report in the current slot are erased."""
    live_run, token = await live_run_of(request), bearer_of(request)
    await client_requests.withdraw(runner_of(request), live_run, token)
    return Response(status_code=status.HTTP_204_NO_CONTENT)


@router.post(
    wire.CHECK_INS_PATH,
    status_code=status.HTTP_202_ACCEPTED,
    **openapi_options(
        "Check in to a slot",
        wire.Receipt | wire.OutcomeWithModel,
        "run slot model wait",
        security="token",
        problems=("refused", "too-early", "over", "invalid"),
    ),
)
async def check_in(request: Request) -> Response:
    """A successful check-in uses up your only participation, whether you are chosen or not. The
    response does not reveal who else has checked in. With `model=true`, the response comes when the
    choice is made, or after `wait` seconds with the outcome `waiting`. If it does not reach you,
    send the check-in again: you get the same receipt."""
    live_run, slot = await live_run_of(request), integer_of(request, "slot")
    token, runner, with_model = bearer_of(request), runner_of(request), with_model_of(request)
    timeout_s = min(number_of(request, "wait"), runner.settings.limits.waiting_s)
    receipt = await client_requests.check_in(runner, live_run, slot, token)
    if not with_model:
        return json_response(wire.Receipt(receipt=receipt), code=status.HTTP_202_ACCEPTED)
    # The slot may be over before its choice is known here. The check-in was accepted all the same.
    outcome = await _outcome(request, live_run, slot, receipt, timeout_s=timeout_s) or "waiting"
    body = cached_responses.outcome_with_model(live_run, slot, outcome, receipt=receipt)
    return Response(body, status.HTTP_202_ACCEPTED, media_type=wire.JSON_TYPE)


@router.get(
    wire.OUTCOME_PATH,
    **openapi_options(
        "Ask whether you were chosen",
        wire.Outcome | wire.OutcomeWithModel,
        "run receipt wait model",
        problems=("unknown-receipt", "invalid"),
    ),
)
async def wait_for_outcome(request: Request) -> Response:
    """The response comes when the choice is made, or after `wait` seconds with the outcome
    `waiting`. The choice is durable before any client learns of it."""
    live_run, runner = await live_run_of(request), runner_of(request)
    timeout_s = min(number_of(request, "wait"), runner.settings.limits.waiting_s)
    receipt, with_model = request.path_params["receipt"], with_model_of(request)
    if not re.fullmatch(RECEIPT_PATTERN, receipt):
        raise client_requests.unknown_receipt()
    slot = await client_requests.slot_of(runner, live_run, receipt)
    outcome = await _outcome(request, live_run, slot, receipt, timeout_s=timeout_s)
    if outcome is None:
        raise client_requests.unknown_receipt()
    if not with_model:
        return json_response(wire.Outcome(outcome=outcome, slot=slot))
    body = cached_responses.outcome_with_model(live_run, slot, outcome, receipt=receipt)
    return Response(body, media_type=wire.JSON_TYPE)


async def _outcome(
    request: Request, live_run: LiveRun, slot: int, receipt: str, *, timeout_s: float
) -> wire.OutcomeName | None:
    """Wait for the outcome of a check-in; return None if its slot is over."""
    runner = runner_of(request)
    outcome = live_run.outcome(slot, receipt)
    if outcome == "waiting":
        next_outcome = client_requests.wait_for_outcome(
            runner, live_run, slot, receipt, timeout_s=timeout_s
        )
        outcome = await unless_disconnected(request, next_outcome)
    if outcome is not None:
        runner.metrics.count_long_poll(outcome)
    return outcome


@router.get(
    wire.MODEL_PATH,
    **openapi_options(
        "The model to train in a slot",
        ("Named float64 tensors as safetensors", wire.BYTES_TYPE),
        "run slot",
        security="receipt",
        problems=("refused", "invalid"),
    ),
)
async def model(request: Request) -> Response:
    """Only a client that was chosen in this slot gets the model."""
    live_run, slot = await live_run_of(request), integer_of(request, "slot")
    receipt = bearer_of(request)
    body = await client_requests.model(runner_of(request), live_run, slot, receipt)
    return Response(body, media_type=wire.BYTES_TYPE)


@router.put(
    wire.REPORT_PATH,
    **openapi_options(
        "Upload a report",
        wire.ReportAccepted,
        "run slot",
        security="receipt",
        body=wire.BYTES_TYPE,
        problems=("refused", "over", "invalid", "too-large", "encoded", "too-many"),
    ),
)
async def report(request: Request) -> Response:
    """The body is safetensors with one flat tensor "report" of 32-bit integers in grid units.
    Sending the same bytes again gets the same response. Different bytes are refused."""
    live_run, slot = await live_run_of(request), integer_of(request, "slot")
    receipt = bearer_of(request)
    async with client_requests.reserve_report_memory(runner_of(request), live_run, slot, receipt):
        units = report_from_bytes(await request.body(), dimension=live_run.spec.dimension)
        await client_requests.save_report(runner_of(request), live_run, slot, receipt, units)
    return json_response(wire.ReportAccepted(status="taken"))


def _idempotency_key_of(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    schema = PARAMETERS["Idempotency-Key"]["schema"]
    if key is not None and not (
        schema["minLength"] <= len(key) <= schema["maxLength"]
        and re.fullmatch(schema["pattern"], key)
    ):
        raise Problem("invalid", "Idempotency-Key: must be 16 to 200 visible characters")
    return key
