"""The route of the planner. It is public, so the range of every parameter is limited."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from checkins.errors import InvalidValue
from checkins.planning.question import MOST_CLIENTS, MOST_DIMENSION
from checkins.protocol import wire
from checkins.service.http.problems import Problem
from checkins.service.routes.requests import (
    described,
    disconnected,
    parameter,
    runner_of,
)
from checkins.service.workers.planner import Planner

router = APIRouter(prefix="/plan", tags=["planning"])

MOST_CAPACITY = 10**9
MOST_TEXT = 40
_WHOLE = re.compile(r"[0-9]{1,16}")
_REAL = re.compile(r"[0-9]{1,16}(\.[0-9]{0,24})?([eE][+-]?[0-9]{1,2})?|\.[0-9]{1,24}")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter in the query. ``read`` parses its text, or raises ValueError if it is invalid."""

    meaning: str
    schema: Mapping[str, Any]
    read: Callable[[str], object]
    required: bool = False


def _number(
    meaning: str, least: float, most: float, *, whole: bool = False, required: bool = False
) -> Parameter:
    """Return a parameter that is a number from ``least`` to ``most``."""

    def read(text: str) -> float:
        if (_WHOLE if whole else _REAL).fullmatch(text):
            value = int(text) if whole else float(text)
            if least <= value <= most:
                return value
        kind = "an integer" if whole else "a number"
        raise ValueError(f"must be {kind} from {least:,} to {most:,}")

    kind = "integer" if whole else "number"
    return Parameter(meaning, {"type": kind, "minimum": least, "maximum": most}, read, required)


