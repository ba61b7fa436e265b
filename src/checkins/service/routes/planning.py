"""Planning requests: a public computation, so the work of one question is bounded."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from checkins.errors import InvalidValue
from checkins.planning.question import MOST_CLIENTS, MOST_DIMENSION
from checkins.protocol import wire
from checkins.service.http.problems import Problem
from checkins.service.routes.requests import declared, hung_up, refusals, runner_of
from checkins.service.workers.planner import Planner

router = APIRouter(prefix="/plan", tags=["planning"])

MOST_CAPACITY = 10**9
MOST_TEXT = 40
_WHOLE = re.compile(r"[0-9]{1,16}")
_REAL = re.compile(r"[0-9]{1,16}(\.[0-9]{0,24})?([eE][+-]?[0-9]{1,2})?|\.[0-9]{1,24}")


@dataclass(frozen=True, slots=True)
class NumberParameter:
    """A number of the query and its range."""

    meaning: str
    least: float
    most: float
    whole: bool = False
    required: bool = False

    def schema(self) -> dict[str, Any]:
        kind = "integer" if self.whole else "number"
        return {"type": kind, "minimum": self.least, "maximum": self.most}

    def read(self, name: str, text: str) -> float:
        if (_WHOLE if self.whole else _REAL).fullmatch(text):
            value = int(text) if self.whole else float(text)
            if self.least <= value <= self.most:
                return value
        kind = "an integer" if self.whole else "a number"
        raise Problem("invalid", f"{name}: must be {kind} from {self.least:,} to {self.most:,}")


@dataclass(frozen=True, slots=True)
class WordParameter:
    """A word of the query, one of a few."""

    meaning: str
    words: tuple[str, ...]
    required: bool = False

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.words)}

    def read(self, name: str, text: str) -> str:
        if text not in self.words:
            raise Problem("invalid", f"{name}: must be one of {', '.join(self.words)}")
        return text


class PopulationParameter:
    """A range LO..HI of the query, or one number."""

    meaning = "How many clients there are: LO..HI, or one number"
    required = True

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": r"^[1-9][0-9]{0,9}(\.\.[1-9][0-9]{0,9})?$"}

    def read(self, name: str, text: str) -> list[int]:
        found = re.fullmatch(r"([0-9]{1,11})(?:\.\.([0-9]{1,11}))?", text)
        low, high = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not (1 <= low <= MOST_CLIENTS and 1 <= high <= MOST_CLIENTS):
            must = f"must be an integer or LO..HI, from 1 to {MOST_CLIENTS:,}"
            raise Problem("invalid", f"{name}: {must}")
        if low > high:
            must = "the first must not exceed the second"
            raise Problem("invalid", f"{name} = {low}..{high}: {must}")
        return [low, high]


class CapacityParameter:
    """How many check-ins a slot uses."""

    meaning = "Fix how many check-ins a slot uses at most; `all` with noise at the server"
    required = False

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": r"^([1-9][0-9]{0,8}|all)$"}

    def read(self, name: str, text: str) -> int | str:
        if text == "all":
            return text
        if _WHOLE.fullmatch(text) and 1 <= int(text) < MOST_CAPACITY:
            return int(text)
        raise Problem("invalid", f"{name}: must be all, or an integer from 1")


Parameter = NumberParameter | WordParameter | PopulationParameter | CapacityParameter
_DIMENSION = "Numbers of the model; needed without a task"
_ADJACENCY = "Which two populations must look alike"
_TASK = "What is learned, where it is a known task; it has its own dimension"
_WINDOW = "Fix the slots that a client chooses from (sliding)"
QUESTION: Mapping[str, Parameter] = {
    "population": PopulationParameter(),
    "epsilon": NumberParameter("The budget", 0.01, 50, required=True),
    "delta": NumberParameter("The delta of the budget", 1e-15, 0.1, required=True),
    "adjacency": WordParameter(_ADJACENCY, ("add-remove", "replace-one"), required=True),
    "dimension": NumberParameter(_DIMENSION, 1, MOST_DIMENSION, whole=True),
    "task": WordParameter(_TASK, ("patients", "fashion-mnist", "synthetic")),
}
DEVICES: Mapping[str, Parameter] = {
    "availability_s": NumberParameter("How long a device can be reached", 1, 10**9),
    "uplink_bytes_per_s": NumberParameter("What a device can send", 1, 10**12),
    "dropout": NumberParameter("Share of chosen clients that vanish", 0, 0.95),
}
SERVER: Mapping[str, Parameter] = {
    "updates_per_s": NumberParameter("Reports that the server takes", 1e-3, 10**9),
    "duration_s": NumberParameter("How long the campaign may take", 1, 10**9),
}
FIXED: Mapping[str, Parameter] = {
    "protocol": WordParameter("Fix the protocol", ("fixed", "averaged", "sliding")),
    "slots": NumberParameter("Fix the slots", 1, 10**6, whole=True),
    "participation": NumberParameter("Fix the probability that a client checks in", 1e-6, 1),
    "capacity": CapacityParameter(),
    "window": NumberParameter(_WINDOW, 1, 10**6, whole=True),
    "minibatch": NumberParameter("Fix the slots of a step", 1, 10**6, whole=True),
    "repeats": NumberParameter("Fix how often it is run", 1, 1000, whole=True),
    "noise_at": WordParameter("Fix who adds the noise", ("client", "server")),
    "randomizer": WordParameter("Fix the randomizer", ("gaussian", "laplace", "privunit")),
}
PARAMETERS: Mapping[str, Parameter] = {**QUESTION, **DEVICES, **SERVER, **FIXED}


class Design(BaseModel):
    """One design, with what it costs and what it should bring."""

    label: str
    protocol: Literal["fixed", "averaged", "sliding"]
    slots: int
    participation: float
    capacity: int | Literal["all"] | None
    window: int | None
    minibatch: int
    repeats: int
    noise_at: Literal["client", "server"]
    randomizer: Literal["gaussian", "laplace", "privunit"]
    noise_multiplier: float | None
    local_epsilon: float | None
    epsilon: float = Field(description="Certified, rounded up")
    delta: float
    adjacency: Literal["add-remove", "replace-one"]
    method: str
    rounding: str
    proxy: float = Field(description="Of the accuracy to expect; smaller is better")
    proxy_kind: Literal["theorem", "effective-noise"]
    theorem_risk: float | None = Field(description="The paper's bound, where one applies")
    theorem: str | None
    noise_per_step: float = Field(
        description="Standard deviation of a coordinate of one step's mean update, in clips"
    )
    steps: int
    clients_per_step: float
    dummies_share: float
    duration_s: float
    slot_s: float
    upload_bytes_per_client: float = Field(description="On average, in all runs")
    share_of_clients_that_upload: float
    server_updates_per_s: float
    can_run_on_devices: bool


class Reason(BaseModel):
    sentence: str
    theorem: str


class Case(BaseModel):
    """What happens if the population is half or twice what was thought."""

    population: int
    factor: float
    proxy: float
    noise_per_step: float
    dummies_share: float
    server_updates_per_s: float
    epsilon: float | None = Field(description="Rounded up; null where none is proved")
    sentence: str


class Curves(BaseModel):
    slots: list[dict[str, Any]] = Field(description="The design with other numbers of slots")
    budget: list[dict[str, Any]] = Field(description="What other budgets would buy")


class Plan(BaseModel):
    """A question, the design that is recommended for it, and why."""

    question: dict[str, Any]
    recommended: Design
    front: list[Design] = Field(description="Designs that no other beats in everything")
    reasons: list[Reason]
    sensitivity: list[Case]
    curves: Curves
    campaign: str = Field(description="The text of campaign.toml")
    certificate: dict[str, Any]
    seconds: float
    versions: dict[str, Any]


def planner_of(request: Request) -> Planner:
    """Return the planner of this process; raise ``unknown-path`` if planning is turned off."""
    planner: Planner | None = request.app.state.planner
    if planner is None:
        raise Problem("unknown-path", "this coordinator makes no plans; run `checkins plan`")
    return planner


@router.get(
    "/answer",
    response_model=Plan,
    summary="A plan for a budget",
    openapi_extra={
        "parameters": [
            {"name": name, **declared("query", one.meaning, one.required, **one.schema())}
            for name, one in PARAMETERS.items()
        ]
    },
    responses=refusals("invalid", "unknown-path", "failed"),
)
async def plan(request: Request) -> Response:
    """What `checkins plan --json` answers. Computed beside the campaigns, one at a time; `busy` if
    too many wait. Whoever hangs up is no longer computed for."""
    planner, stopping = planner_of(request), runner_of(request).stopping
    question = question_of(request)
    await request.body()  # what a GET should not have; a disconnection comes after it
    work = asyncio.ensure_future(planner.answer(question))
    others = [asyncio.ensure_future(hung_up(request)), asyncio.ensure_future(stopping.wait())]
    try:
        await asyncio.wait({work, *others}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise Problem("busy", "the service is stopping", retry_after=5)
        return Response(work.result(), media_type=wire.JSON)
    except InvalidValue as error:
        if error.name not in {*DEVICES, *SERVER} or error.name in request.query_params:
            raise
        told = f"{error.name} = {error.value} (the default): {error.expected}"
        raise Problem("invalid", told) from error
    finally:
        for task in (work, *others):
            task.cancel()
        await asyncio.gather(work, *others, return_exceptions=True)


def question_of(request: Request) -> dict[str, Any]:
    """Return the values of the query, grouped as ``checkins.planning`` takes them."""
    given: dict[str, Any] = {}
    for name, text in request.query_params.multi_items():
        known = PARAMETERS.get(name)
        if known is None:
            raise Problem("invalid", f"query: knows no {name[:MOST_TEXT]!r}; see openapi.json")
        if name in given:
            raise Problem("invalid", f"{name}: was given more than once")
        given[name] = known.read(name, text)
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
