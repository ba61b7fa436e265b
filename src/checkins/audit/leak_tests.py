"""Leak tests: small audits that each look for one kind of leak and take seconds.

A leak test consists of a campaign, the faults injected into it, and the adversary's view. They are
chosen so that the certified epsilon is moderate, and the leak has a far larger measured epsilon.
Correct code passes all leak tests. ``tools/leak_mutants.py`` plants leaks and checks that a leak
test finds each of them.

The audit of one device is about everything that the device sends, which the server and anyone who
intercepts the traffic can see. It must satisfy the guarantee of the local randomizer: its local
epsilon, or the privacy profile of Gaussian noise. A report with new noise on a retry, too little
noise, and noise with holes all violate this guarantee.

Floating-point noise has holes [Mironov12]: numbers that are possible under one input and impossible
under another. If noise was rounded to fewer digits than the grid has, it ends in binary zeros. So
the difference of a report and the right input ends in zeros, and the adversary recognizes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from checkins.accounting import (
    Adjacency,
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Population,
    Protocol,
)
from checkins.accounting.solve import first_true
from checkins.audit.adversary import EXCESS, LIKELIHOOD, AttackScores, Scenario, Update, update_of
from checkins.audit.bounds import MeasuredBound, Trials, lower_bounds
from checkins.audit.machine_audit import (
    DIMENSION,
    UNLIMITED,
    AdversaryView,
    Claim,
    MachineAudit,
    best_attack,
    fresh_server,
    prepare_audit,
    with_plain_sgd,
)
from checkins.audit.machine_run import CANARY, NO_FAULTS, ORDINARY_FAULTS, Faults, MachineRun
from checkins.campaign import (
    Budget,
    Campaign,
    PartialRun,
    RandomizerConfig,
    RandomizerKind,
    certify_runs,
)
from checkins.errors import NotCovered
from checkins.ledger import Closed, Ledger, Reason, SlotClosed, spending_of
from checkins.protocol.participant import Participant
from checkins.protocol.report import Report
from checkins.protocol.rules import FixedWindow, sampler_of
from checkins.protocol.server import Server, server_of
from checkins.randomizers import DeviceSampler, Gaussian

CONFIDENCE = 0.9999


@dataclass(frozen=True, slots=True)
class LeakTest:
    """One leak test. It makes ``runs`` runs with the canary, and as many without it."""

    runs: int
    prepare: Callable[[], MachineAudit | DeviceAudit]


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
    trials, claim = audit.trials(runs or test.runs), audit.claim
    (bound,) = lower_bounds(trials, deltas=[claim.delta], confidence=confidence)
    found = (claim.epsilon, bound.epsilon, claim.delta, confidence, trials.statistic, bound)
    return LeakTestResult(name, *found, trials.fewest, time.perf_counter() - began)


# ---- one device ---------------------------------------------------------------------------------

RESTARTS = Faults(repeated=1, crashes_after_report=8)
"""A device restarts several times after it has sent its report."""
_MAX_EPSILON = 200.0


@dataclass(frozen=True, slots=True, eq=False)
class DeviceAudit:
    """The audit of one device that has one of two updates.

    The campaign has one slot, and the device always takes part.
    """

    server: Server
    sampler: DeviceSampler
    updates: tuple[Update, Update]
    faults: Faults
    claim: Claim

    def scores(self, *, present: bool) -> AttackScores:
        """Return scores of everything that the device sent in one run.

        The device has the first update if ``present``, else the second one.
        """
        update = self.updates[not present]

        def report(token: str) -> Report:
            return Report.from_device(self.sampler.privatize(update))

        devices = {CANARY: Participant(1.0, FixedWindow((1,)))}
        observed = MachineRun(self.server, self.sampler, devices, report, self.faults).run()
        distinct = list(dict.fromkeys(observed.sent))
        ends = [int(report.values[-1]) for report in distinct]
        mine, other = (int(self.sampler.encode(one).units[-1]) for one in self.updates)
        last = ends[-1]
        return {
            LIKELIHOOD: float(sum(ends)),
            "last report": float(last),
            "holes in the noise": float(_binary_zeros(last - mine) - _binary_zeros(last - other)),
            "round reports": float(_binary_zeros(last)),
            "reports sent": float(len(distinct)),
        }

    def trials(self, runs: int) -> Trials:
        """Return the best attack's scores of ``runs`` runs with each of the two updates."""
        return best_attack(self, runs, canary="one device")


def prepare_device_audit(
    campaign: Campaign, *, faults: Faults = RESTARTS, odd: bool = False
) -> DeviceAudit:
    """Prepare the audit of one device of a campaign whose devices add the noise.

    Its two updates have opposite directions and are longer than the clip. If ``odd`` is True, they
    are shorter than the clip and differ by an odd number of grid steps, so that rounded noise shows
    which update was sent.
    """
    if campaign.noise_at is NoiseAt.SERVER:
        raise NotCovered("noise_at", "server", "a report without noise has no local guarantee")
    noise, delta = campaign.design.randomizer, campaign.budget.delta
    one_slot = replace(
        campaign,
        design=Design(Protocol.FIXED, slots=1, participation=1.0, capacity=1, randomizer=noise),
        repeats=1,
        budget=replace(campaign.budget, epsilon=UNLIMITED),
        task=with_plain_sgd(campaign.task),
    )
    sampler = sampler_of(one_slot, dimension=1)
    updates = (update_of(EXCESS, sampler), update_of(-EXCESS, sampler))
    if odd:
        step = sampler.grid.step
        units = int(sampler.grid.clip_units(float(update_of(1.0, sampler)[0])))
        near = units - 1 - units % 2
        updates = (np.array([(near + 0.5) * step]), np.array([-(near - 0.5) * step]))
    claim = Claim(local_epsilon(sampler, delta=delta), delta)
    return DeviceAudit(fresh_server(one_slot, 1), sampler, updates, faults, claim)


