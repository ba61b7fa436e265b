"""The HTTP interface of service and client: paths, media types, ids and JSON objects.

JSON objects are ``TypedDict`` classes, so that a device needs no library to read them. The service
publishes them as schemas in its OpenAPI document. The text in ``Annotated`` describes a field.
Reports and models are not JSON but bytes (``report.py``).
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypedDict

JSON_TYPE = "application/json"
BYTES_TYPE = "application/octet-stream"
"""The media type of reports and models, which are in the safetensors format."""
CAMPAIGN_FILE_TYPE = "application/toml"
LEDGER_TYPE = "application/x-ndjson"
PROBLEM_TYPE = "application/problem+json"
"""The media type of problem documents (RFC 9457)."""
PROBLEM_URN = "urn:checkins:"
"""The prefix of the field ``type`` of a problem document. The problem's name follows it."""

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
SIGNED_HEAD_PATH = "/campaigns/{run}/ledger/heads/{entries}/signature"
ALLOW_LIST_PATH = "/allow-list"
ADDED_KEYS_PATH = "/allow-list/additions"
REVOKED_KEYS_PATH = "/allow-list/revocations"
OPERATORS_PATH = "/operators"
OPERATOR_PATH = "/operators/{name}"
OPERATOR_LOG_PATH = "/operator-log"
EVENTS_PATH = "/campaigns/{run}/events"

RUN_ID_DIGITS = 12
"""Number of hexadecimal digits at the start of a run's id. They come from the campaign's seal."""
RUN_ID = rf"[0-9a-f]{{{RUN_ID_DIGITS}}}-[0-9]{{1,7}}"
"""The regular expression of a run's id."""
SHA256_PATTERN = re.compile(r"[0-9a-f]{64}")
"""The regular expression of a hash."""
MAX_INLINE_MODEL_BYTES = 2**16
"""Largest model in bytes that an ``OutcomeWithModel`` contains."""
MAX_OUTCOME_BYTES = 2**17
"""Largest ``OutcomeWithModel`` in bytes. In base64, a model takes four thirds of its size."""
MAX_NUMBERS = 2**24
"""Largest number of parameters of a model. A ledger line with such a model has 180 MB."""

RunStatus = Literal["waiting", "running", "completed", "stopped"]
OperatorRole = Literal["operator", "metrics"]
OutcomeName = Literal["waiting", "chosen", "dismissed"]
FINISHED_STATUSES: tuple[RunStatus, ...] = ("completed", "stopped")
"""The statuses of a run that has no further slots."""


def run_id(seal: str, number: int) -> str:
    """Return the id of run ``number`` of the campaign with this seal (the hash of its parameters).

    >>> run_id("sha256:" + "ab" * 32, 2)
    'abababababab-2'
    """
    return f"{seal.removeprefix('sha256:')[:RUN_ID_DIGITS]}-{number}"


def seal_digits(run: str) -> str:
    """Return the digits of the seal in a run's id, which all runs of a campaign share.

    >>> seal_digits("abababababab-2")
    'abababababab'
    """
    return run.rpartition("-")[0]


def format_time(moment: float) -> str:
    """Return a time in seconds since 1970 as ISO 8601 text in UTC with microseconds.

    >>> format_time(0.5)
    '1970-01-01T00:00:00.500000Z'
    """
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: str) -> float:
    """Parse an ISO 8601 time and return seconds since 1970.

    Raise ValueError if the time has no UTC offset.

    >>> parse_time("1970-01-01T00:00:00.500000Z")
    0.5
    """
    moment = datetime.fromisoformat(text)
    if moment.utcoffset() is None:
        raise ValueError("a time needs its offset from UTC")
    return moment.timestamp()


