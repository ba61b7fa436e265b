"""The audit by the real machines: what it runs is what is certified, whatever goes wrong."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from checkins.accounting import Adjacency, NoiseStrategy
from checkins.audit.adversary import (
    LIKELIHOOD_RATIO,
    Scenario,
    log_likelihood_ratio,
    scenarios_for,
)
from checkins.audit.bounds import SELECTION_SHARE
from checkins.audit.leak_tests import (
    FULL_SLOTS_OF_TWO,
    LEAK_TESTS,
    averaged_gaussian,
    averaged_updates,
    client_noise,
    laplace_noise,
    randomized_response,
    server_noise,
    sliding_windows,
)
from checkins.audit.machine_audit import (
    MachineAudit,
    choose_attack,
    local_epsilon,
    new_server,
    prepare_audit,
    prepare_device_audit,
    run_trials,
    shrunk_campaign,
)
from checkins.audit.machine_run import (
    CANARY,
    NO_FAULTS,
    ORDINARY_FAULTS,
    Faults,
    MachineRun,
    Observations,
)
from checkins.campaign import Campaign, read_campaign
from checkins.errors import InvalidValue, NotCovered
from checkins.protocol.participant import Outcome, participant_of
from checkins.protocol.report import Report
from checkins.protocol.rules import sampler_of
from checkins.randomizers import Gaussian, Laplace, RandomizedResponse
from tests.audit.campaigns import BANDS

EXAMPLES = Path(__file__).parents[2] / "examples"
FAULTS = {
    "none": NO_FAULTS,
    "ordinary": ORDINARY_FAULTS,
    "restarting devices": Faults(
        crashes_after_draw=5, crashes_after_declining=5, crashes_after_report=5
    ),
    "restarting server": Faults(crashes_while_closing=5, crashes_at_invitation=5),
    "late report": Faults(late_report=True),
    "backups": Faults(restorations=5),
}


def played(campaign: Campaign, faults: Faults, *, update: float = 1.0) -> Observations:
    sampler = sampler_of(campaign, dimension=2)

    def make(token: str) -> Report:
        return Report.from_device(sampler.encode(np.array([0.0, update])))

    devices = {CANARY: participant_of(campaign)}
    silent: Any = SimpleNamespace(noise=lambda: np.zeros(2, dtype=np.int64))
    return MachineRun(new_server(campaign), silent, devices, make, faults).run()


@pytest.fixture(scope="module")
def quiet() -> Campaign:
    """A campaign whose server's noise is left out in these tests: a report is seen in its sum."""
    return server_noise(slots=3, noise=1.0, delta=1e-3)


@pytest.fixture(scope="module")
def audit(quiet: Campaign) -> MachineAudit:
    return prepare_audit(shrunk_campaign(quiet))


def sums(seen: Observations, audit: MachineAudit) -> list[int]:
    """What came out of each slot, in clips."""
    found = audit._adversary._sums(seen)
    return [round(float(one[-1])) for some in found.values() for one in some]


@pytest.mark.parametrize("fault", sorted(FAULTS.keys() - {"late report"}))
def test_a_canary_is_in_one_sum_whatever_goes_wrong(
    fault: str, quiet: Campaign, audit: MachineAudit
) -> None:
    for _ in range(20):
        found = sums(played(quiet, FAULTS[fault]), audit)
        assert sorted(found) == [0, 0, 1]


def test_a_late_report_counts_nowhere(quiet: Campaign, audit: MachineAudit) -> None:
    for _ in range(20):
        *before, last = sums(played(quiet, FAULTS["late report"]), audit)
        assert before == [0, 0]
        assert last in (0, 1)  # a canary of the last slot is in time


@pytest.mark.parametrize("fault", FAULTS)
def test_a_slot_is_shown_with_one_model_only(fault: str, quiet: Campaign) -> None:
    seen = played(quiet, FAULTS[fault])
    models = {(slot, model.tobytes()) for slot, model in seen.releases}
    assert sorted(slot for slot, _ in models) == [1, 2, 3]


def test_a_device_that_restarts_sends_the_same_report_again() -> None:
    campaign = client_noise(slots=2, noise=1.0, capacity=1, delta=1e-3)
    sampler = sampler_of(campaign, dimension=2)
    run = MachineRun(
        new_server(campaign),
        sampler,
        {CANARY: participant_of(campaign)},
        lambda token: Report.from_device(sampler.privatize(np.ones(2))),
        Faults(crashes_after_report=4),
    )
    sent_reports = run.run().sent_reports
    assert len(sent_reports) == 5
    assert len(set(sent_reports)) == 1


