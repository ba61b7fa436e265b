"""Response models of the OpenAPI document; they are not domain types."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

Status = Literal["waiting", "running", "completed", "stopped"]


class Schedule(BaseModel):
    """The schedule of a run, on the server's clock."""

    start: str = Field(description="When slot 1 of this run begins, in UTC")
    slot_s: float
    choose_s: float
    slots: int


class Tensor(BaseModel):
    name: str
    shape: list[int]


class LedgerPlace(BaseModel):
    """Length and head of the ledger of the population."""

    entries: int
    head: str = Field(description="The hash of the last line: it stands for the whole ledger")


class Budget(BaseModel):
    epsilon: float
    delta: float
    adjacency: Literal["add-remove", "replace-one"]


class Spent(BaseModel):
    """Epsilon of the first computed slot count at or above those closed: an upper bound.

    For averaged updates under way: if as many contribute as the campaign declares.
    """

    epsilon: float | None = Field(description="Rounded up; null where none is proved")
    slots: int


class Summary(BaseModel):
    id: str
    name: str
    status: Status
    run: int
    repeats: int
    slots: int
    slots_closed: int
    start: str
    slot_s: float


class Campaigns(BaseModel):
    campaigns: list[Summary] = Field(description="Newest first")
    server_time: str


class CampaignView(Summary):
    """One run of a campaign: everything that is public about it."""

    seal: str = Field(description="sha256: and the hash of the canonical text")
    population_id: str | None
    campaign: str = Field(description="The canonical text, as JSON: every sealed parameter")
    schedule: Schedule
    affordable: int = Field(description="How many slots the budget of the population allows")
    dimension: int
    tensors: list[Tensor]
    model_hash: str
    ledger: LedgerPlace
    epoch: int = Field(description="Grows with each start of the coordinator; never falls")
    budget: Budget
    certificate: dict[str, Any]
    spent: Spent | None
    promises: list[str]
    assumptions: list[str]
    next: str | None = Field(description="The run that follows this one")
    holding: str | None = Field(description="Why no slot is closed now; null while slots close")
    enrolment: Literal["open", "secret", "allow-list"] = Field(description="Who may enrol")
    server_time: str


class Point(BaseModel):
    slots: int
    metrics: dict[str, float]


class Price(BaseModel):
    slots: int
    epsilon: float | None


class ReleaseMade(BaseModel):
    slot: int
    model_hash: str


class Progress(BaseModel):
    """Learning curve, epsilons and releases so far."""

    curve: list[Point] = Field(description="Released models on a public holdout")
    spending: list[Price] = Field(description="Epsilon after so many slots, rounded up")
    releases: list[ReleaseMade] = Field(description="The latest ones, at most 200")


class Token(BaseModel):
    token: str = Field(description="Good for one check-in in this run")


class Receipt(BaseModel):
    receipt: str = Field(description="Ask with it whether you were chosen; valid in its slot only")


class Outcome(BaseModel):
    outcome: Literal["waiting", "chosen", "dismissed"]
    slot: int


class Taken(BaseModel):
    status: Literal["taken"] = "taken"


class Health(BaseModel):
    status: Literal["ok"] = "ok"
    epoch: int
    holding: str | None = Field(description="Why no slot is closed now; null while slots close")


class Readiness(BaseModel):
    status: Literal["ready"] = "ready"
    epoch: int
