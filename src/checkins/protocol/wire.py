"""Definitions of what service and client exchange over HTTP: paths, media types, ids, JSON shapes.

The shapes are ``TypedDict``, so that a device needs no library to read them. The service publishes
them as the schemas of its OpenAPI document, with the text in ``Annotated`` as the description of a
field. Reports and models are bytes (``report``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypedDict

JSON = "application/json"
BYTES = "application/octet-stream"
"""The media type of reports and models: safetensors."""
CAMPAIGN_FILE = "application/toml"
LEDGER = "application/x-ndjson"
PROBLEM = "application/problem+json"
"""The media type of refusals (RFC 9457)."""
PROBLEM_URN = "urn:checkins:"
"""The prefix of the ``type`` of a refusal; the rest is the name of the reason."""

CAMPAIGNS_PATH = "/campaigns"
RUN_PATH = "/campaigns/{run}"
PROGRESS_PATH = "/campaigns/{run}/progress"
ENROLMENTS_PATH = "/campaigns/{run}/enrolments"
CHECK_INS_PATH = "/campaigns/{run}/slots/{slot}/check-ins"
OUTCOME_PATH = "/campaigns/{run}/check-ins/{receipt}"
MODEL_PATH = "/campaigns/{run}/slots/{slot}/model"
REPORT_PATH = "/campaigns/{run}/slots/{slot}/report"
LATEST_MODEL_PATH = "/campaigns/{run}/models/latest"
LEDGER_PATH = "/campaigns/{run}/ledger"
LEDGER_HEAD_PATH = "/campaigns/{run}/ledger/heads/{entries}"
EVENTS_PATH = "/campaigns/{run}/events"

RUN_ID_DIGITS = 12
"""Number of hexadecimal digits of the seal in the id of a run."""
RUN_ID = rf"[0-9a-f]{{{RUN_ID_DIGITS}}}-[0-9]{{1,7}}"
"""The regular expression of the id of a run."""

RunStatus = Literal["waiting", "running", "completed", "stopped"]
OutcomeName = Literal["waiting", "chosen", "dismissed"]
OVER: tuple[RunStatus, ...] = ("completed", "stopped")
"""The statuses of a run that has no further slots."""


def run_id(seal: str, number: int) -> str:
    """Return the id of run ``number`` of the campaign with this seal.

    >>> run_id("sha256:" + "ab" * 32, 2)
    'abababababab-2'
    """
    return f"{seal.removeprefix('sha256:')[:RUN_ID_DIGITS]}-{number}"


def seal_digits(run: str) -> str:
    """Return the digits of the seal in the id of a run: the same for all runs of a campaign.

    >>> seal_digits("abababababab-2")
    'abababababab'
    """
    return run.rpartition("-")[0]


def format_time(moment: float) -> str:
    """Return a time, in seconds since 1970, as text in UTC to the microsecond.

    >>> format_time(0.5)
    '1970-01-01T00:00:00.500000Z'
    """
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: str) -> float:
    """Return a time in seconds since 1970; refuse a text without an offset from UTC.

    >>> parse_time("1970-01-01T00:00:00.500000Z")
    0.5
    """
    moment = datetime.fromisoformat(text)
    if moment.utcoffset() is None:
        raise ValueError("a time needs its offset from UTC")
    return moment.timestamp()


def bearer(credential: str) -> dict[str, str]:
    """Return the header that carries a token, a receipt or a key."""
    return {"Authorization": f"Bearer {credential}"}


_ENCODE = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def to_json(shape: Mapping[str, object]) -> bytes:
    """Return a shape as the body of a response; refuse numbers that are not finite.

    >>> to_json(Outcome(outcome="chosen", slot=3))
    b'{"outcome":"chosen","slot":3}'
    """
    return _ENCODE(shape).encode()


class Schedule(TypedDict):
    """The schedule of a run, on the server's clock."""

    start: Annotated[str, "When slot 1 of this run begins, in UTC"]
    slot_s: float
    choose_s: float
    slots: int


class Tensor(TypedDict):
    """The name and shape of one tensor of the model."""

    name: str
    shape: list[int]


