"""The route of the planner. It is public, so the range of every parameter is limited."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from checkins.accounting.noise_strategy import MOST_BANDS
from checkins.errors import InvalidValue
from checkins.planning.question import MAX_CLIENTS, MAX_DIMENSION
from checkins.protocol import wire
from checkins.service.http.problems import Problem
from checkins.service.routes.requests import (
    openapi_options,
    parameter,
    runner_of,
    wait_for_disconnect,
)
from checkins.service.workers.planner import Planner

router = APIRouter(prefix="/plan", tags=["planning"])

MAX_CAPACITY = 10**9
MAX_NAME_CHARS = 40  # characters of an unknown parameter's name that an error message repeats
_INTEGER = re.compile(r"[0-9]{1,16}")
_DECIMAL = re.compile(r"[0-9]{1,16}(\.[0-9]{0,24})?([eE][+-]?[0-9]{1,2})?|\.[0-9]{1,24}")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter in the query. ``parse`` raises ValueError if the text of a value is invalid."""

    meaning: str
    schema: Mapping[str, Any]
    parse: Callable[[str], object]
    required: bool = False


def _number(
    meaning: str, minimum: float, maximum: float, *, integer: bool = False, required: bool = False
) -> Parameter:
    """Return a parameter that is a number from ``minimum`` to ``maximum``."""

    def parse(text: str) -> float:
        if (_INTEGER if integer else _DECIMAL).fullmatch(text):
            value = int(text) if integer else float(text)
            if minimum <= value <= maximum:
                return value
        kind = "an integer" if integer else "a number"
        raise ValueError(f"must be {kind} from {minimum:,} to {maximum:,}")

    schema = {"type": "integer" if integer else "number", "minimum": minimum, "maximum": maximum}
    return Parameter(meaning, schema, parse, required)


