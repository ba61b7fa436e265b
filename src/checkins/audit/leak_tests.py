"""Leak tests: small audits that each look for one kind of leak and take seconds.

A leak test runs the real state machines many times with one client, the canary, and many times
without it. It consists of a campaign, the faults injected into it, and the adversary's view, chosen
so that correct code has a moderate certified epsilon, and leaky code a far larger measured epsilon.
Correct code passes all leak tests. ``tools/leak_mutants.py`` plants leaks in a copy of the code and
checks that a leak test finds each leak.

Some leak tests audit one device (``checkins.audit.machine_audit``).
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
    NoiseStrategy,
    Population,
    Protocol,
)
from checkins.audit.adversary import UNCLIPPED_NORM, Scenario
from checkins.audit.bounds import MeasuredBound, lower_bounds
from checkins.audit.machine_audit import (
    DIMENSION,
    UNLIMITED_EPSILON,
    AdversaryView,
    Claim,
    DeviceAudit,
    MachineAudit,
    prepare_audit,
    prepare_device_audit,
    with_plain_sgd,
)
from checkins.audit.machine_run import NO_FAULTS, ORDINARY_FAULTS, Faults
from checkins.campaign import (
    Budget,
    Campaign,
    PartialRun,
    RandomizerConfig,
    RandomizerKind,
    certify_runs,
)
from checkins.ledger import Closed, Ledger, Reason, SlotClosed, spending_of
from checkins.protocol.rules import sampler_of
from checkins.protocol.server import server_of

CONFIDENCE = 0.9999
"""Default confidence of the measured bound."""


@dataclass(frozen=True, slots=True)
class LeakTest:
    """One leak test: ``runs`` runs with the canary, and as many without it.

    ``prepare`` returns the audit. It takes a while, so it is called only when the test runs.
    """

    runs: int
    prepare: Callable[[], MachineAudit | DeviceAudit]


@dataclass(frozen=True, slots=True)
class LeakTestResult:
    """The ``claimed`` epsilon, and the lower bound on epsilon that a leak test ``measured``.

    ``statistic`` is the name of the score that the best attack used.
    """

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
    test, started = LEAK_TESTS[name], time.perf_counter()
    audit = test.prepare()
    trials, claim = audit.trials(runs or test.runs), audit.claim
    (bound,) = lower_bounds(trials, deltas=[claim.delta], confidence=confidence)
    result = (claim.epsilon, bound.epsilon, claim.delta, confidence, trials.statistic, bound)
    return LeakTestResult(name, *result, trials.fewest_runs, time.perf_counter() - started)


# ---- budgets -------------------------------------------------------------------------------------


def one_slot_budget() -> MachineAudit:
    """Prepare a campaign of four slots whose budget allows one slot. The claim is the budget."""
    whole = server_noise(slots=4, noise=0.5, delta=0.12)
    one_slot = certify_runs((PartialRun(whole, 1),)).epsilon
    campaign = replace(whole, budget=replace(whole.budget, epsilon=one_slot))
    return _consecutive_audit((campaign,))


def one_campaign_budget() -> MachineAudit:
    """Prepare four campaigns on one population. Their common budget allows only the first."""
    first = server_noise(slots=2, noise=1.0, delta=0.05)
    budget = replace(first.budget, epsilon=certify_runs((PartialRun.whole(first),)).epsilon)
    shared = replace(first, population_id="people", budget=budget)
    return _consecutive_audit(tuple(replace(shared, name=f"leak test {n}") for n in range(1, 5)))


def _consecutive_audit(campaigns: tuple[Campaign, ...]) -> MachineAudit:
    """Prepare consecutive campaigns. The ledger decides how many slots each campaign may run."""
    ledger, servers = Ledger(), []
    for campaign in campaigns:
        affordable = spending_of(ledger, campaign).affordable_slots_in_run()
        server = server_of(campaign, np.zeros(DIMENSION), affordable=affordable)
        servers.append(server)
        model = server.learner.model
        ledger, _ = ledger.append(ledger.opening(campaign, model=model, simulated=True))
        total = np.zeros(DIMENSION, dtype=np.int64)
        for slot in range(1, server.rules.affordable + 1):
            entry = SlotClosed.of(slot=slot, total=total, model=model, contributors=None)
            ledger, _ = ledger.append(entry)
        is_complete = server.rules.affordable == campaign.design.slots
        spent = certify_runs((PartialRun(campaign, server.rules.affordable),)).as_dict()
        reason = Reason.COMPLETED if is_complete else Reason.STOPPED
        ledger, _ = ledger.append(Closed(reason, spent))
    campaign = campaigns[0]
    claim = Claim(campaign.budget.epsilon, campaign.budget.delta)
    sampler, alone = sampler_of(campaign, dimension=DIMENSION), Scenario("alone")
    public = AdversaryView.PUBLIC
    return MachineAudit(campaign, tuple(servers), sampler, alone, NO_FAULTS, public, claim)


# ---- campaigns ----------------------------------------------------------------------------------


def server_noise(
    *,
    slots: int,
    noise: float,
    delta: float,
    participation: float = 1.0,
    strategy: NoiseStrategy | None = None,
) -> Campaign:
    """Return a campaign that uses every check-in, with noise at the server.

    ``noise`` is the noise multiplier. The certified epsilon of such a campaign is tight, unless the
    noise is correlated across slots by ``strategy``.
    """
    randomizer = GaussianNoise(noise, NoiseAt.SERVER, strategy)
    return _campaign(randomizer, delta, slots=slots, participation=participation)


def client_noise(
    *, slots: int, noise: float, capacity: int, delta: float, grid: float = 1e-4
) -> Campaign:
    """Return a campaign where devices add Gaussian noise, and dummy reports fill the slots."""
    randomizer = GaussianNoise(noise, NoiseAt.CLIENT)
    return _campaign(randomizer, delta, grid=grid, slots=slots, capacity=capacity)


def laplace_noise(*, slots: int, local_epsilon: float, delta: float, capacity: int = 1) -> Campaign:
    """Return a campaign where devices add Laplace noise, and dummy reports fill the slots."""
    return _campaign(LocalRandomizer(local_epsilon), delta, slots=slots, capacity=capacity)


def randomized_response(
    *, categories: int, slots: int, local_epsilon: float, delta: float, capacity: int = 1
) -> Campaign:
    """Return a campaign where devices report categories, and dummy reports fill the slots."""
    return _campaign(
        LocalRandomizer(local_epsilon),
        delta,
        categories=categories,
        slots=slots,
        capacity=capacity,
    )


def sliding_windows(*, window: int, noise: float, delta: float) -> Campaign:
    """Return a campaign with sliding windows. Its slots are the warm-up and one whole window."""
    randomizer, slots = GaussianNoise(noise, NoiseAt.SERVER), 2 * window - 1
    return _campaign(randomizer, delta, Protocol.SLIDING, slots=slots, window=window)


def averaged_updates(
    *, slots: int, contributors: int, local_epsilon: float, delta: float
) -> Campaign:
    """Return a campaign with averaged updates. Its ledger has the number of reports per slot."""
    randomizer = LocalRandomizer(local_epsilon)
    population = Population(contributors, contributors)
    return _campaign(randomizer, delta, Protocol.AVERAGED, slots=slots, population=population)


def averaged_gaussian(*, slots: int, least_reports: int, noise: float, delta: float) -> Campaign:
    """Return an averaged campaign that skips every slot with fewer than ``least_reports`` reports.

    It may have a single client, whose slot is always skipped.
    """
    return _campaign(
        GaussianNoise(noise, NoiseAt.CLIENT),
        delta,
        Protocol.AVERAGED,
        slots=slots,
        population=Population(1, least_reports),
        least_reports=least_reports,
    )


def _campaign(
    randomizer: GaussianNoise | LocalRandomizer,
    delta: float,
    protocol: Protocol = Protocol.FIXED,
    *,
    grid: float = 1e-4,
    categories: int | None = None,
    participation: float = 1.0,
    **design_fields: Any,
) -> Campaign:
    is_gaussian = isinstance(randomizer, GaussianNoise)
    kind = RandomizerKind.GAUSSIAN if is_gaussian else RandomizerKind.LAPLACE
    config = RandomizerConfig(kind, clip=1.0, grid=grid)
    if categories is not None:
        config = RandomizerConfig(RandomizerKind.RANDOMIZED_RESPONSE, categories=categories)
    is_averaged = protocol is Protocol.AVERAGED  # which is defined for replace-one only
    adjacency = Adjacency.REPLACE_ONE if is_averaged else Adjacency.ADD_REMOVE
    return Campaign(
        name="leak test",
        population_id=None,
        budget=Budget(UNLIMITED_EPSILON, delta, adjacency),
        design=Design(
            protocol, participation=participation, randomizer=randomizer, **design_fields
        ),
        repeats=1,
        randomizer=config,
        task=with_plain_sgd(None),
    )


# ---- the leak tests ------------------------------------------------------------------------------

FULL_SLOTS = Scenario("in full slots", UNCLIPPED_NORM, None, others_per_slot=1)
FULL_SLOTS_OF_TWO = replace(FULL_SLOTS, others_per_slot=2)
OTHER_DATA = Scenario("with other data", UNCLIPPED_NORM, -UNCLIPPED_NORM)
_SIX_SLOTS = server_noise(slots=6, noise=0.7, delta=0.1)
_CORRELATED = server_noise(
    slots=6, noise=1.0, delta=0.02, strategy=NoiseStrategy((12, 6, 5, 4), bits=4)
)
_SMALL_DELTA = server_noise(slots=4, noise=1.0, delta=0.01)
_RARE_PARTICIPATION = server_noise(slots=2, noise=0.5, delta=0.03, participation=0.1)
_ADD_REMOVE = server_noise(slots=4, noise=2.0, delta=1e-3)
_REPLACE_ONE = replace(
    _ADD_REMOVE, budget=replace(_ADD_REMOVE.budget, adjacency=Adjacency.REPLACE_ONE)
)
_CAPACITY_ONE = client_noise(slots=2, noise=1.0, capacity=1, delta=0.2)
_LAPLACE_OF_TWO = laplace_noise(slots=4, local_epsilon=2.0, delta=1e-3, capacity=2)
_FULL_LAPLACE = laplace_noise(slots=1, local_epsilon=8.0, delta=0.7, capacity=2)
_CATEGORIES = randomized_response(categories=3, slots=4, local_epsilon=2.0, delta=1e-3, capacity=2)
_FULL_CATEGORIES = randomized_response(
    categories=8, slots=1, local_epsilon=4.0, delta=0.5, capacity=2
)
_RESPONSE = randomized_response(categories=3, slots=1, local_epsilon=1.0, delta=0.01)
_FINE_GRID = client_noise(slots=1, noise=2.0, capacity=1, delta=0.05, grid=2e-8)


def _leak_test(
    runs: int, campaign: Campaign, faults: Faults = ORDINARY_FAULTS, **options: Any
) -> LeakTest:
    """Return the leak test of a whole campaign. The claim is the certificate of the campaign."""
    return LeakTest(runs, lambda: prepare_audit(campaign, faults=faults, **options))


def _device_test(runs: int, campaign: Campaign, **options: Any) -> LeakTest:
    """Return the leak test of one device. The claim is the guarantee of the local randomizer."""
    return LeakTest(runs, lambda: prepare_device_audit(campaign, **options))


LEAK_TESTS: Mapping[str, LeakTest] = {
    # Missing or weak noise in slots that are filled with dummy reports.
    "dummies": _leak_test(1500, client_noise(slots=4, noise=1.0, capacity=2, delta=1e-3)),
    # Weak noise, updates that are not clipped, predictable slots and repeated releases.
    "sums": _leak_test(2500, _SIX_SLOTS),
    # The same, and exact sums in the ledger, if noise is correlated across slots.
    "correlated": _leak_test(1500, _CORRELATED),
    # A slot that is released again after a restart.
    "restarts": _leak_test(1500, _SMALL_DELTA, Faults(crashes_while_closing=4)),
    # Slots that are drawn too often or never.
    "slots": _leak_test(12_000, server_noise(slots=2, noise=0.7, delta=0.2), NO_FAULTS),
    # A participation coin that is skipped or drawn again.
    "coin": _leak_test(2000, _RARE_PARTICIPATION, Faults(crashes_after_declining=10)),
    # A biased choice of the used check-ins, or a choice that can be drawn again.
    "choice": _leak_test(
        2000, _CAPACITY_ONE, Faults(crashes_at_invitation=10), scenario=FULL_SLOTS
    ),
    # The same two leaks where a slot uses two reports of a named randomizer.
    "laplace-dummies": _leak_test(1500, _LAPLACE_OF_TWO),
    "laplace-choice": _leak_test(
        2000, _FULL_LAPLACE, Faults(crashes_at_invitation=10), scenario=FULL_SLOTS_OF_TWO
    ),
    # Dummies that differ from a uniform category, and a wrong number of reports.
    "categories": _leak_test(1500, _CATEGORIES),
    "category-choice": _leak_test(
        2000, _FULL_CATEGORIES, Faults(crashes_at_invitation=10), scenario=FULL_SLOTS_OF_TWO
    ),
    # A late report that is added to the sum of another slot.
    "late": _leak_test(2500, _SIX_SLOTS, Faults(late_report=True)),
    # A device that takes part again from a backup.
    "restored": _leak_test(2000, _SIX_SLOTS, Faults(restorations=24)),
    # Reports that remain on the disks after the campaign.
    "remains": _leak_test(1000, _REPLACE_ONE, scenario=OTHER_DATA, view=AdversaryView.DISKS),
    # Exact sums that remain on the server's disk after the campaign.
    "correlated-remains": _leak_test(1000, _CORRELATED, view=AdversaryView.DISKS),
    # Records on the server's disk of which device was in which slot.
    "links": _leak_test(1500, _SMALL_DELTA, view=AdversaryView.DISKS),
    # Slots that the budget does not allow.
    "budget": LeakTest(2500, one_slot_budget),
    # Campaigns that ignore the epsilon of earlier campaigns.
    "population": LeakTest(2000, one_campaign_budget),
    # All reports that one device with Gaussian noise sends, including retries.
    "device": _device_test(1500, client_noise(slots=1, noise=2.0, capacity=1, delta=0.05)),
    # Noise with holes, which the docstring of the module explains.
    "grid": _device_test(1500, _FINE_GRID, faults=NO_FAULTS, odd_distance=True),
    # All reports that one device with Laplace noise sends, including retries.
    "laplace": _device_test(1500, laplace_noise(slots=1, local_epsilon=1.0, delta=0.01)),
    # All reports that one device with randomized response sends, including retries.
    "response": _device_test(1500, _RESPONSE),
    # A slot of a sliding window that is predictable, or a window that is too short.
    "sliding": _leak_test(2500, sliding_windows(window=4, noise=0.7, delta=0.2)),
    # Reports with too little noise, or too large a weight, in an average.
    "averaged": _leak_test(
        2500, averaged_updates(slots=2, contributors=4, local_epsilon=2.0, delta=0.05)
    ),
    # A released average of fewer reports than declared, which has too little noise.
    "least-reports": _leak_test(
        1500, averaged_gaussian(slots=4, least_reports=4, noise=1.0, delta=0.05)
    ),
}
"""The leak tests by name. Each comment says which leak the test looks for."""