def is_loopback(host: str) -> bool:
    """Return whether a host name or address means this machine, so that no network is used.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("a.org")
    (True, True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def bearer(credential: str) -> dict[str, str]:
    """Return the HTTP header that contains a credential: a token, a receipt or a key."""
    return {"Authorization": f"Bearer {credential}"}


_ENCODE = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def to_json(body: Mapping[str, object]) -> bytes:
    """Encode a response body as JSON. Raise ValueError if a number is not finite.

    >>> to_json(Outcome(outcome="chosen", slot=3))
    b'{"outcome":"chosen","slot":3}'
    """
    return _ENCODE(body).encode()


class Schedule(TypedDict):
    """The schedule of a run, on the server's clock."""

    start: Annotated[str, "When slot 1 of this run begins, in UTC"]
    slot_s: Annotated[float, "Length of a slot in seconds"]
    choose_s: Annotated[float, "Seconds from the start of a slot until check-ins end"]
    slots: Annotated[int, "Number of slots of the run"]


class Tensor(TypedDict):
    """The name and shape of one tensor of the model."""

    name: str
    shape: list[int]


class LedgerPlace(TypedDict):
    """A length of the population's ledger, and the hash of its last line at this length."""

    entries: Annotated[int, "Number of lines"]
    head: Annotated[str, "The hash of the last line, which depends on every line before it"]


class KeyRotation(TypedDict):
    """The statement that the key ``new`` replaces the key ``old``."""

    old: str
    new: str
    signature: Annotated[str, "By the key `old`, in base64"]


class SignedHead(LedgerPlace):
    """A length of a ledger and the hash of its last line, signed with Ed25519."""

    population: Annotated[str, "`population ` and the population's id, or `seal ` and the seal"]
    key: Annotated[str, "The key that signed: `ed25519:` and 64 hexadecimal digits"]
    signature: Annotated[str, "In base64"]
    rotations: Annotated[list[KeyRotation], "All replacements of keys until `key`, oldest first"]


class Budget(TypedDict):
    """The largest epsilon of a campaign, its delta and its neighbour relation."""

    epsilon: float
    delta: float
    adjacency: Literal["add-remove", "replace-one"]


class Spent(TypedDict):
    """An upper bound on the epsilon of the slots closed so far.

    Epsilon is computed only for certain numbers of slots. The number of closed slots is rounded up
    to the next of them. For averaged updates, until the run is over, epsilon is computed for the
    number of reports that the campaign declares.
    """

    epsilon: Annotated[float | None, "Rounded up; null if none is proved"]
    slots: Annotated[int, "The number of slots that this epsilon is computed for"]


class Summary(TypedDict):
    """One run in the list of campaigns."""

    id: Annotated[str, "Id of the run"]
    name: Annotated[str, "Name of the campaign"]
    status: RunStatus
    run: Annotated[int, "Number of the run, from 1"]
    repeats: Annotated[int, "Number of runs of the campaign"]
    slots: Annotated[int, "Number of slots of the run"]
    slots_closed: Annotated[int, "Number of slots that are over"]
    start: Annotated[str, "When slot 1 of this run begins, in UTC"]
    slot_s: Annotated[float, "Length of a slot in seconds"]


class Campaigns(TypedDict):
    """The list of campaigns."""

    campaigns: Annotated[list[Summary], "All runs, newest first"]
    server_time: Annotated[str, "When the response was made, in UTC"]


class RunView(Summary):
    """All public information about one run of a campaign, except for the time of the response."""

    seal: Annotated[str, "`sha256:` and the SHA-256 of `campaign`"]
    population_id: Annotated[str | None, "Campaigns with the same id share clients and ledger"]
    campaign: Annotated[str, "The sealed text: all parameters of the campaign, as JSON"]
    schedule: Schedule
    affordable: Annotated[int, "Number of slots of this run that the budget allows"]
    dimension: Annotated[int, "Number of coordinates of the model"]
    tensors: Annotated[list[Tensor], "The tensors of the model, in order"]
    model_hash: Annotated[str, "SHA-256 of the latest model"]
    ledger: LedgerPlace
    epoch: Annotated[int, "Increases with each start of the coordinator, and never decreases"]
    budget: Budget
    certificate: Annotated[dict[str, Any], "The privacy certificate of the run"]
    spent: Spent | None
    promises: Annotated[list[str], "What the certificate guarantees to a client, in words"]
    assumptions: Annotated[list[str], "The conditions and limits of the guarantee, in words"]
    next: Annotated[str | None, "The id of the run that follows this one; null if there is none"]
    holding: Annotated[str | None, "Why no slot can be closed at present; null if slots can close"]
    signing_key: Annotated[str | None, "The key that signs heads of the ledger; null if none does"]
    enrolment: Annotated[Literal["open", "secret", "allow-list"], "Who may enrol"]


