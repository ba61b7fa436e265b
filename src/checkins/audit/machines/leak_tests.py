"""Leak tests: small audits that each look for one kind of leak and take seconds.

A leak test consists of a campaign, the faults injected into it, and the adversary's view. They are
chosen so that the certified epsilon is moderate, and the leak has a far larger measured epsilon.
Correct code passes all leak tests. ``tools/leak_mutants.py`` plants leaks and checks that a leak
test finds each of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any
from typing import Protocol as Interface

import numpy as np

from checkins.audit.bounds import MeasuredBound, Trials, lower_bounds
from checkins.audit.machines.adversary import EXCESS, Scenario
from checkins.audit.machines.machine_audit import (
    AdversaryView,
    Claim,
    MachineAudit,
    prepare_audit,
    prepare_device_audit,
)
from checkins.audit.machines.machine_run import NO_FAULTS, ORDINARY_FAULTS, Faults
from checkins.audit.machines.small_campaigns import (
    DIMENSION,
    SmallCampaign,
    averaged,
    client_noise,
    laplace,
    replaceable,
    server_noise,
    sliding,
)
from checkins.campaign import Campaign, PartialRun, certify_runs
from checkins.ledger import Closed, Ledger, Reason, SlotClosed, spending_of
from checkins.protocol.rules import sampler_of
from checkins.protocol.server import server_of

CONFIDENCE = 0.9999
FULL = Scenario("in full slots", EXCESS, None, others=1)
OTHER_DATA = Scenario("with other data", EXCESS, -EXCESS)


class PreparedAudit(Interface):
    """An audit that is ready to run."""

    @property
    def claim(self) -> Claim: ...
    def trials(self, runs: int) -> Trials: ...


@dataclass(frozen=True, slots=True)
class LeakTest:
    """One leak test. It makes ``runs`` runs with the canary, and as many without it."""

    runs: int
    prepare: Callable[[], PreparedAudit]


@dataclass(frozen=True, slots=True)
class LeakTestResult:
    """The bound measured by a leak test, and the claimed epsilon."""

    leak_test: str
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


def run_leak_test(
    name: str, *, runs: int | None = None, confidence: float = CONFIDENCE
) -> LeakTestResult:
    """Run one leak test on the imported code.

    If ``runs`` is None, the number of runs is the default of the test.
    """
    test, began = LEAK_TESTS[name], time.perf_counter()
    audit = test.prepare()
    trials = audit.trials(runs or test.runs)
    (bound,) = lower_bounds(trials, deltas=[audit.claim.delta], confidence=confidence)
    claim, took = audit.claim, time.perf_counter() - began
    found = (claim.epsilon, bound.epsilon, claim.delta, confidence, trials.statistic, bound)
    return LeakTestResult(name, *found, trials.fewest, took)


def _leak_test(
    runs: int, campaign: Campaign, faults: Faults = ORDINARY_FAULTS, **more: Any
) -> LeakTest:
    """Return the leak test that compares a campaign with its certificate."""

    def prepare() -> MachineAudit:
        small = SmallCampaign(campaign, certify_runs((PartialRun.whole(campaign),)))
        return prepare_audit(small, faults=faults, **more)

    return LeakTest(runs, prepare)


def _device_test(runs: int, campaign: Campaign, **more: Any) -> LeakTest:
    """Return the leak test of one device's reports."""
    delta = campaign.budget.delta
    return LeakTest(runs, lambda: prepare_device_audit(campaign, delta=delta, **more))


# ---- budgets -------------------------------------------------------------------------------------


def short_budget() -> MachineAudit:
    """Prepare a campaign whose budget allows one slot of four. The claim is the budget."""
    whole = server_noise(slots=4, noise=0.5, delta=0.12)
    one_slot = certify_runs((PartialRun(whole, 1),)).epsilon
    campaign = replace(whole, budget=replace(whole.budget, epsilon=one_slot))
    return _budgeted((campaign,))


def shared_budget() -> MachineAudit:
    """Prepare four campaigns on one population whose budget allows only the first campaign."""
    first = server_noise(slots=2, noise=1.0, delta=0.05)
    budget = replace(first.budget, epsilon=certify_runs((PartialRun.whole(first),)).epsilon)
    shared = replace(first, population_id="people", budget=budget)
    return _budgeted(tuple(replace(shared, name=f"leak test {n}") for n in range(1, 5)))


