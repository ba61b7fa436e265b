"""Audit a running coordinator, only over HTTP.

The audit opens many tiny campaigns at the coordinator. In each campaign, a fair coin decides for
every canary (a test device) whether it takes part. Canaries run the SDK's client with the operating
system's randomness, and each canary's update has its own coordinate. The audit guesses the coins
from the public ledger, which contains the sum of every slot. So it detects leaks in the client and
in the service.

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
from checkins.accounting import (
    Adjacency,
    Design,
    GaussianNoise,
    NoiseAt,
    NoiseStrategy,
    Protocol,
)
from checkins.audit.bounds import Trials, lower_bounds
from checkins.audit.one_run import guessed_bounds
from checkins.audit.releases import GaussianSum, slot_log_ratios
from checkins.audit.report import Verdict
from checkins.campaign import Budget, Campaign, Optimizer, Schedule, campaign_text
from checkins.campaign.randomizer_config import RandomizerConfig, RandomizerKind
from checkins.campaign.task import DataFile, Model, Task
from checkins.client.actions import Request, RequestKind
from checkins.client.bounded_http import fetch_async
from checkins.client.service_client import MAX_VIEW_BYTES, view_request
from checkins.errors import CheckinsError
from checkins.ledger import Ledger, SlotClosed
from checkins.protocol import wire
from checkins.swarm import Swarm, Tally
from checkins.tasks.model import parameter_count, unflatten

if TYPE_CHECKING:
    import httpx

CONFIDENCE = 0.9999  # default confidence of the bound
POLL_S = 0.25  # pause between two requests that ask whether a campaign is over
TIMEOUT_S = 120.0
"""Time limit in seconds of one request, of opening a campaign and of waiting for its end."""
RETRIED_STATUS_CODES = (429, 503)
"""HTTP status codes after which the audit tries again to open a campaign."""
MIN_REPORTED_SHARE = 0.95
"""Share of the devices that must report in time. Otherwise the audit uses longer slots."""
MAX_SLOT_S = 16.0
"""Slots are not lengthened beyond this number of seconds."""
UNCLIPPED_NORM = 3.0
"""Norm of a canary's update before clipping, in units of the clip norm."""
CLIP, GRID = 1.0, 1e-4
MAX_LINE_BYTES, MAX_NUMBER_BYTES = 4096, 12
"""Upper bounds in bytes on the size of a slot's ledger line without the numbers of its sum, and on
the size of each of these numbers."""


class LiveFailed(CheckinsError):
    """The coordinator did not serve the campaigns of the audit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSettings:
    """The number of campaigns, the number of canaries in each, and their parameters.

    ``concurrency`` campaigns run at the same time. Each campaign starts ``lead_s`` seconds after it
    is opened. ``delta`` times the number of all canaries must be far below 1 − ``confidence``,
    because otherwise the guesses cannot prove a positive lower bound on epsilon. If ``capacity`` is
    a number, devices add the noise, and the server draws dummy reports to fill the slots. If it is
    None, the server adds the noise to the sum of all reports, and correlates it across slots by
    ``strategy``, unless that is None.
    """

    campaigns: int
    canaries: int
    concurrency: int = 4
    slots: int = 3
    noise_multiplier: float = 3.0
    capacity: int | None = None
    delta: float = 1e-8
    slot_s: float = 1.0
    choose_s: float = 0.5
    lead_s: float = 4.0
    confidence: float = CONFIDENCE
    strategy: NoiseStrategy | None = None

    def __post_init__(self) -> None:
        validate.count(campaigns=self.campaigns, most=100_000)
        validate.count(canaries=self.canaries, most=10_000)
        validate.count(concurrency=self.concurrency, most=1000)
        validate.open_unit(delta=self.delta, confidence=self.confidence)

    @property
    def slot_noise(self) -> float:
        """Standard deviation of the noise in the sum of a slot, in units of the clip norm."""
        return self.noise_multiplier * math.sqrt(self.capacity or 1)

    @property
    def coefficients(self) -> tuple[float, ...]:
        """The weights of a slot's sum in the totals of this slot and of the following slots."""
        return (1.0,) if self.strategy is None else self.strategy.coefficients

    def coins(self, number: int) -> NDArray[np.bool_]:
        """Return which canaries take part in campaign ``number``.

        A fair coin decides for each canary. If there is only one canary, there is no coin: it takes
        part in the campaigns with an even number.
        """
        if self.canaries == 1:
            return np.array([number % 2 == 0])
        return np.array([secrets.randbelow(2) == 1 for _ in range(self.canaries)])

    def campaign(self, start: datetime) -> Campaign:
        """Return a new campaign with its own population."""
        noise_at = NoiseAt.SERVER if self.capacity is None else NoiseAt.CLIENT
        noise = GaussianNoise(self.noise_multiplier, noise_at, self.strategy)
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
    participating: int
    """Number of canaries whose coin let them take part."""
    outcomes: Mapping[str, int]
    """Number of participating canaries by their outcome, such as "reported"."""
    evidence: str
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
        flat[self._coordinate] = UNCLIPPED_NORM * CLIP
        return unflatten(flat, shapes)


