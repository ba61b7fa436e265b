"""The audit of a live coordinator, over HTTP and nothing else.

Tiny campaigns are opened at a coordinator, each with canaries that a fair coin of ours sends or
does not. Devices are the SDK's own, with the system's dice; each has a coordinate of its own that
no other touches. What is judged is what anyone may fetch afterwards: the ledger with the sum of
every slot. Whatever is planted or broken on the way, in the client, the service or between them,
shows there.

Meant for a coordinator that is set up to be tested: its campaigns are on nobody's data.
"""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from checkins import validate
from checkins.accounting import Adjacency, Design, GaussianNoise, NoiseAt, Protocol
from checkins.audit.bounds import lower_bounds
from checkins.audit.guessing import GuessedBound
from checkins.audit.machines.attacks import Noise
from checkins.audit.trials import Trials
from checkins.audit.verdict import Verdict
from checkins.campaign import Budget, Campaign, Optimizer, Schedule, campaign_text
from checkins.campaign.randomizer_config import RandomizerConfig, RandomizerKind
from checkins.campaign.task import DataFile, Model, Task
from checkins.client.answers import fetch_async
from checkins.client.requests import VIEW_BYTES
from checkins.errors import CheckinsError
from checkins.ledger import Ledger, SlotClosed
from checkins.randomizers import Gaussian
from checkins.swarm.swarm import Swarm, Tally

if TYPE_CHECKING:
    import httpx

CONFIDENCE = 0.9999
GUESSED = (0.1, 0.25, 0.5, 1.0)
"""Shares of the canaries whose coins are guessed: the most suspect and the least, half each."""
POLL_S = 0.25
PATIENCE_S = 120.0
BUSY = (429, 503)
IN_TIME = 0.95
"""Share of the devices that must be in time, or slots are made longer beforehand."""
LONGEST_SLOT_S = 16.0
EXCESS = 3.0
CLIP, GRID = 1.0, 1e-4
LINE_BYTES, NUMBER_BYTES = 4096, 12
"""At most, of a slot's line in the ledger without its sum; of each number of the sum."""


class LiveFailed(CheckinsError):
    """The coordinator did not do what an audit needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePlan:
    """What is run at the coordinator: so many campaigns of so many canaries, ``at_once`` together.

    Guesses prove something only where ``delta`` times the canaries is far below what may fail.
    With ``capacity`` devices add the noise and dummies fill the slots; without it the server adds
    it to the sum of all.
    """

    campaigns: int
    canaries: int
    at_once: int = 4
    slots: int = 3
    noise_multiplier: float = 3.0
    capacity: int | None = None
    delta: float = 1e-8
    slot_s: float = 1.0
    choose_s: float = 0.5
    lead_s: float = 4.0
    confidence: float = CONFIDENCE

    def __post_init__(self) -> None:
        validate.count(campaigns=self.campaigns, most=100_000)
        validate.count(canaries=self.canaries, most=10_000)
        validate.count(at_once=self.at_once, most=1000)
        validate.open_unit(delta=self.delta, confidence=self.confidence)

    @property
    def slot_noise(self) -> float:
        return self.noise_multiplier * math.sqrt(self.capacity or 1)

    def coins(self, number: int) -> NDArray[np.bool_]:
        """Which canaries are sent: by fair coins, or in turns where there is one a campaign."""
        if self.canaries == 1:
            return np.array([number % 2 == 0])
        return np.array([secrets.randbelow(2) == 1 for _ in range(self.canaries)])

    def campaign(self, start: datetime) -> Campaign:
        """One of the campaigns, on a population of its own."""
        at = NoiseAt.SERVER if self.capacity is None else NoiseAt.CLIENT
        noise = GaussianNoise(self.noise_multiplier, at)
        name = f"audit-{secrets.token_hex(8)}"
        columns = tuple(f"c{number}" for number in range(self.canaries))
        data = DataFile("audit.csv", "client", "label", columns, ((0.0, 1.0),) * self.canaries, 2)
        return Campaign(
            name=name,
            population_id=name,
            budget=Budget(1e3, self.delta, Adjacency.ADD_REMOVE),
            design=Design(
                Protocol.FIXED,
                slots=self.slots,
                participation=1.0,
                randomizer=noise,
                capacity=self.capacity,
            ),
            repeats=1,
            randomizer=RandomizerConfig(RandomizerKind.GAUSSIAN, clip=CLIP, grid=GRID),
            task=Task(data, Model.LOGISTIC, Optimizer(1.0)),
            schedule=Schedule(start, self.slot_s, self.choose_s),
        )


@dataclass(frozen=True, slots=True)
class LiveFinding:
    """What was measured at a coordinator, held against what it said of its campaigns."""

    url: str
    claimed: float
    measured: float
    delta: float
    confidence: float
    campaigns: int
    canaries: int
    sent: int
    outcomes: Mapping[str, int]
    by: str
    seconds: float

    @property
    def verdict(self) -> Verdict:
        return Verdict.CONTRADICTED if self.measured > self.claimed else Verdict.CONSISTENT

    def as_dict(self) -> dict[str, object]:
        return {
            "url": self.url,
            "epsilon_certified": self.claimed,
            "epsilon_measured_lower": self.measured,
            "delta": self.delta,
            "confidence": self.confidence,
            "verdict": str(self.verdict),
            "campaigns": self.campaigns,
            "canaries": self.canaries,
            "sent": self.sent,
            "outcomes": dict(self.outcomes),
            "by": self.by,
            "seconds": round(self.seconds, 1),
        }


@dataclass(frozen=True, slots=True, eq=False)
class _Played:
    """One campaign that is over: the coins of its canaries, and how suspect each is."""

    epsilon: float
    coins: NDArray[np.bool_]
    scores: NDArray[np.float64]
    outcomes: Mapping[str, int]


class _CanaryTrainer:
    """An update that is too long, along one coordinate."""

    def __init__(self, coordinate: int) -> None:
        self._coordinate = coordinate

    def update(self, model: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        flat = np.zeros(sum(tensor.size for tensor in model.values()))
        flat[self._coordinate] = EXCESS * CLIP
        update, start = {}, 0
        for name, tensor in model.items():
            update[name] = flat[start : start + tensor.size].reshape(tensor.shape)
            start += tensor.size
        return update


def audit_live(url: str, plan: LivePlan, *, operator: str) -> LiveFinding:
    """Audit the coordinator at ``url``, whose operator's token is ``operator``."""
    return asyncio.run(_audited(url, plan, operator))