def _choice(meaning: str, *choices: str, required: bool = False) -> Parameter:
    """Return a parameter that is one of ``choices``."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return text

    return Parameter(meaning, {"type": "string", "enum": list(choices)}, parse, required)


def _parse_population(text: str) -> list[int]:
    match = re.fullmatch(r"([0-9]{1,11})(?:\.\.([0-9]{1,11}))?", text)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not (1 <= low <= MAX_CLIENTS and 1 <= high <= MAX_CLIENTS):
        raise ValueError(f"must be an integer or LO..HI, from 1 to {MAX_CLIENTS:,}")
    if low > high:
        expected = "the smallest number must not exceed the largest"
        raise Problem("invalid", f"population = {low}..{high}: {expected}")
    return [low, high]


def _parse_capacity(text: str) -> int | str:
    if text == "all":
        return text
    if _INTEGER.fullmatch(text) and 1 <= int(text) < MAX_CAPACITY:
        return int(text)
    raise ValueError("must be all, or an integer from 1")


_POPULATION_MEANING = "Number of clients: one number, or a range LO..HI"
_POPULATION_SCHEMA = {"type": "string", "pattern": r"^[1-9][0-9]{0,9}(\.\.[1-9][0-9]{0,9})?$"}
_CAPACITY_MEANING = (
    "Fix the largest number of check-ins that a slot uses; `all` only with noise at the server"
)
_CAPACITY_SCHEMA = {"type": "string", "pattern": r"^([1-9][0-9]{0,8}|all)$"}
_DIMENSION_MEANING = "Number of coordinates of the model; required if no `task` is given"
_ADJACENCY_MEANING = "Neighbour relation of differential privacy"
_TASK_MEANING = "A task of the package to learn; given instead of `dimension`"
_WINDOW_MEANING = "Fix the number of slots that a client draws from (sliding only)"
_BANDS_MEANING = "Fix the number of slots that share noise; 1 is independent noise"
# The parameters are in the groups that ``checkins.planning`` expects. FIXED ones fix the design.
QUESTION: Mapping[str, Parameter] = {
    "population": Parameter(_POPULATION_MEANING, _POPULATION_SCHEMA, _parse_population, True),
    "epsilon": _number("The epsilon of the budget", 0.01, 50, required=True),
    "delta": _number("The delta of the budget", 1e-15, 0.1, required=True),
    "adjacency": _choice(_ADJACENCY_MEANING, "add-remove", "replace-one", required=True),
    "dimension": _number(_DIMENSION_MEANING, 1, MAX_DIMENSION, integer=True),
    "task": _choice(_TASK_MEANING, "patients", "fashion-mnist", "synthetic"),
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
    "protocol": _choice("Fix the protocol", "fixed", "averaged", "sliding"),
    "slots": _number("Fix the number of slots", 1, 10**6, integer=True),
    "participation": _number("Fix the probability that a client checks in", 1e-6, 1),
    "capacity": Parameter(_CAPACITY_MEANING, _CAPACITY_SCHEMA, _parse_capacity),
    "window": _number(_WINDOW_MEANING, 1, 10**6, integer=True),
    "minibatch": _number("Fix the number of slots per model step", 1, 10**6, integer=True),
    "repeats": _number("Fix the number of runs", 1, 1000, integer=True),
    "bands": _number(_BANDS_MEANING, 1, MOST_BANDS, integer=True),
    "noise_at": _choice("Fix who adds the noise", "client", "server"),
    "randomizer": _choice("Fix the randomizer", "gaussian", "laplace", "privunit"),
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
    bands: int = Field(description="Number of slots that share noise; 1 if noise is independent")
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
    **openapi_options(
        "Plan a campaign for a privacy budget", None, problems=("invalid", "unknown-path", "failed")
    ),
    response_model=Plan,
    openapi_extra={
        "parameters": [
            {"name": name, **parameter("query", each.meaning, each.required, **each.schema)}
            for name, each in PARAMETERS.items()
        ]
    },
)
async def plan(request: Request) -> Response:
    """The response is the output of `checkins plan --json`. A separate process computes one plan at
    a time. If too many requests wait, the response is `busy`. If you disconnect, your plan is
    cancelled."""
    planner, stopping = planner_of(request), runner_of(request).stopping
    question = question_of(request)
    await request.body()  # read the body, if any, so that wait_for_disconnect sees a disconnection
    plan_task = asyncio.ensure_future(planner.answer(question))
    cancel_tasks = [
        asyncio.ensure_future(end) for end in (wait_for_disconnect(request), stopping.wait())
    ]
    try:
        await asyncio.wait({plan_task, *cancel_tasks}, return_when=asyncio.FIRST_COMPLETED)
        if not plan_task.done():
            raise Problem("busy", "the service is stopping", retry_after=5)
        return Response(plan_task.result(), media_type=wire.JSON_TYPE)
    except InvalidValue as error:
        if error.name not in {*DEVICES, *SERVER} or error.name in request.query_params:
            raise
        detail = f"{error.name} = {error.value} (the default): {error.expected}"
        raise Problem("invalid", detail) from error
    finally:
        for task in (plan_task, *cancel_tasks):
            task.cancel()
        await asyncio.gather(plan_task, *cancel_tasks, return_exceptions=True)


def question_of(request: Request) -> dict[str, Any]:
    """Parse the parameters of the query, and return them in groups; raise ``invalid`` on errors."""
    values: dict[str, Any] = {}
    for name, text in request.query_params.multi_items():
        definition = PARAMETERS.get(name)
        if definition is None:
            unknown = name[:MAX_NAME_CHARS]
            raise Problem("invalid", f"query: unknown parameter {unknown!r}; see openapi.json")
        if name in values:
            raise Problem("invalid", f"{name}: was given more than once")
        try:
            values[name] = definition.parse(text)
        except ValueError as error:
            raise Problem("invalid", f"{name}: {error}") from None
    for name, definition in PARAMETERS.items():
        if definition.required and name not in values:
            raise Problem("invalid", f"{name}: is missing, and has no default")
    if "dimension" in values and "task" in values:
        raise Problem(
            "invalid",
            f"dimension = {values['dimension']}: task = {values['task']} already determines the"
            " dimension: give only one of them",
        )
    if "dimension" not in values and "task" not in values:
        raise Problem("invalid", "dimension: is missing; give it, or a task that determines it")

    def values_of(names: Mapping[str, Any]) -> dict[str, Any]:
        return {name: values[name] for name in names if name in values}

    groups = {"devices": values_of(DEVICES), "server": values_of(SERVER), "fixed": values_of(FIXED)}
    return {**values_of(QUESTION), **groups}