def audit_live(url: str, settings: LiveSettings, *, operator_token: str) -> LiveAudit:
    """Audit the coordinator at ``url``. ``operator_token`` is the token of its operator."""
    return asyncio.run(_audit(url, settings, operator_token))


async def _audit(url: str, settings: LiveSettings, operator_token: str) -> LiveAudit:
    import httpx

    free_places = asyncio.Semaphore(settings.concurrency)
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S) as http:
        coordinator = await _with_long_enough_slots(
            _Coordinator(http, url, operator_token, settings)
        )

        async def run_campaign(number: int) -> _FinishedCampaign:
            async with free_places:
                return await coordinator.run_campaign(settings.coins(number))

        finished_campaigns = await asyncio.gather(*map(run_campaign, range(settings.campaigns)))
    measured, evidence = _measure(settings, finished_campaigns)
    coins = np.concatenate([campaign.coins for campaign in finished_campaigns])
    return LiveAudit(
        claimed=max(campaign.epsilon for campaign in finished_campaigns),
        measured=measured,
        delta=settings.delta,
        confidence=settings.confidence,
        canaries=coins.size,
        participating=int(coins.sum()),
        outcomes=sum((Counter(campaign.outcomes) for campaign in finished_campaigns), Counter()),
        evidence=evidence,
    )


def _measure(settings: LiveSettings, campaigns: Sequence[_FinishedCampaign]) -> tuple[float, str]:
    """Return the best bound on epsilon, and the counts that prove it, in words."""
    scores = np.concatenate([campaign.scores for campaign in campaigns])
    coins = np.concatenate([campaign.coins for campaign in campaigns])
    if settings.canaries == 1:  # the campaigns are independent runs
        trials = Trials(scores[coins], scores[~coins], "one device", engine="live")
        (bound,) = lower_bounds(trials, deltas=[settings.delta], confidence=settings.confidence)
        true_positives = f"{bound.true_positives} of {bound.positive_runs} true positives"
        return bound.epsilon, f"{true_positives}, {bound.false_positives} false positives"
    order, failure = np.argsort(scores, kind="stable"), 1.0 - settings.confidence
    bounds = guessed_bounds(coins, order, deltas=[settings.delta], failure=failure, canary="live")
    best = max(bounds, key=lambda bound: bound.epsilon)
    return best.epsilon, f"{best.correct} of {best.guesses} guesses right"


async def _with_long_enough_slots(coordinator: _Coordinator) -> _Coordinator:
    """Return the coordinator with slots long enough for nearly all devices to report in time.

    Run some campaigns in which all canaries take part, and double the length of the slots until
    the canaries report in time. These campaigns are not used for the measurement.
    """
    settings = coordinator.settings
    all_coins = np.ones(settings.canaries, dtype=np.bool_)
    trial_campaigns = await asyncio.gather(
        *(coordinator.run_campaign(all_coins) for _ in range(settings.concurrency))
    )
    reported = sum(campaign.outcomes.get("reported", 0) for campaign in trial_campaigns)
    is_enough = reported >= MIN_REPORTED_SHARE * settings.canaries * settings.concurrency
    if is_enough or settings.slot_s >= MAX_SLOT_S:
        return coordinator
    longer_slots = replace(settings, slot_s=2.0 * settings.slot_s, choose_s=2.0 * settings.choose_s)
    return await _with_long_enough_slots(replace(coordinator, settings=longer_slots))