async def _audited(url: str, plan: LivePlan, operator: str) -> LiveFinding:
    import httpx

    began = time.monotonic()
    turns = asyncio.Semaphore(plan.at_once)
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as http:
        plan = await _paced(http, url, plan, operator)

        async def turn(number: int) -> _Played:
            async with turns:
                return await _play(http, url, plan, operator, plan.coins(number))

        played = await asyncio.gather(*(turn(number) for number in range(plan.campaigns)))
    claimed = max(one.epsilon for one in played)
    measured, by = _measured(plan, played)
    outcomes: dict[str, int] = {}
    for one in played:
        for name, count in one.outcomes.items():
            outcomes[name] = outcomes.get(name, 0) + count
    return LiveFinding(
        url,
        claimed,
        measured,
        plan.delta,
        plan.confidence,
        len(played),
        sum(one.coins.size for one in played),
        sum(int(one.coins.sum()) for one in played),
        outcomes,
        by,
        time.monotonic() - began,
    )


def _measured(plan: LivePlan, played: Sequence[_Played]) -> tuple[float, str]:
    scores = np.concatenate([one.scores for one in played])
    coins = np.concatenate([one.coins for one in played])
    if plan.canaries == 1:  # runs that are independent of each other: exact counts
        trials = Trials(scores[coins], scores[~coins], "one device", engine="live")
        (bound,) = lower_bounds(trials, deltas=[plan.delta], confidence=plan.confidence)
        return bound.epsilon, f"{bound.hits} of {bound.of_hits} and {bound.alarms} false alarms"
    order, best = np.argsort(scores, kind="stable"), None
    for share in GUESSED:
        half = max(1, int(coins.size * share / 2))
        right = int(coins[order[-half:]].sum()) + int((~coins[order[:half]]).sum())
        found = GuessedBound.of(
            right,
            guesses=2 * half,
            canaries=coins.size,
            delta=plan.delta,
            failure=(1.0 - plan.confidence) / len(GUESSED),
            canary="live",
        )
        if best is None or found.epsilon > best.epsilon:
            best = found
    if best is None:
        raise LiveFailed("nothing was guessed")
    return best.epsilon, f"{best.correct} of {best.guesses} guesses right"