class CampaignView(RunView):
    """All public information about one run of a campaign."""

    server_time: Annotated[str, "When the response was made, in UTC"]


class MetricsAfter(TypedDict):
    """Metrics of the model after this number of slots, measured on a public holdout."""

    slots: int
    metrics: dict[str, float]


class EpsilonAfter(TypedDict):
    """The epsilon after this number of slots, rounded up; null if none is proved."""

    slots: int
    epsilon: float | None


class SlotRelease(TypedDict):
    """The model that a slot released."""

    slot: int
    model_hash: Annotated[str, "SHA-256 of the model"]


class Progress(TypedDict):
    """The learning curve, the epsilons and the releases of a run."""

    curve: Annotated[list[MetricsAfter], "Metrics of released models on a public holdout"]
    spending: Annotated[list[EpsilonAfter], "Epsilon after some numbers of slots, rounded up"]
    releases: Annotated[list[SlotRelease], "The latest releases, at most 200"]


class StateEvent(TypedDict):
    """The data of an event ``state``: the current position of a run."""

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

    token: Annotated[str, "Credential for one check-in in this run"]


class Receipt(TypedDict):
    """The response to a check-in."""

    receipt: Annotated[
        str, "Credential to ask for the outcome and to report; valid in its slot only"
    ]


class Outcome(TypedDict):
    """Whether the client with this receipt was chosen."""

    outcome: OutcomeName
    slot: int


class OutcomeWithModel(Receipt, Outcome):
    """The outcome of a check-in and, for a chosen client, all that it needs to make its report."""

    ends: Annotated[str, "When the slot ends, in UTC. A report must arrive before"]
    model: Annotated[
        str | None,
        "The model to train, as safetensors in base64, if you were chosen; null otherwise, and for"
        f" a model of more than {MAX_INLINE_MODEL_BYTES:,} bytes, which has an address of its own",
    ]


class ReportAccepted(TypedDict):
    """The response to a report that was accepted."""

    status: Literal["taken"]


class KeyHashes(TypedDict):
    """Keys of clients, to add to the allow-list or to revoke. The keys themselves are not sent."""

    keys: Annotated[list[str], "`sha256:` and the SHA-256 of each key, in hexadecimal digits"]


class AllowList(TypedDict):
    """The number of keys that may enrol."""

    keys: int


class AllowListChange(AllowList):
    """The result of a change of the allow-list."""

    changed: Annotated[int, "Number of keys that this request has added or revoked"]


class NewOperator(TypedDict):
    """The token of a new operator. The token itself is not sent."""

    token: Annotated[str, "`sha256:` and the SHA-256 of the token, in hexadecimal digits"]
    role: OperatorRole


class Operator(TypedDict):
    """An operator: its name, and what its token may do."""

    name: str
    role: Annotated[OperatorRole, "`metrics` may only read the metrics"]


class Operators(TypedDict):
    """The operators that were added to the service."""

    operators: list[Operator]


class Health(TypedDict):
    """The response of a coordinator that is alive."""

    status: Literal["ok"]
    epoch: int
    holding: Annotated[str | None, "Why no slot can be closed at present; null if slots can close"]


class Readiness(TypedDict):
    """The response of a coordinator that is ready."""

    status: Literal["ready"]
    epoch: int


class ProblemDocument(TypedDict):
    """A problem document (RFC 9457). ``type`` is ``PROBLEM_URN`` and the name of the problem."""

    type: str
    title: str
    status: int
    detail: str
