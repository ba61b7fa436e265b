"""Audit a running coordinator, only over HTTP.

The audit opens many tiny campaigns at the coordinator. In each campaign, a fair coin decides for
every canary (a test device) whether it takes part. Canaries run the SDK's client with the operating
system's randomness, and each canary's update has its own coordinate. The audit guesses the coins
from the public ledger, which contains the sum of every slot. So it detects leaks in the client, in
the service and between them.

Use it with a coordinator that is set up for tests, because these campaigns have artificial data.
"""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from checkins import validate
from checkins.accounting import Adjacency, Design, GaussianNoise, NoiseAt, Protocol
from checkins.audit.bounds import Trials, lower_bounds
from checkins.audit.one_run import guessed_bounds
from checkins.audit.releases import GaussianSum
from checkins.audit.report import Verdict
from checkins.campaign import Budget, Campaign, Optimizer, Schedule, campaign_text
from checkins.campaign.randomizer_config import RandomizerConfig, RandomizerKind
from checkins.campaign.task import DataFile, Model, Task
from checkins.client.actions import Request, RequestKind
from checkins.client.bounded_http import fetch_async
from checkins.client.service_client import VIEW_BYTES, view_request
from checkins.errors import CheckinsError
from checkins.ledger import Ledger, SlotClosed
from checkins.protocol import wire
from checkins.swarm import Swarm, Tally
from checkins.tasks.model import parameter_count, unflatten

if TYPE_CHECKING:
    import httpx

CONFIDENCE = 0.9999
POLL_S = 0.25
PATIENCE_S = 120.0
"""Time limit of one request, and of everything that the audit waits for, in seconds."""
BUSY = (429, 503)
"""HTTP status codes after which a request is repeated."""
IN_TIME = 0.95
"""Share of the devices that must report in time. Slots are lengthened until they do."""
LONGEST_SLOT_S = 16.0
EXCESS = 3.0
"""Length of a canary's update before clipping, in units of the clip."""
CLIP, GRID = 1.0, 1e-4
LINE_BYTES, NUMBER_BYTES = 4096, 12
"""Largest sizes in a slot's ledger line: everything but the sum, and one number of the sum."""


class LiveFailed(CheckinsError):
    """The coordinator did not serve the campaigns of the audit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSettings:
    """The number of campaigns, the number of canaries in each, and their parameters.

    ``at_once`` campaigns run concurrently. Guesses prove a bound only if ``delta`` times the number
    of canaries is far below 1 − confidence. If ``capacity`` is a number, devices add the noise, and
    the server draws dummy reports to fill the slots. If it is None, the server adds the noise to
    the sum of all reports.
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
        """Return which canaries take part in campaign ``number``.

        A fair coin decides for each canary. A single canary takes part in every other campaign.
        """
        if self.canaries == 1:
            return np.array([number % 2 == 0])
        return np.array([secrets.randbelow(2) == 1 for _ in range(self.canaries)])

    def campaign(self, start: datetime) -> Campaign:
        """Return a new campaign with its own population."""
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
class LiveAudit:
    """The lower bound measured at a coordinator, and the epsilon that its certificates claim."""

    claimed: float
    measured: float
    delta: float
    confidence: float
    canaries: int
    """Number of canaries in all campaigns together."""
    sent: int
    """Number of canaries whose coin let them take part."""
    outcomes: Mapping[str, int]
    """Number of participating canaries by the outcome that the client reports."""
    by: str
    """The counts that prove the bound, in words."""

    @property
    def verdict(self) -> Verdict:
        return Verdict.CONTRADICTED if self.measured > self.claimed else Verdict.CONSISTENT


@dataclass(frozen=True, slots=True, eq=False)
class _FinishedCampaign:
    """The certified epsilon of a completed campaign, and its canaries' coins and scores."""

    epsilon: float
    coins: NDArray[np.bool_]
    scores: NDArray[np.float64]
    outcomes: Mapping[str, int]