def _word(meaning: str, *words: str, required: bool = False) -> Parameter:
    """Return a parameter that is one of ``words``."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return text

    return Parameter(meaning, {"type": "string", "enum": list(words)}, read, required)


def _population(text: str) -> list[int]:
    found = re.fullmatch(r"([0-9]{1,11})(?:\.\.([0-9]{1,11}))?", text)
    low, high = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not (1 <= low <= MOST_CLIENTS and 1 <= high <= MOST_CLIENTS):
        raise ValueError(f"must be an integer or LO..HI, from 1 to {MOST_CLIENTS:,}")
    if low > high:
        must = "the first must not exceed the second"
        raise Problem("invalid", f"population = {low}..{high}: {must}")
    return [low, high]


def _capacity(text: str) -> int | str:
    if text == "all":
        return text
    if _WHOLE.fullmatch(text) and 1 <= int(text) < MOST_CAPACITY:
        return int(text)
    raise ValueError("must be all, or an integer from 1")


_POPULATION = "Number of clients: one number, or a range LO..HI"
_RANGE = r"^[1-9][0-9]{0,9}(\.\.[1-9][0-9]{0,9})?$"
_CAPACITY = (
    "Fix the largest number of check-ins that a slot uses; `all` only with noise at the server"
)
_COUNT_OR_ALL = r"^([1-9][0-9]{0,8}|all)$"
_DIMENSION = "Number of coordinates of the model; required if no `task` is given"
_ADJACENCY = "Neighbour relation of differential privacy"
_TASK = "A task of the package to learn; given instead of `dimension`"
_WINDOW = "Fix the number of slots that a client draws from (sliding only)"
QUESTION: Mapping[str, Parameter] = {
    "population": Parameter(_POPULATION, {"type": "string", "pattern": _RANGE}, _population, True),
    "epsilon": _number("The epsilon of the budget", 0.01, 50, required=True),
    "delta": _number("The delta of the budget", 1e-15, 0.1, required=True),
    "adjacency": _word(_ADJACENCY, "add-remove", "replace-one", required=True),
    "dimension": _number(_DIMENSION, 1, MOST_DIMENSION, whole=True),
    "task": _word(_TASK, "patients", "fashion-mnist", "synthetic"),
}
DEVICES: Mapping[str, Parameter] = {
    "availability_s": _number(
        "Seconds for which a device stays available after it joined", 1, 10**9
    ),
    "uplink_bytes_per_s": _number("Upload rate of a device in bytes per second", 1, 10**12),
    "dropout": _number("Share of chosen clients that send no report", 0, 0.95),
}
SERVER: Mapping[str, Parameter] = {
    "updates_per_s": _number(
        "Largest number of reports per second that the server accepts", 1e-3, 10**9
    ),
    "duration_s": _number("Largest duration of all runs together, in seconds", 1, 10**9),
}
FIXED: Mapping[str, Parameter] = {
    "protocol": _word("Fix the protocol", "fixed", "averaged", "sliding"),
    "slots": _number("Fix the number of slots", 1, 10**6, whole=True),
    "participation": _number("Fix the probability that a client checks in", 1e-6, 1),
    "capacity": Parameter(_CAPACITY, {"type": "string", "pattern": _COUNT_OR_ALL}, _capacity),
    "window": _number(_WINDOW, 1, 10**6, whole=True),
    "minibatch": _number("Fix the number of slots per model step", 1, 10**6, whole=True),
    "repeats": _number("Fix the number of runs", 1, 1000, whole=True),
    "noise_at": _word("Fix who adds the noise", "client", "server"),
    "randomizer": _word("Fix the randomizer", "gaussian", "laplace", "privunit"),
}
PARAMETERS: Mapping[str, Parameter] = {**QUESTION, **DEVICES, **SERVER, **FIXED}


class Design(BaseModel):
    """One design, with its epsilon, its expected accuracy and its load on devices and server."""

    label: str
    protocol: Literal["fixed", "averaged", "sliding"]
    slots: int
    participation: float = Field(description="Probability that a client checks in")
    capacity: int | Literal["all"] | None = Field(
        description="Largest number of check-ins that a slot uses; null for averaged updates"
    )
    window: int | None = Field(description="Number of slots that a client draws from (sliding)")
    minibatch: int = Field(description="Number of slots per model step")
    repeats: int = Field(description="Number of runs")
    noise_at: Literal["client", "server"]
    randomizer: Literal["gaussian", "laplace", "privunit"]
    noise_multiplier: float | None = Field(
        description="Standard deviation of Gaussian noise divided by the clipping norm; else null"
    )
    local_epsilon: float | None = Field(
        description="Epsilon of one report; null for Gaussian noise"
    )
    epsilon: float = Field(description="Certified upper bound, rounded up")
    delta: float
    adjacency: Literal["add-remove", "replace-one"]
    method: str = Field(description="The accounting method that proves epsilon")
    rounding: str = Field(description="In which direction epsilon is rounded, in words")
    proxy: float = Field(description="Estimate of the expected error; smaller is better")
    proxy_kind: Literal["theorem", "effective-noise"] = Field(description="How `proxy` is computed")
    theorem_risk: float | None = Field(
        description="Bound of the paper (arXiv:2007.06605) on the excess risk; null if none"
    )
    theorem: str | None = Field(description="The theorem of `theorem_risk`")
    noise_per_step: float = Field(
        description="Standard deviation of the noise in one coordinate of a step's mean update,"
        " as a multiple of the clipping norm"
    )
    steps: int = Field(description="Number of model steps in all runs")
    clients_per_step: float = Field(description="Expected number of reports per model step")
    dummies_share: float = Field(
        description="Expected share of dummy reports, which replace missing reports. With noise at"
        " the server, expected share of empty slots"
    )
    duration_s: float = Field(description="Seconds that all runs take")
    slot_s: float = Field(description="Seconds that a slot takes")
    upload_bytes_per_client: float = Field(description="Mean upload of a client in all runs")
    share_of_clients_that_upload: float
    server_updates_per_s: float = Field(description="Reports per second that the server receives")
    can_run_on_devices: bool


class Reason(BaseModel):
    """One reason for the recommended design, and the theorem or document that supports it."""

    sentence: str
    theorem: str


class Case(BaseModel):
    """The recommended design if the population is half or twice as large as expected."""

    population: int = Field(description="Number of clients in this case")
    factor: float = Field(description="`population` divided by the expected number of clients")
    proxy: float = Field(description="As in Design")
    noise_per_step: float = Field(description="As in Design")
    dummies_share: float = Field(description="As in Design")
    server_updates_per_s: float = Field(description="As in Design")
    epsilon: float | None = Field(description="Rounded up; null if none is proved")
    sentence: str = Field(description="The case in words")


class Curves(BaseModel):
    """Noise and proxy of the recommended design if one parameter is changed."""

    slots: list[dict[str, Any]] = Field(description="One point for each number of slots")
    budget: list[dict[str, Any]] = Field(description="One point for each epsilon of the budget")


class Plan(BaseModel):
    """The question, the recommended design and the reasons for it."""

    question: dict[str, Any]
    recommended: Design
    front: list[Design] = Field(
        description="Designs that are not dominated in accuracy, epsilon, duration and upload"
    )
    reasons: list[Reason]
    sensitivity: list[Case]
    curves: Curves
    campaign: str = Field(description="The text of a campaign.toml with the recommended design")
    certificate: dict[str, Any] = Field(description="The certificate of the recommended design")
    seconds: float = Field(description="Seconds that the computation took")
    versions: dict[str, Any] = Field(description="Versions of Python and of the packages used")


def planner_of(request: Request) -> Planner:
    """Return the planner of this process; raise ``unknown-path`` if planning is turned off."""
    planner: Planner | None = request.app.state.planner
    if planner is None:
        raise Problem("unknown-path", "planning is turned off here; run `checkins plan`")
    return planner


@router.get(
    "/answer",
    **described(
        "Plan a campaign for a privacy budget", None, problems="invalid unknown-path failed"
    ),
    response_model=Plan,
    openapi_extra={
        "parameters": [
            {"name": name, **parameter("query", one.meaning, one.required, **one.schema)}
            for name, one in PARAMETERS.items()
        ]
    },
)
async def plan(request: Request) -> Response:
    """The response is the output of `checkins plan --json`. A separate process computes one plan at
    a time. If too many requests wait, the response is `busy`. If you disconnect, your plan is
    cancelled."""
    planner, stopping = planner_of(request), runner_of(request).stopping
    question = question_of(request)
    await request.body()  # read the body, if any, so that disconnected sees a disconnection
    work = asyncio.ensure_future(planner.answer(question))
    others = [asyncio.ensure_future(disconnected(request)), asyncio.ensure_future(stopping.wait())]
    try:
        await asyncio.wait({work, *others}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise Problem("busy", "the service is stopping", retry_after=5)
        return Response(work.result(), media_type=wire.JSON)
    except InvalidValue as error:
        if error.name not in {*DEVICES, *SERVER} or error.name in request.query_params:
            raise
        detail = f"{error.name} = {error.value} (the default): {error.expected}"
        raise Problem("invalid", detail) from error
    finally:
        for task in (work, *others):
            task.cancel()
        await asyncio.gather(work, *others, return_exceptions=True)


def question_of(request: Request) -> dict[str, Any]:
    """Return the parameters of the query in the groups that ``checkins.planning`` expects."""
    given: dict[str, Any] = {}
    for name, text in request.query_params.multi_items():
        known = PARAMETERS.get(name)
        if known is None:
            raise Problem("invalid", f"query: knows no {name[:MOST_TEXT]!r}; see openapi.json")
        if name in given:
            raise Problem("invalid", f"{name}: was given more than once")
        try:
            given[name] = known.read(text)
        except ValueError as error:
            raise Problem("invalid", f"{name}: {error}") from None
    for name, known in PARAMETERS.items():
        if known.required and name not in given:
            raise Problem("invalid", f"{name}: is missing, and has no default")
    if "dimension" in given and "task" in given:
        raise Problem(
            "invalid",
            f"dimension = {given['dimension']}: goes without task = {given['task']}, which has its"
            " own: leave one of them out",
        )
    if "dimension" not in given and "task" not in given:
        raise Problem("invalid", "dimension: is missing; give it, or a task, which has its own")

    def part(names: Mapping[str, Any]) -> dict[str, Any]:
        return {name: given[name] for name in names if name in given}

    groups = {"devices": part(DEVICES), "server": part(SERVER), "fixed": part(FIXED)}
    return {**part(QUESTION), **groups}
