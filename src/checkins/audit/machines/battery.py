"""Small audits that each look for one kind of bug, in seconds; honest code passes all of them.

Every entry is a campaign, what goes wrong in it, and what is seen: chosen so that the certificate
is modest and the bug it looks for measures far above it. ``tools/liars.py`` plants bugs and shows
that each of them is found here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Protocol as Interface

import numpy as np

from checkins.audit.bounds import MeasuredBound, lower_bounds
from checkins.audit.machines.adversity import ORDINARY, SMOOTH, Adversity
from checkins.audit.machines.campaigns import (
    averaged,
    client_noise,
    laplace,
    replaceable,
    server_noise,
    sliding,
)
from checkins.audit.machines.device import device_stage
from checkins.audit.machines.scene import EXCESS, Scene
from checkins.audit.machines.small import DIMENSION, SmallCampaign
from checkins.audit.machines.stage import Claim, Stage, View, small_stage
from checkins.audit.trials import Trials
from checkins.campaign import Campaign, PartialRun, price
from checkins.ledger import Closed, Ledger, Reason, SlotClosed, spending_of
from checkins.protocol.factories import sampler_of, server_of

CONFIDENCE = 0.9999
FULL = Scene("in full slots", EXCESS, None, others=1)
OTHER_DATA = Scene("with other data", EXCESS, -EXCESS)


class Runnable(Interface):
    """An audit that can be run."""

    @property
    def claim(self) -> Claim: ...
    def trials(self, runs: int) -> Trials: ...


@dataclass(frozen=True, slots=True)
class Drill:
    """One audit of the battery, and how many runs of each half it takes."""

    looks_for: str
    runs: int
    stage: Callable[[], Runnable]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a drill measured, and whether the claim can be true."""

    drill: str
    claimed: float
    measured: float
    delta: float
    confidence: float
    statistic: str
    bound: MeasuredBound
    runs: int
    seconds: float

    @property
    def contradicted(self) -> bool:
        return self.measured > self.claimed

    def as_dict(self) -> dict[str, object]:
        values = asdict(self) | {"bound": self.bound.as_dict(), "contradicted": self.contradicted}
        return values | {"seconds": round(self.seconds, 1)}


def judge(name: str, *, runs: int | None = None, confidence: float = CONFIDENCE) -> Judgement:
    """Run one drill of the battery on the code as it is."""
    drill, began = BATTERY[name], time.perf_counter()
    stage = drill.stage()
    trials = stage.trials(runs or drill.runs)
    (bound,) = lower_bounds(trials, deltas=[stage.claim.delta], confidence=confidence)
    return Judgement(
        name,
        stage.claim.epsilon,
        bound.epsilon,
        stage.claim.delta,
        confidence,
        trials.statistic,
        bound,
        trials.fewest,
        time.perf_counter() - began,
    )


def _stage(
    campaign: Campaign,
    adversity: Adversity = ORDINARY,
    *,
    scene: Scene | None = None,
    view: View = View.PUBLIC,
) -> Stage:
    small = SmallCampaign(campaign, price((PartialRun.whole(campaign),)))
    return small_stage(small, scene=scene, adversity=adversity, view=view)


# ---- budgets -------------------------------------------------------------------------------------


def short_budget() -> Stage:
    """A budget that pays for one slot of four; what it promises is the budget."""
    whole = server_noise(slots=4, noise=0.5, delta=0.12)
    one_slot = price((PartialRun(whole, 1),)).epsilon
    campaign = replace(whole, budget=replace(whole.budget, epsilon=one_slot))
    return _budgeted((campaign,))


def shared_budget() -> Stage:
    """Four campaigns on one population whose budget pays for the first of them."""
    first = server_noise(slots=2, noise=1.0, delta=0.05)
    budget = replace(first.budget, epsilon=price((PartialRun.whole(first),)).epsilon)
    campaigns = tuple(
        replace(first, name=f"drill {number}", population_id="people", budget=budget)
        for number in range(1, 5)
    )
    return _budgeted(campaigns)