class _CanaryTrainer:
    """A trainer whose update has a single nonzero coordinate, and is longer than the clip."""

    def __init__(self, coordinate: int) -> None:
        self._coordinate = coordinate

    def update(self, model: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        shapes = {name: tensor.shape for name, tensor in model.items()}
        flat = np.zeros(parameter_count(shapes))
        flat[self._coordinate] = EXCESS * CLIP
        return unflatten(flat, shapes)


def audit_live(url: str, settings: LiveSettings, *, operator: str) -> LiveAudit:
    """Audit the coordinator at ``url``. ``operator`` is the token of its operator."""
    return asyncio.run(_audited(url, settings, operator))


async def _audited(url: str, settings: LiveSettings, operator: str) -> LiveAudit:
    import httpx

    turns = asyncio.Semaphore(settings.at_once)
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as http:
        coordinator = await _paced(_Coordinator(http, url, operator, settings))

        async def turn(number: int) -> _FinishedCampaign:
            async with turns:
                return await coordinator.run_campaign(settings.coins(number))

        finished = await asyncio.gather(*(turn(number) for number in range(settings.campaigns)))
    measured, by = _measured(settings, finished)
    coins = np.concatenate([one.coins for one in finished])
    return LiveAudit(
        claimed=max(one.epsilon for one in finished),
        measured=measured,
        delta=settings.delta,
        confidence=settings.confidence,
        canaries=coins.size,
        sent=int(coins.sum()),
        outcomes=sum((Counter(one.outcomes) for one in finished), Counter()),
        by=by,
    )


def _measured(settings: LiveSettings, finished: Sequence[_FinishedCampaign]) -> tuple[float, str]:
    """Return the best bound and the counts that prove it."""
    scores = np.concatenate([one.scores for one in finished])
    coins = np.concatenate([one.coins for one in finished])
    if settings.canaries == 1:  # the campaigns are independent runs
        trials = Trials(scores[coins], scores[~coins], "one device", engine="live")
        (bound,) = lower_bounds(trials, deltas=[settings.delta], confidence=settings.confidence)
        true_positives = f"{bound.true_positives} of {bound.positive_runs} true positives"
        return bound.epsilon, f"{true_positives}, {bound.false_positives} false positives"
    order, failure = np.argsort(scores, kind="stable"), 1.0 - settings.confidence
    guessed = guessed_bounds(coins, order, deltas=[settings.delta], failure=failure, canary="live")
    best = max(guessed, key=lambda bound: bound.epsilon)
    return best.epsilon, f"{best.correct} of {best.guesses} guesses right"


async def _paced(coordinator: _Coordinator) -> _Coordinator:
    """Return the coordinator with slots long enough for nearly all devices to report in time.

    Try slots of doubling length in campaigns that do not count, in which all canaries take part.
    """
    settings = coordinator.settings
    everyone = np.ones(settings.canaries, dtype=np.bool_)
    tried = await asyncio.gather(
        *(coordinator.run_campaign(everyone) for _ in range(settings.at_once))
    )
    reported = sum(one.outcomes.get("reported", 0) for one in tried)
    enough = reported >= IN_TIME * settings.canaries * settings.at_once
    if enough or settings.slot_s >= LONGEST_SLOT_S:
        return coordinator
    longer = replace(settings, slot_s=2.0 * settings.slot_s, choose_s=2.0 * settings.choose_s)
    return await _paced(replace(coordinator, settings=longer))


@dataclass(frozen=True, slots=True)
class _Coordinator:
    """The audited coordinator, and the settings of the campaigns that are opened at it."""

    http: httpx.AsyncClient
    url: str
    operator: str
    settings: LiveSettings

    async def run_campaign(self, coins: NDArray[np.bool_]) -> _FinishedCampaign:
        """Open a campaign, let the chosen canaries take part, and score its ledger."""
        view = await self._open()
        chosen, tally = np.flatnonzero(coins), Tally()
        if chosen.size:
            swarm = Swarm(
                url=self.url,
                campaign=view["id"],
                seal=view["seal"],
                clients=chosen.size,
                trainer=lambda client: _CanaryTrainer(int(chosen[client])),
                patience_s=PATIENCE_S,
            )
            await swarm.run(tally)
        await self._wait_for_end(view["id"])
        sums = await self._sums(view["id"])
        ratios = GaussianSum(self.settings.slot_noise).log_ratio(sums, np.ones(1))
        scores = np.logaddexp.reduce(ratios[:, : self.settings.canaries], axis=0)
        failed = {"failed": tally.failures.total()} if tally.failures else {}
        outcomes = {name: count for name, count in tally.outcomes.items() if count} | failed
        return _FinishedCampaign(float(view["certificate"]["epsilon"]), coins, scores, outcomes)

    async def _open(self) -> wire.CampaignView:
        """Open a campaign that begins soon.

        If its start passes before the coordinator has certified it, try again with a later start.
        """
        lead_s, until = self.settings.lead_s, time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            campaign = self.settings.campaign(datetime.now(UTC) + timedelta(seconds=lead_s))
            request = Request(
                RequestKind.VIEW,
                "POST",
                wire.CAMPAIGNS_PATH,
                PATIENCE_S,
                wire.bearer(self.operator) | {"Content-Type": wire.CAMPAIGN_FILE},
                campaign_text(campaign).encode(),
                VIEW_BYTES,
            )
            answer, body = await fetch_async(self.http, request)
            text = body.decode("utf-8", "replace")
            if answer.status_code == 201:
                view: wire.CampaignView = json.loads(text)
                return view
            if answer.status_code in BUSY:
                await asyncio.sleep(1.0)
            elif "has passed" in text:
                lead_s = min(2.0 * lead_s, PATIENCE_S)
            else:
                break
        raise LiveFailed(f"the coordinator opens no campaign: {text[:300]}")

    async def _wait_for_end(self, run: str) -> None:
        slots_s = self.settings.slots * self.settings.slot_s
        async with asyncio.timeout(PATIENCE_S + self.settings.lead_s + slots_s):
            while True:
                request = replace(view_request(run), timeout_s=PATIENCE_S)
                answer, body = await fetch_async(self.http, request)
                if answer.status_code == 200 and json.loads(body)["status"] in wire.OVER:
                    return
                await asyncio.sleep(POLL_S)

    async def _sums(self, run: str) -> NDArray[np.float64]:
        """Return the sum of each slot from the ledger, in units of the clip.

        Raise InvalidLedger if the chain is broken.
        """
        slot_bytes = LINE_BYTES + NUMBER_BYTES * (self.settings.canaries + 1)
        max_bytes = 2 * VIEW_BYTES + self.settings.slots * slot_bytes
        path = wire.LEDGER_PATH.format(run=run)
        request = Request(RequestKind.LEDGER, "GET", path, PATIENCE_S, max_bytes=max_bytes)
        _, body = await fetch_async(self.http, request)
        ledger, sums = Ledger(), []
        for line in body.splitlines(keepends=True):
            ledger, entry = ledger.read(line)
            if isinstance(entry, SlotClosed):
                total = entry.numbers()
                if total is None:
                    raise LiveFailed(f"slot {entry.slot} of {run} has no sum")
                sums.append(total * (GRID / CLIP))
        return np.array(sums)