def test_nothing_remains_on_the_disks_after_the_end(quiet: Campaign) -> None:
    seen = played(quiet, ORDINARY_FAULTS)
    device = seen.device_disk
    assert device is not None
    assert device.outcome is Outcome.REPORTED
    assert (device.slot, device.receipt, device.report) == (None, None, None)
    assert seen.server_disk.slot is not None
    assert not seen.server_disk.slot.receipts_by_token
    assert seen.server_disk.exact_sums == ()


def test_the_adversary_computes_the_totals_of_the_ledger_from_the_models() -> None:
    """The noise of the noisy sums is correlated; that of the totals is independent."""
    audit = prepare_audit(server_noise(slots=6, noise=1.0, delta=0.01, strategy=BANDS))
    adversary, server = audit._adversary, audit.servers[0]
    sampler = audit.sampler
    run = MachineRun(
        server,
        sampler,
        {CANARY: participant_of(audit.campaign)},
        lambda token: Report.from_device(sampler.encode(np.ones(2))),
        ORDINARY_FAULTS,
    )
    observed = run.run()
    noisy = {slot: [float(y[-1]) for y in ys] for slot, ys in adversary._sums(observed).items()}
    grid = audit.campaign.release_grid
    assert grid is not None
    for closing in observed.closings:
        assert closing.total is not None
        (total,) = adversary._with_independent_noise(noisy)[closing.slot]
        assert total == pytest.approx(float(closing.total[-1]) * grid, abs=1e-9)


def test_a_small_campaign_has_as_much_noise_in_a_slot() -> None:
    whole = read_campaign(EXAMPLES / "patients.toml").campaign
    small = shrunk_campaign(whole)
    (before, after) = (
        design.slot_noise(design.randomizer)  # type: ignore[arg-type]
        for design in (whole.design, small.design)
    )
    assert after == pytest.approx(before, rel=1e-12)
    assert small.design.slots <= 5
    assert small.budget.adjacency is whole.budget.adjacency


def test_a_campaign_that_no_device_can_run_is_refused() -> None:
    whole = read_campaign(EXAMPLES / "patients.toml").campaign
    with pytest.raises(NotCovered, match="compiled engine"):
        shrunk_campaign(replace(whole, randomizer=replace(whole.randomizer, grid=None)))


def test_a_negative_number_of_faults_is_refused() -> None:
    with pytest.raises(InvalidValue, match="restorations = -1"):
        Faults(restorations=-1)


@pytest.mark.slow
@pytest.mark.parametrize("example", ["patients.toml", "demo.toml", "fashion_mnist.toml"])
def test_the_examples_can_be_audited(example: str) -> None:
    campaign = read_campaign(EXAMPLES / example).campaign
    for trials in run_trials(shrunk_campaign(campaign), runs=20):
        assert trials.engine == "machines"
        assert trials.fewest_runs == 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "campaign",
    [
        sliding_windows(window=3, noise=1.0, delta=0.01),
        averaged_updates(slots=2, contributors=4, local_epsilon=2.0, delta=0.01),
        laplace_noise(slots=3, local_epsilon=1.0, delta=0.01, capacity=2),
        server_noise(slots=3, noise=1.0, delta=0.01, participation=0.5),
        server_noise(slots=6, noise=1.0, delta=0.01, strategy=BANDS),
    ],
    ids=["sliding", "averaged", "laplace", "participation", "correlated"],
)
def test_every_protocol_can_be_audited(campaign: Campaign) -> None:
    for trials in run_trials(shrunk_campaign(campaign), runs=20):
        assert np.isfinite(trials.scores_with).all()


@pytest.mark.parametrize("strategy", [None, BANDS], ids=["independent", "correlated"])
def test_the_likelihood_ratio_has_mean_one_without_the_canary(
    strategy: NoiseStrategy | None,
) -> None:
    """E_Q[f] = 1, see docs/theory/one-likelihood-ratio.md.

    A mean of 2,000 runs is off by more than 8 deviations with probability below 1e-9, because f is
    at most exp(4) here, except with probability below 1e-12.
    """
    campaign = server_noise(slots=3, noise=2.0, delta=1e-3, strategy=strategy)
    audit = prepare_audit(campaign, faults=NO_FAULTS)
    ratios = np.exp([audit.scores(present=False)[LIKELIHOOD_RATIO] for _ in range(2000)])
    assert abs(ratios.mean() - 1.0) < 8.0 * ratios.std() / np.sqrt(ratios.size)