def _budgeted(campaigns: tuple[Campaign, ...]) -> MachineAudit:
    """Prepare consecutive campaigns. Each has the slots that the ledger before it still allows."""
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
        spent = certify_runs((PartialRun(campaign, server.rules.affordable),)).as_dict()
        reason = Reason.COMPLETED if done else Reason.STOPPED
        ledger, _ = ledger.append(Closed(reason, spent))
    campaign = campaigns[0]
    claim = Claim(campaign.budget.epsilon, campaign.budget.delta, "the population's budget")
    sampler, alone = sampler_of(campaign, dimension=DIMENSION), Scenario("alone")
    public = AdversaryView.PUBLIC
    return MachineAudit(campaign, tuple(servers), sampler, alone, NO_FAULTS, public, claim)


# ---- the leak tests ------------------------------------------------------------------------------

_SUMS = server_noise(slots=6, noise=0.7, delta=0.1)
_SMALL_DELTA = server_noise(slots=4, noise=1.0, delta=0.01)
_RARE = server_noise(slots=2, noise=0.5, delta=0.03, participation=0.1)
_REPLACED = replaceable(server_noise(slots=4, noise=2.0, delta=1e-3))
_CHOSEN = client_noise(slots=2, noise=1.0, capacity=1, delta=0.2)
_FINE_GRID = client_noise(slots=1, noise=2.0, capacity=1, delta=0.05, grid=2e-8)

LEAK_TESTS: Mapping[str, LeakTest] = {
    # Missing or weak noise in slots that are filled with dummy reports.
    "dummies": _leak_test(1500, client_noise(slots=4, noise=1.0, capacity=2, delta=1e-3)),
    # Weak noise, updates that are not clipped, predictable slots and repeated releases.
    "sums": _leak_test(2500, _SUMS),
    # A slot that is released again after a restart.
    "restarts": _leak_test(1500, _SMALL_DELTA, Faults(crashes_while_closing=4)),
    # Slots that are drawn too often or never.
    "slots": _leak_test(12_000, server_noise(slots=2, noise=0.7, delta=0.2), NO_FAULTS),
    # A participation coin that is skipped or drawn again.
    "coin": _leak_test(2000, _RARE, Faults(crashes_after_no=10)),
    # A biased choice of the used check-ins, or a choice that can be drawn again.
    "choice": _leak_test(2000, _CHOSEN, Faults(crashes_at_invitation=10), scenario=FULL),
    # A late report that counts in another slot.
    "late": _leak_test(2500, _SUMS, Faults(late_report=True)),
    # A device that takes part again from a backup.
    "restored": _leak_test(2000, _SUMS, Faults(restorations=24)),
    # Reports that remain on the disks.
    "remains": _leak_test(1000, _REPLACED, scenario=OTHER_DATA, view=AdversaryView.DISKS),
    # Links from devices to slots on the server's disk.
    "links": _leak_test(1500, _SMALL_DELTA, view=AdversaryView.DISKS),
    # Slots that the budget does not allow.
    "budget": LeakTest(2500, short_budget),
    # Campaigns that ignore the epsilon of earlier campaigns.
    "population": LeakTest(2000, shared_budget),
    # Reports of one device, repeats included.
    "device": _device_test(1500, client_noise(slots=1, noise=2.0, capacity=1, delta=0.05)),
    # Noise with holes: values that are possible under one update and impossible under another.
    "grid": _device_test(1500, _FINE_GRID, faults=NO_FAULTS, odd=True),
    # Reports of one device with Laplace noise.
    "laplace": _device_test(1500, laplace(slots=1, local_epsilon=1.0, delta=0.01)),
    # A slot of a sliding window that is predictable, or a window that is too short.
    "sliding": _leak_test(2500, sliding(window=4, noise=0.7, delta=0.2)),
    # Reports that stand out in an average.
    "averaged": _leak_test(2500, averaged(slots=2, contributors=4, local_epsilon=2.0, delta=0.05)),
}
"""The leak tests by name. Each comment says which leak the test looks for."""