async def _paced(http: httpx.AsyncClient, url: str, plan: LivePlan, operator: str) -> LivePlan:
    """Slots that are long enough here for nearly every device to be in time.

    Found out beforehand, with every canary sent, in campaigns that count for nothing.
    """
    everyone = np.ones(plan.canaries, dtype=np.bool_)
    while True:
        tried = await asyncio.gather(
            *(_play(http, url, plan, operator, everyone) for _ in range(plan.at_once))
        )
        reported = sum(one.outcomes.get("reported", 0) for one in tried)
        if reported >= IN_TIME * plan.canaries * plan.at_once or plan.slot_s >= LONGEST_SLOT_S:
            return plan
        plan = replace(plan, slot_s=2.0 * plan.slot_s, choose_s=2.0 * plan.choose_s)


async def _play(
    http: httpx.AsyncClient,
    url: str,
    plan: LivePlan,
    operator: str,
    coins: NDArray[np.bool_],
) -> _Played:
    """Open a campaign, send the canaries that the coins chose, and read what came of it."""
    shown = await _opened(http, plan, operator)
    chosen = np.flatnonzero(coins)
    tally = Tally()
    if chosen.size:
        swarm = Swarm(
            url=url,
            campaign=shown["id"],
            seal=shown["seal"],
            clients=chosen.size,
            trainer=lambda client: _CanaryTrainer(int(chosen[client])),
            patience_s=PATIENCE_S,
        )
        await swarm.run(tally)
    await _over(http, shown["id"], plan)
    sums = await _sums(http, shown["id"], plan)
    scores = np.array([_score(plan, sums[:, canary]) for canary in range(plan.canaries)])
    return _Played(float(shown["certificate"]["epsilon"]), coins, scores, _ended(tally))


async def _opened(http: httpx.AsyncClient, plan: LivePlan, operator: str) -> dict[str, Any]:
    """A campaign that begins soon; a coordinator that is slow to price it gets more time."""
    lead_s, until = plan.lead_s, time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        campaign = plan.campaign(datetime.now(UTC) + timedelta(seconds=lead_s))
        answer, body = await fetch_async(
            http,
            "POST",
            "/campaigns",
            content=campaign_text(campaign).encode(),
            headers={"Authorization": f"Bearer {operator}", "Content-Type": "application/toml"},
            most_bytes=VIEW_BYTES,
            within_s=PATIENCE_S,
        )
        text = body.decode("utf-8", "replace")
        if answer.status_code == 201:
            shown: dict[str, Any] = json.loads(text)
            return shown
        if answer.status_code in BUSY:
            await asyncio.sleep(1.0)
        elif "has passed" in text:
            lead_s = min(2.0 * lead_s, PATIENCE_S)
        else:
            break
    raise LiveFailed(f"the coordinator opens no campaign: {text[:300]}")


def _ended(tally: Tally) -> dict[str, int]:
    failed = {"failed": tally.failures.total()} if tally.failures else {}
    return {name: count for name, count in tally.outcomes.items() if count} | failed


async def _over(http: httpx.AsyncClient, run: str, plan: LivePlan) -> None:
    async with asyncio.timeout(PATIENCE_S + plan.lead_s + plan.slots * plan.slot_s):
        while True:
            answer, body = await fetch_async(
                http, "GET", f"/campaigns/{run}", most_bytes=VIEW_BYTES, within_s=PATIENCE_S
            )
            over = ("completed", "stopped")
            if answer.status_code == 200 and json.loads(body)["status"] in over:
                return
            await asyncio.sleep(POLL_S)


async def _sums(http: httpx.AsyncClient, run: str, plan: LivePlan) -> NDArray[np.float64]:
    """The sum of each slot in clips, from the ledger; one that is no chain is refused."""
    most_bytes = 2 * VIEW_BYTES + plan.slots * (LINE_BYTES + NUMBER_BYTES * (plan.canaries + 1))
    _, body = await fetch_async(
        http, "GET", f"/campaigns/{run}/ledger", most_bytes=most_bytes, within_s=PATIENCE_S
    )
    ledger, sums = Ledger(), []
    for line in body.splitlines(keepends=True):
        ledger, entry = ledger.read(line)
        if isinstance(entry, SlotClosed):
            total = entry.numbers()
            if total is None:
                raise LiveFailed(f"slot {entry.slot} of {run} has no sum")
            sums.append(total * (GRID / CLIP))
    return np.array(sums)


def _score(plan: LivePlan, values: NDArray[np.float64]) -> float:
    """log f of MATH.md B1 for one canary: its coordinate in every slot."""
    noise = Noise(Gaussian(CLIP, plan.slot_noise), 1)
    ratios = [noise.log_ratio((float(value),), 1.0) for value in values]
    return float(np.logaddexp.reduce(ratios))
