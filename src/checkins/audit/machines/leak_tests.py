"""Small audits that each look for one kind of leak, in seconds; correct code passes all of them.

Every leak test is a campaign, the faults injected into it, and the adversary's view: chosen so that
the certified epsilon is moderate and the leak it looks for measures far above it.
``tools/leak_mutants.py`` plants leaks and checks that each of them is found here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
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
from checkins.protocol.factories import sampler_of, server_of

CONFIDENCE = 0.9999
FULL = Scenario("in full slots", EXCESS, None, others=1)
OTHER_DATA = Scenario("with other data", EXCESS, -EXCESS)


class PreparedAudit(Interface):
    """A prepared audit."""

    @property
    def claim(self) -> Claim: ...
    def trials(self, runs: int) -> Trials: ...


@dataclass(frozen=True, slots=True)
class LeakTest:
    """One audit that looks for one kind of leak, and its number of runs of each half."""

    looks_for: str
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
    """Run one leak test on the imported code; ``runs`` None is the test's own number."""
    test, began = LEAK_TESTS[name], time.perf_counter()
    audit = test.prepare()
    trials = audit.trials(runs or test.runs)
    (bound,) = lower_bounds(trials, deltas=[audit.claim.delta], confidence=confidence)
    return LeakTestResult(
        name,
        audit.claim.epsilon,
        bound.epsilon,
        audit.claim.delta,
        confidence,
        trials.statistic,
        bound,
        trials.fewest,
        time.perf_counter() - began,
    )


def _audit(
    campaign: Campaign,
    faults: Faults = ORDINARY_FAULTS,
    *,
    scenario: Scenario | None = None,
    view: AdversaryView = AdversaryView.PUBLIC,
) -> MachineAudit:
    small = SmallCampaign(campaign, certify_runs((PartialRun.whole(campaign),)))
    return prepare_audit(small, scenario=scenario, faults=faults, view=view)


# ---- budgets -------------------------------------------------------------------------------------


def short_budget() -> MachineAudit:
    """Prepare a campaign whose budget covers one slot of four; the claim is the budget."""
    whole = server_noise(slots=4, noise=0.5, delta=0.12)
    one_slot = certify_runs((PartialRun(whole, 1),)).epsilon
    campaign = replace(whole, budget=replace(whole.budget, epsilon=one_slot))
    return _budgeted((campaign,))


def shared_budget() -> MachineAudit:
    """Prepare four campaigns on one population whose budget covers the first of them."""
    first = server_noise(slots=2, noise=1.0, delta=0.05)
    budget = replace(first.budget, epsilon=certify_runs((PartialRun.whole(first),)).epsilon)
    campaigns = tuple(
        replace(first, name=f"leak test {number}", population_id="people", budget=budget)
        for number in range(1, 5)
    )
    return _budgeted(campaigns)


def _budgeted(campaigns: tuple[Campaign, ...]) -> MachineAudit:
    """Prepare consecutive runs, each with the slots that the population's ledger leaves."""
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
    return MachineAudit(
        campaign,
        tuple(servers),
        sampler_of(campaign, dimension=DIMENSION),
        Scenario("alone"),
        NO_FAULTS,
        AdversaryView.PUBLIC,
        Claim(campaign.budget.epsilon, campaign.budget.delta, "the population's budget"),
    )


# ---- the leak tests ------------------------------------------------------------------------------

LEAK_TESTS: Mapping[str, LeakTest] = {
    "dummies": LeakTest(
        "missing or weak noise in slots that dummies fill",
        1500,
        lambda: _audit(client_noise(slots=4, noise=1.0, capacity=2, delta=1e-3)),
    ),
    "sums": LeakTest(
        "weak noise, long updates, known slots and repeated releases",
        2500,
        lambda: _audit(server_noise(slots=6, noise=0.7, delta=0.1)),
    ),
    "restarts": LeakTest(
        "a slot that is released again after a restart",
        1500,
        lambda: _audit(
            server_noise(slots=4, noise=1.0, delta=0.01), Faults(crashes_while_closing=4)
        ),
    ),
    "slots": LeakTest(
        "slots that are drawn too often or never",
        12_000,
        lambda: _audit(server_noise(slots=2, noise=0.7, delta=0.2), NO_FAULTS),
    ),
    "coin": LeakTest(
        "a participation coin that is skipped or drawn again",
        2000,
        lambda: _audit(
            server_noise(slots=2, noise=0.5, delta=0.03, participation=0.1),
            Faults(crashes_after_no=10),
        ),
    ),
    "choice": LeakTest(
        "a choice that is biased, or can be drawn again",
        2000,
        lambda: _audit(
            client_noise(slots=2, noise=1.0, capacity=1, delta=0.2),
            Faults(crashes_at_invitation=10),
            scenario=FULL,
        ),
    ),
    "late": LeakTest(
        "a late report that counts in another slot",
        2500,
        lambda: _audit(server_noise(slots=6, noise=0.7, delta=0.1), Faults(late_report=True)),
    ),
    "restored": LeakTest(
        "a device that takes part again from a backup",
        2000,
        lambda: _audit(server_noise(slots=6, noise=0.7, delta=0.1), Faults(restorations=24)),
    ),
    "remains": LeakTest(
        "reports that remain on the disks",
        1000,
        lambda: _audit(
            replaceable(server_noise(slots=4, noise=2.0, delta=1e-3)),
            scenario=OTHER_DATA,
            view=AdversaryView.DISKS,
        ),
    ),
    "links": LeakTest(
        "links from devices to slots on the server's disk",
        1500,
        lambda: _audit(server_noise(slots=4, noise=1.0, delta=0.01), view=AdversaryView.DISKS),
    ),
    "budget": LeakTest("slots that the budget does not cover", 2500, short_budget),
    "population": LeakTest("campaigns that ignore earlier spending", 2000, shared_budget),
    "device": LeakTest(
        "reports of one device, repeats included",
        1500,
        lambda: prepare_device_audit(
            client_noise(slots=1, noise=2.0, capacity=1, delta=0.05), delta=0.05
        ),
    ),
    "grid": LeakTest(
        "noise with holes",
        1500,
        lambda: prepare_device_audit(
            client_noise(slots=1, noise=2.0, capacity=1, delta=0.05, grid=2e-8),
            delta=0.05,
            faults=NO_FAULTS,
            odd=True,
        ),
    ),
    "laplace": LeakTest(
        "reports of one device with Laplace noise",
        1500,
        lambda: prepare_device_audit(laplace(slots=1, local_epsilon=1.0, delta=0.01), delta=0.01),
    ),
    "sliding": LeakTest(
        "a window that is predictable or short",
        2500,
        lambda: _audit(sliding(window=4, noise=0.7, delta=0.2)),
    ),
    "averaged": LeakTest(
        "reports that stand out in an average",
        2500,
        lambda: _audit(averaged(slots=2, contributors=4, local_epsilon=2.0, delta=0.05)),
    ),
}