CATEGORIES = randomized_response(categories=3, slots=2, local_epsilon=1.5, delta=1e-3, capacity=2)
SCENARIOS = [Scenario("alone among dummies"), FULL_SLOTS_OF_TWO]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
@pytest.mark.parametrize("present", [True, False])
def test_a_sum_of_categories_has_as_many_reports_as_the_capacity(
    scenario: Scenario, present: bool
) -> None:
    audit = prepare_audit(CATEGORIES, scenario=scenario)
    for _ in range(20):
        assert audit.scores(present=present)["number of reports"] == 2 * 2


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_likelihood_ratio_of_categories_has_mean_one_without_the_canary(
    scenario: Scenario,
) -> None:
    """Computed exactly, over the categories of both reports of both slots."""
    adversary = prepare_audit(CATEGORIES, scenario=scenario)._adversary
    response = adversary.randomizer
    assert isinstance(response, RandomizedResponse)
    lie = response.lie_probability / 2
    others = [response.truth_probability, lie, lie] if scenario.others_per_slot else [1 / 3] * 3
    mean, one_hot = 0.0, np.eye(3)
    for a, b, c, d in itertools.product(range(3), repeat=4):
        sums = {1: [one_hot[a] + one_hot[b]], 2: [one_hot[c] + one_hot[d]]}
        ratio = np.exp(adversary._log_ratio_of_categories(response, 1.0, sums))
        mean += others[a] * others[b] * others[c] * others[d] * ratio
    assert mean == pytest.approx(1.0, rel=1e-12)
    assert adversary._log_ratio_of_categories(response, 1.0, {1: [2 * one_hot[2]]}) > -1.0


def test_a_slot_that_a_leaky_server_releases_is_used_by_the_adversary() -> None:
    """A server that skips too small slots leaves the model as it was, so their sum is zero."""
    campaign = averaged_gaussian(slots=2, least_reports=3, noise=1.0, delta=0.05)
    adversary = prepare_audit(campaign)._adversary
    assert adversary._log_ratio_of_averages({1: [0.0]}, 1.0, {1: 1}) == 0.0
    assert adversary._log_ratio_of_averages({1: [1.5]}, 1.0, {1: 1}) == pytest.approx(1.0)


def test_an_attack_is_chosen_on_the_first_runs_alone() -> None:
    generator = np.random.default_rng(1)
    first = int(400 * SELECTION_SHARE)

    def half(present: bool, turned: bool) -> list[dict[str, float]]:
        noise = generator.normal(size=(400, 2))
        noise[:first, 0] += 5.0 * present
        noise[first:, 1] += 5.0 * present * turned
        return [{"one": float(a), "other": float(b)} for a, b in noise]

    for turned in (False, True):
        halves = (half(True, turned), half(False, turned))
        assert choose_attack(halves, delta=1e-3, canary="").statistic == "one"


def test_the_log_ratio_is_that_of_the_noise_distribution() -> None:
    assert log_likelihood_ratio(Gaussian(1.0, 2.0), 4, [0.5], 1.0) == pytest.approx(0.0)
    assert log_likelihood_ratio(Laplace(1.0, 1.0), 1, [9.0], 2.0) == pytest.approx(1.0)


def test_the_local_epsilon_is_that_of_the_noise() -> None:
    sampler = sampler_of(client_noise(slots=1, noise=2.0, capacity=1, delta=0.1), dimension=1)
    epsilon = local_epsilon(sampler, delta=0.05)
    assert isinstance(sampler.randomizer, Gaussian)
    assert sampler.randomizer.delta(epsilon=epsilon) <= 0.05
    assert sampler.randomizer.delta(epsilon=epsilon - 1e-6) > 0.05
    pure = sampler_of(laplace_noise(slots=1, local_epsilon=1.5, delta=0.1), dimension=1)
    assert local_epsilon(pure, delta=0.05) == 1.5
    assert prepare_device_audit(CATEGORIES).claim.epsilon == 1.5


def test_a_device_without_noise_has_no_local_guarantee() -> None:
    with pytest.raises(NotCovered, match="no local guarantee"):
        prepare_device_audit(server_noise(slots=1, noise=1.0, delta=0.1))


def test_the_two_updates_of_the_grid_are_an_odd_number_of_steps_apart() -> None:
    campaign = client_noise(slots=1, noise=2.0, capacity=1, delta=0.1)
    audit = prepare_device_audit(campaign, odd_distance=True)
    one, other = (int(audit.sampler.encode(update).units[0]) for update in audit.updates)
    assert (one - other) % 2 == 1
    assert one - other > 1.99 * 10_000


@pytest.mark.parametrize("name", LEAK_TESTS)
def test_every_leak_test_has_a_moderate_claim(name: str) -> None:
    claim = LEAK_TESTS[name].prepare().claim
    assert 0.0 < claim.epsilon < 4.0
    assert 0.0 < claim.delta < 1.0


def test_a_replaced_canary_has_two_data() -> None:
    campaign = averaged_updates(slots=2, contributors=4, local_epsilon=2.0, delta=0.01)
    assert campaign.budget.adjacency is Adjacency.REPLACE_ONE
    (scenario,) = scenarios_for(campaign)
    assert scenario.update_with == -(scenario.update_without or 0.0)