def local_epsilon(sampler: DeviceSampler, *, delta: float) -> float:
    """Return the epsilon of one report at ``delta``, for any two updates, rounded up.

    Theorem:     [BW18, Thm 8] for Gaussian noise; the randomizer's own epsilon otherwise.
    """
    randomizer = sampler.randomizer
    if not isinstance(randomizer, Gaussian):
        return float(randomizer.privacy_spec.local_epsilon)

    def is_true(epsilon: float) -> bool:
        return randomizer.delta(epsilon=epsilon) <= delta

    return first_true(is_true, false=0.0, true=_MAX_EPSILON, precision=1e-9)


def _binary_zeros(number: int) -> int:
    """Return the number of trailing binary zeros. For 0 it is 32, more than any report has."""
    return 32 if number == 0 else (number & -number).bit_length() - 1


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
        affordable = spending_of(ledger, campaign).affordable()
        server = server_of(campaign, np.zeros(DIMENSION), affordable=affordable)
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
    claim = Claim(campaign.budget.epsilon, campaign.budget.delta)
    sampler, alone = sampler_of(campaign, dimension=DIMENSION), Scenario("alone")
    public = AdversaryView.PUBLIC
    return MachineAudit(campaign, tuple(servers), sampler, alone, NO_FAULTS, public, claim)


# ---- campaigns ----------------------------------------------------------------------------------


def server_noise(*, slots: int, noise: float, delta: float, participation: float = 1.0) -> Campaign:
    """Return a campaign that uses every check-in, with noise at the server.

    Its certified epsilon is tight.
    """
    randomizer = GaussianNoise(noise, NoiseAt.SERVER)
    return _campaign(randomizer, delta, slots=slots, participation=participation)


def client_noise(
    *, slots: int, noise: float, capacity: int, delta: float, grid: float = 1e-4
) -> Campaign:
    """Return a campaign where devices add Gaussian noise, and dummy reports fill the slots."""
    randomizer = GaussianNoise(noise, NoiseAt.CLIENT)
    return _campaign(randomizer, delta, grid=grid, slots=slots, capacity=capacity)


def laplace(*, slots: int, local_epsilon: float, delta: float) -> Campaign:
    """Return a campaign where devices add Laplace noise and a slot uses one report."""
    return _campaign(LocalRandomizer(local_epsilon), delta, slots=slots, capacity=1)


def sliding(*, window: int, noise: float, delta: float) -> Campaign:
    """Return a campaign with sliding windows, long enough for a window after the warm-up."""
    randomizer, slots = GaussianNoise(noise, NoiseAt.SERVER), 2 * window - 1
    return _campaign(randomizer, delta, Protocol.SLIDING, slots=slots, window=window)


def averaged(*, slots: int, contributors: int, local_epsilon: float, delta: float) -> Campaign:
    """Return a campaign with averaged updates, which publishes the counts of reports."""
    randomizer = LocalRandomizer(local_epsilon)
    people = Population(contributors, contributors)
    return _campaign(randomizer, delta, Protocol.AVERAGED, slots=slots, population=people)


def _campaign(
    randomizer: GaussianNoise | LocalRandomizer,
    delta: float,
    protocol: Protocol = Protocol.FIXED,
    *,
    grid: float = 1e-4,
    participation: float = 1.0,
    **described: Any,
) -> Campaign:
    gaussian = isinstance(randomizer, GaussianNoise)
    kind = RandomizerKind.GAUSSIAN if gaussian else RandomizerKind.LAPLACE
    averaged = protocol is Protocol.AVERAGED  # defined for replace-one only
    adjacency = Adjacency.REPLACE_ONE if averaged else Adjacency.ADD_REMOVE
    return Campaign(
        name="leak test",
        population_id=None,
        budget=Budget(UNLIMITED, delta, adjacency),
        design=Design(protocol, participation=participation, randomizer=randomizer, **described),
        repeats=1,
        randomizer=RandomizerConfig(kind, clip=1.0, grid=grid),
        task=with_plain_sgd(None),
    )


# ---- the leak tests ------------------------------------------------------------------------------

FULL = Scenario("in full slots", EXCESS, None, others=1)
OTHER_DATA = Scenario("with other data", EXCESS, -EXCESS)
_SUMS = server_noise(slots=6, noise=0.7, delta=0.1)
_SMALL_DELTA = server_noise(slots=4, noise=1.0, delta=0.01)
_RARE = server_noise(slots=2, noise=0.5, delta=0.03, participation=0.1)
_REPLACED = server_noise(slots=4, noise=2.0, delta=1e-3)
_REPLACED = replace(_REPLACED, budget=replace(_REPLACED.budget, adjacency=Adjacency.REPLACE_ONE))
_CHOSEN = client_noise(slots=2, noise=1.0, capacity=1, delta=0.2)
_FINE_GRID = client_noise(slots=1, noise=2.0, capacity=1, delta=0.05, grid=2e-8)


def _leak_test(
    runs: int, campaign: Campaign, faults: Faults = ORDINARY_FAULTS, **more: Any
) -> LeakTest:
    """Return the leak test that compares a campaign with its certificate."""
    return LeakTest(runs, lambda: prepare_audit(campaign, faults=faults, **more))


def _device_test(runs: int, campaign: Campaign, **more: Any) -> LeakTest:
    """Return the leak test of one device's reports."""
    return LeakTest(runs, lambda: prepare_device_audit(campaign, **more))


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
