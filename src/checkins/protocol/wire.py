"""What service and client exchange over HTTP: paths, media types, run ids, times, JSON shapes.

The shapes are ``TypedDict``, so that a device needs no library to read them; the service publishes
them as the schemas of its OpenAPI document. Reports and models are bytes (``report``).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal, TypedDict

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

RunStatus = Literal["waiting", "running", "completed", "stopped"]
OutcomeName = Literal["waiting", "chosen", "dismissed"]
OVER: tuple[RunStatus, ...] = ("completed", "stopped")
"""The statuses of a run of which no slot is to come."""


def run_id(seal: str, number: int) -> str:
    """Return the id of run ``number`` of the campaign with this seal.

    >>> run_id("sha256:" + "ab" * 32, 2)
    'abababababab-2'
    """
    return f"{seal.removeprefix('sha256:')[:RUN_ID_DIGITS]}-{number}"


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


class Schedule(TypedDict):
    """When the slots of a run are, on the server's clock; ``start`` is that of slot 1."""

    start: str
    slot_s: float
    choose_s: float
    slots: int


class Tensor(TypedDict):
    """The name and shape of one tensor of the model."""

    name: str
    shape: list[int]


class LedgerPlace(TypedDict):
    """The length of the population's ledger, and the hash of its last line."""

    entries: int
    head: str


class Budget(TypedDict):
    """The largest epsilon of a campaign, at which delta and between which neighbours."""

    epsilon: float
    delta: float
    adjacency: Literal["add-remove", "replace-one"]


class Spent(TypedDict):
    """An upper bound on the epsilon after ``slots`` slots; null if none is proved."""

    epsilon: float | None
    slots: int


class Summary(TypedDict):
    """One line of the list of campaigns."""

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
    """The list of campaigns, newest first."""

    campaigns: list[Summary]
    server_time: str


class CampaignView(Summary):
    """One run of a campaign: everything that is public about it.

    ``campaign`` is the canonical form, whose hash is ``seal``. ``epoch`` grows with each start of
    the coordinator and never decreases. ``next`` is the id of the run that follows; null if there
    is none. ``holding`` is the reason why no slot is closed now; null while slots close.
    """

    seal: str
    population_id: str | None
    campaign: str
    schedule: Schedule
    affordable: int
    dimension: int
    tensors: list[Tensor]
    model_hash: str
    ledger: LedgerPlace
    epoch: int
    budget: Budget
    certificate: dict[str, Any]
    spent: Spent | None
    promises: list[str]
    assumptions: list[str]
    next: str | None
    holding: str | None
    enrolment: Literal["open", "secret", "allow-list"]
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
    """The learning curve, the epsilon after each slot, and the latest releases."""

    curve: list[Point]
    spending: list[Price]
    releases: list[ReleaseMade]


class Token(TypedDict):
    """What enrolment returns: a token for one check-in in this run."""

    token: str


class Receipt(TypedDict):
    """What a check-in returns: a receipt to ask for the outcome, valid in its slot only."""

    receipt: str


class Outcome(TypedDict):
    """Whether the client with a receipt was chosen."""

    outcome: OutcomeName
    slot: int


class Taken(TypedDict):
    """The answer to a report that was taken."""

    status: Literal["taken"]


class Health(TypedDict):
    """The answer of a coordinator that is alive."""

    status: Literal["ok"]
    epoch: int
    holding: str | None


class Readiness(TypedDict):
    """The answer of a coordinator that takes requests."""

    status: Literal["ready"]
    epoch: int


SHAPES: tuple[Any, ...] = (
    Schedule,
    Tensor,
    LedgerPlace,
    Budget,
    Spent,
    Summary,
    Campaigns,
    CampaignView,
    Point,
    Price,
    ReleaseMade,
    Progress,
    Token,
    Receipt,
    Outcome,
    Taken,
    Health,
    Readiness,
)
"""Every JSON shape that the service answers with."""