@dataclass(frozen=True, slots=True)
class _Coordinator:
    """The audited coordinator, and the settings of the campaigns that are opened at it."""

    http: httpx.AsyncClient
    url: str
    operator_token: str
    settings: LiveSettings

    async def run_campaign(self, coins: NDArray[np.bool_]) -> _FinishedCampaign:
        """Open a campaign, let the canaries whose coin is True take part, and score the ledger."""
        view = await self._open()
        participating, tally = np.flatnonzero(coins), Tally()
        if participating.size:
            swarm = Swarm(
                url=self.url,
                campaign=view["id"],
                seal=view["seal"],
                clients=participating.size,
                trainer=lambda client: _CanaryTrainer(int(participating[client])),
                retry_timeout_s=TIMEOUT_S,
            )
            await swarm.run(tally)
        await self._wait_for_end(view["id"])
        totals = (await self._totals(view["id"])).T[: self.settings.canaries]
        noise = GaussianSum(self.settings.slot_noise)
        ratios = slot_log_ratios(noise, totals, np.ones(1), self.settings.coefficients)
        scores = np.logaddexp.reduce(ratios, axis=1)
        failed = {"failed": tally.failures.total()} if tally.failures else {}
        outcomes = {name: count for name, count in tally.outcomes.items() if count} | failed
        return _FinishedCampaign(float(view["certificate"]["epsilon"]), coins, scores, outcomes)

    async def _open(self) -> wire.CampaignView:
        """Open a campaign that begins soon.

        If the start passes before the coordinator has certified the campaign, try again with a
        later start.
        """
        lead_s, deadline = self.settings.lead_s, time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            campaign = self.settings.campaign(datetime.now(UTC) + timedelta(seconds=lead_s))
            request = Request(
                RequestKind.VIEW,
                "POST",
                wire.CAMPAIGNS_PATH,
                TIMEOUT_S,
                wire.bearer(self.operator_token) | {"Content-Type": wire.CAMPAIGN_FILE_TYPE},
                campaign_text(campaign).encode(),
                MAX_VIEW_BYTES,
            )
            response, body = await fetch_async(self.http, request)
            text = body.decode("utf-8", "replace")
            if response.status_code == 201:
                view: wire.CampaignView = json.loads(text)
                return view
            if response.status_code in RETRIED_STATUS_CODES:
                await asyncio.sleep(1.0)
            elif "has passed" in text:
                lead_s = min(2.0 * lead_s, TIMEOUT_S)
            else:
                break
        raise LiveFailed(f"the coordinator did not open a campaign: {text[:300]}")

    async def _wait_for_end(self, run: str) -> None:
        slots_s = self.settings.slots * self.settings.slot_s
        async with asyncio.timeout(TIMEOUT_S + self.settings.lead_s + slots_s):
            while True:
                request = replace(view_request(run), timeout_s=TIMEOUT_S)
                response, body = await fetch_async(self.http, request)
                if (
                    response.status_code == 200
                    and json.loads(body)["status"] in wire.FINISHED_STATUSES
                ):
                    return
                await asyncio.sleep(POLL_S)

    async def _totals(self, run: str) -> NDArray[np.float64]:
        """Return the total of each slot from the ledger, in units of the clip norm.

        Raise InvalidLedger if the hash chain of the ledger is broken.
        """
        slot_bytes = MAX_LINE_BYTES + MAX_NUMBER_BYTES * (self.settings.canaries + 1)
        max_bytes = 2 * MAX_VIEW_BYTES + self.settings.slots * slot_bytes
        path = wire.LEDGER_PATH.format(run=run)
        request = Request(RequestKind.LEDGER, "GET", path, TIMEOUT_S, max_bytes=max_bytes)
        _, body = await fetch_async(self.http, request)
        bits = 0 if self.settings.strategy is None else self.settings.strategy.bits
        step, ledger, totals = math.ldexp(GRID, -bits), Ledger(), []
        for line in body.splitlines(keepends=True):
            ledger, entry = ledger.read(line)
            if isinstance(entry, SlotClosed):
                total = entry.numbers()
                if total is None:
                    raise LiveFailed(f"slot {entry.slot} of run {run} has no sum in the ledger")
                totals.append(total * (step / CLIP))
        return np.array(totals)