def _budgeted(campaigns: tuple[Campaign, ...]) -> Stage:
    """One run after another, each by what the ledger of the population says is left."""
    ledger, servers = Ledger(), []
    for campaign in campaigns:
        server = server_of(
            campaign, np.zeros(DIMENSION), affordable=spending_of(ledger, campaign).affordable()
        )
        servers.append(server)
        model = server.learner.model
        ledger, _ = ledger.append(ledger.opening(campaign, model=model, simulated=True))
        total = np.zeros(DIMENSION, dtype=np.int64)
        for slot in range(1, server.rules.affordable + 1):
            entry = SlotClosed.of(slot=slot, total=total, model=model, contributors=None)
            ledger, _ = ledger.append(entry)
        done = server.rules.affordable == campaign.design.slots
        spent = price((PartialRun(campaign, server.rules.affordable),)).as_dict()
        reason = Reason.COMPLETED if done else Reason.STOPPED
        ledger, _ = ledger.append(Closed(reason, spent))
    campaign = campaigns[0]
    return Stage(
        campaign,
        tuple(servers),
        sampler_of(campaign, dimension=DIMENSION),
        Scene("alone"),
        SMOOTH,
        View.PUBLIC,
        Claim(campaign.budget.epsilon, campaign.budget.delta, "the population's budget"),
    )


# ---- the battery ---------------------------------------------------------------------------------

BATTERY: Mapping[str, Drill] = {
    "dummies": Drill(
        "missing or weak noise in slots that dummies fill",
        1500,
        lambda: _stage(client_noise(slots=4, noise=1.0, capacity=2, delta=1e-3)),
    ),
    "sums": Drill(
        "weak noise, long updates, known slots and repeated releases",
        2500,
        lambda: _stage(server_noise(slots=6, noise=0.7, delta=0.1)),
    ),
    "restarts": Drill(
        "a slot that is released again after a restart",
        1500,
        lambda: _stage(
            server_noise(slots=4, noise=1.0, delta=0.01), Adversity(crashes_while_closing=4)
        ),
    ),
    "slots": Drill(
        "slots that are drawn too often or never",
        12_000,
        lambda: _stage(server_noise(slots=2, noise=0.7, delta=0.2), SMOOTH),
    ),
    "coin": Drill(
        "a participation coin that is skipped or thrown again",
        2000,
        lambda: _stage(
            server_noise(slots=2, noise=0.5, delta=0.03, participation=0.1),
            Adversity(crashes_after_no=10),
        ),
    ),
    "choice": Drill(
        "a choice that favours somebody, or can be thrown again",
        2000,
        lambda: _stage(
            client_noise(slots=2, noise=1.0, capacity=1, delta=0.2),
            Adversity(crashes_at_invitation=10),
            scene=FULL,
        ),
    ),
    "late": Drill(
        "a late report that counts in another slot",
        2500,
        lambda: _stage(server_noise(slots=6, noise=0.7, delta=0.1), Adversity(late_report=True)),
    ),
    "restored": Drill(
        "a device that takes part again from a backup",
        2000,
        lambda: _stage(server_noise(slots=6, noise=0.7, delta=0.1), Adversity(restorations=24)),
    ),
    "remains": Drill(
        "what the disks keep of what was sent",
        1000,
        lambda: _stage(
            replaceable(server_noise(slots=4, noise=2.0, delta=1e-3)),
            scene=OTHER_DATA,
            view=View.REMAINS,
        ),
    ),
    "links": Drill(
        "what the server's disk keeps of who was in a slot",
        1500,
        lambda: _stage(server_noise(slots=4, noise=1.0, delta=0.01), view=View.REMAINS),
    ),
    "budget": Drill("slots that the budget does not pay for", 2500, short_budget),
    "population": Drill("campaigns that forget each other", 2000, shared_budget),
    "device": Drill(
        "what leaves a device, and leaves it again",
        1500,
        lambda: device_stage(client_noise(slots=1, noise=2.0, capacity=1, delta=0.05), delta=0.05),
    ),
    "grid": Drill(
        "noise with holes",
        1500,
        lambda: device_stage(
            client_noise(slots=1, noise=2.0, capacity=1, delta=0.05, grid=2e-8),
            delta=0.05,
            adversity=SMOOTH,
            odd=True,
        ),
    ),
    "laplace": Drill(
        "what leaves a device with Laplace noise",
        1500,
        lambda: device_stage(laplace(slots=1, local_epsilon=1.0, delta=0.01), delta=0.01),
    ),
    "sliding": Drill(
        "a window that is known or short",
        2500,
        lambda: _stage(sliding(window=4, noise=0.7, delta=0.2)),
    ),
    "averaged": Drill(
        "reports that stand out among the averaged",
        2500,
        lambda: _stage(averaged(slots=2, contributors=4, local_epsilon=2.0, delta=0.05)),
    ),
}