class LedgerPlace(TypedDict):
    """Length and head of the ledger of the population."""

    entries: int
    head: Annotated[str, "The hash of the last line, which depends on every line before it"]


class Budget(TypedDict):
    """The largest epsilon of a campaign, its delta and its neighbour relation."""

    epsilon: float
    delta: float
    adjacency: Literal["add-remove", "replace-one"]


class Spent(TypedDict):
    """An upper bound: the epsilon of the first computed slot count at or above those closed.

    For averaged updates under way it assumes as many contributors as the campaign declares.
    """

    epsilon: Annotated[float | None, "Rounded up; null if none is proved"]
    slots: int


class Summary(TypedDict):
    """One entry of the list of campaigns."""

    id: str
    name: str
    status: RunStatus
    run: int
    repeats: int
    slots: int
    slots_closed: int
    start: str
    slot_s: float


class Campaigns(TypedDict):
    """The list of campaigns."""

    campaigns: Annotated[list[Summary], "Newest first"]
    server_time: str


class RunView(Summary):
    """Everything public about one run of a campaign, without the time of the response."""

    seal: Annotated[str, "sha256: and the hash of the canonical text"]
    population_id: str | None
    campaign: Annotated[str, "The canonical text, as JSON: every sealed parameter"]
    schedule: Schedule
    affordable: Annotated[int, "How many slots the budget of the population allows"]
    dimension: int
    tensors: list[Tensor]
    model_hash: str
    ledger: LedgerPlace
    epoch: Annotated[int, "Grows with each start of the coordinator; never decreases"]
    budget: Budget
    certificate: dict[str, Any]
    spent: Spent | None
    promises: list[str]
    assumptions: list[str]
    next: Annotated[str | None, "The id of the run that follows this one; null if there is none"]
    holding: Annotated[str | None, "Why no slot is closed now; null while slots close"]
    enrolment: Annotated[Literal["open", "secret", "allow-list"], "Who may enrol"]


class CampaignView(RunView):
    """One run of a campaign: everything that is public about it."""

    server_time: str


class Point(TypedDict):
    """The metrics of the model after ``slots`` slots on a public holdout."""

    slots: int
    metrics: dict[str, float]


class Price(TypedDict):
    """The epsilon after ``slots`` slots, rounded up; null if none is proved."""

    slots: int
    epsilon: float | None


class ReleaseMade(TypedDict):
    """The hash of the model that a slot released."""

    slot: int
    model_hash: str


class Progress(TypedDict):
    """Learning curve, epsilons and releases so far."""

    curve: Annotated[list[Point], "Released models on a public holdout"]
    spending: Annotated[list[Price], "Epsilon after so many slots, rounded up"]
    releases: Annotated[list[ReleaseMade], "The latest ones, at most 200"]


class StateEvent(TypedDict):
    """The data of an event ``state``: the position of a run."""

    slots_closed: int
    model_hash: str
    head: str
    entries: int
    spent: Spent | None


class ReleaseEvent(StateEvent):
    """The data of an event ``release``: the position of a run after ``slot``."""

    slot: int


class Token(TypedDict):
    """The response to an enrolment."""

    token: Annotated[str, "Valid for one check-in in this run"]


class Receipt(TypedDict):
    """The response to a check-in."""

    receipt: Annotated[str, "Ask with it whether you were chosen; valid in its slot only"]


class Outcome(TypedDict):
    """Whether the client with a receipt was chosen."""

    outcome: OutcomeName
    slot: int


class Taken(TypedDict):
    """The response to a report that was taken."""

    status: Literal["taken"]


class Health(TypedDict):
    """The response of a coordinator that is alive."""

    status: Literal["ok"]
    epoch: int
    holding: Annotated[str | None, "Why no slot is closed now; null while slots close"]


class Readiness(TypedDict):
    """The response of a coordinator that takes requests."""

    status: Literal["ready"]
    epoch: int


class ProblemDocument(TypedDict):
    """A refusal (RFC 9457): ``type`` is ``PROBLEM_URN`` and the name of the reason."""

    type: str
    title: str
    status: int
    detail: str
