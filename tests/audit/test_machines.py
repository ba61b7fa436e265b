"""The audit by the real machines: what it runs is what is certified, whatever goes wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from checkins.accounting import Adjacency
from checkins.audit.bounds import CHOOSING
from checkins.audit.machines import Stage, made_small, run_trials, stage_of
from checkins.audit.machines.adversity import ORDINARY, SMOOTH, Adversity
from checkins.audit.machines.attacks import LIKELIHOOD, Noise
from checkins.audit.machines.battery import BATTERY
from checkins.audit.machines.campaigns import (
    averaged,
    client_noise,
    laplace,
    server_noise,
    sliding,
)
from checkins.audit.machines.device import device_stage, local_epsilon
from checkins.audit.machines.scene import scenes_for
from checkins.audit.machines.stage import best_attack
from checkins.audit.machines.world import CANARY, Seen, World
from checkins.campaign import Campaign, read_campaign
from checkins.errors import InvalidValue, NotCovered
from checkins.ledger import Ledger
from checkins.protocol.factories import participant_of, sampler_of, server_of
from checkins.protocol.participant import Outcome
from checkins.protocol.report import Report
from checkins.randomizers import Gaussian, Laplace

EXAMPLES = Path(__file__).parents[2] / "examples"
MISFORTUNES = {
    "none": SMOOTH,
    "ordinary": ORDINARY,
    "restarting devices": Adversity(
        crashes_after_draw=5, crashes_after_no=5, crashes_after_report=5
    ),
    "restarting server": Adversity(crashes_while_closing=5, crashes_at_invitation=5),
    "late report": Adversity(late_report=True),
    "backups": Adversity(restorations=5),
}


def played(campaign: Campaign, adversity: Adversity, *, update: float = 1.0) -> Seen:
    sampler = sampler_of(campaign, dimension=2)

    def make(token: str) -> Report:
        return Report.from_device(sampler.encode(np.array([0.0, update])))

    server = server_of(campaign, np.zeros(2), ledger=Ledger())
    devices = {CANARY: participant_of(campaign)}
    silent: Any = SimpleNamespace(noise=lambda: np.zeros(2, dtype=np.int64))
    return World(server, silent, devices, make, adversity).run()


@pytest.fixture(scope="module")
def quiet() -> Campaign:
    """A campaign whose server's noise is left out in these tests: a report is seen in its sum."""
    return server_noise(slots=3, noise=1.0, delta=1e-3)


@pytest.fixture(scope="module")
def stage(quiet: Campaign) -> Stage:
    return stage_of(quiet)


def sums(seen: Seen, stage: Stage) -> list[int]:
    """What came out of each slot, in clips."""
    found = stage._adversary._sums(seen)
    return [round(float(one[-1])) for some in found.values() for one in some]


@pytest.mark.parametrize("misfortune", sorted(MISFORTUNES.keys() - {"late report"}))
def test_a_canary_is_in_one_sum_whatever_goes_wrong(
    misfortune: str, quiet: Campaign, stage: Stage
) -> None:
    for _ in range(20):
        found = sums(played(quiet, MISFORTUNES[misfortune]), stage)
        assert sorted(found) == [0, 0, 1]


def test_a_late_report_counts_nowhere(quiet: Campaign, stage: Stage) -> None:
    for _ in range(20):
        *before, last = sums(played(quiet, MISFORTUNES["late report"]), stage)
        assert before == [0, 0]
        assert last in (0, 1)  # a canary of the last slot is in time


@pytest.mark.parametrize("misfortune", MISFORTUNES)
def test_a_slot_is_shown_with_one_model_only(misfortune: str, quiet: Campaign) -> None:
    seen = played(quiet, MISFORTUNES[misfortune])
    models = {(slot, model.tobytes()) for slot, model in seen.releases}
    assert sorted(slot for slot, _ in models) == [1, 2, 3]


def test_a_device_that_restarts_sends_the_same_report_again() -> None:
    campaign = client_noise(slots=2, noise=1.0, capacity=1, delta=1e-3)
    sampler = sampler_of(campaign, dimension=2)
    world = World(
        server_of(campaign, np.zeros(2), ledger=Ledger()),
        sampler,
        {CANARY: participant_of(campaign)},
        lambda token: Report.from_device(sampler.privatize(np.ones(2))),
        Adversity(crashes_after_report=4),
    )
    sent = world.run().sent
    assert len(sent) == 5
    assert len(set(sent)) == 1


def test_what_is_over_leaves_nothing_on_the_disks(quiet: Campaign) -> None:
    seen = played(quiet, ORDINARY)
    device = seen.device_disk
    assert device is not None
    assert device.outcome is Outcome.REPORTED
    assert (device.slot, device.receipt, device.report) == (None, None, None)
    assert seen.server_disk.slot is not None
    assert not seen.server_disk.slot.waiting


def test_a_small_campaign_has_as_much_noise_in_a_slot() -> None:
    whole = read_campaign(EXAMPLES / "patients.toml").campaign
    small = made_small(whole).campaign
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
        made_small(replace(whole, randomizer=replace(whole.randomizer, grid=None)))


def test_misfortunes_are_counted() -> None:
    with pytest.raises(InvalidValue, match="restorations = -1"):
        Adversity(restorations=-1)


@pytest.mark.slow
@pytest.mark.parametrize("example", ["patients.toml", "demo.toml", "fashion_mnist.toml"])
def test_the_examples_can_be_audited(example: str) -> None:
    campaign = read_campaign(EXAMPLES / example).campaign
    for trials in run_trials(campaign, runs=20):
        assert trials.engine == "machines"
        assert trials.fewest == 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "campaign",
    [
        sliding(window=3, noise=1.0, delta=0.01),
        averaged(slots=2, contributors=4, local_epsilon=2.0, delta=0.01),
        laplace(slots=3, local_epsilon=1.0, delta=0.01),
        server_noise(slots=3, noise=1.0, delta=0.01, participation=0.5),
    ],
    ids=["sliding", "averaged", "laplace", "participation"],
)
def test_every_protocol_can_be_audited(campaign: Campaign) -> None:
    for trials in run_trials(campaign, runs=20):
        assert np.isfinite(trials.scores_with).all()


def test_the_likelihood_ratio_has_mean_one_without_the_canary() -> None:
    """E_Q[f] = 1 (MATH.md B1): 2,000 runs; off by more than 8 deviations has a chance below 1e-9,
    since f is at most exp(4) here but with a chance below 1e-12."""
    stage = stage_of(server_noise(slots=3, noise=2.0, delta=1e-3), adversity=SMOOTH)
    ratios = np.exp([stage.scores(present=False)[LIKELIHOOD] for _ in range(2000)])
    assert abs(ratios.mean() - 1.0) < 8.0 * ratios.std() / np.sqrt(ratios.size)


def test_an_attack_is_chosen_on_the_first_runs_alone() -> None:
    generator = np.random.default_rng(1)
    first = int(400 * CHOOSING)

    def half(present: bool, turned: bool) -> list[dict[str, float]]:
        noise = generator.normal(size=(400, 2))
        noise[:first, 0] += 5.0 * present
        noise[first:, 1] += 5.0 * present * turned
        return [{"one": float(a), "other": float(b)} for a, b in noise]

    for turned in (False, True):
        halves = (half(True, turned), half(False, turned))
        assert best_attack(halves, delta=1e-3, canary="").statistic == "one"


def test_noise_is_read_by_its_own_law() -> None:
    assert Noise(Gaussian(1.0, 2.0), 4).log_ratio((0.5,), 1.0) == pytest.approx(0.0)
    assert Noise(Laplace(1.0, 1.0), 1).log_ratio((9.0,), 2.0) == pytest.approx(1.0)


def test_a_device_promises_what_its_noise_does() -> None:
    sampler = sampler_of(client_noise(slots=1, noise=2.0, capacity=1, delta=0.1), dimension=1)
    epsilon = local_epsilon(sampler, delta=0.05)
    assert isinstance(sampler.randomizer, Gaussian)
    assert sampler.randomizer.delta(epsilon=epsilon) <= 0.05
    assert sampler.randomizer.delta(epsilon=epsilon - 1e-6) > 0.05
    pure = sampler_of(laplace(slots=1, local_epsilon=1.5, delta=0.1), dimension=1)
    assert local_epsilon(pure, delta=0.05) == 1.5


def test_a_device_without_noise_of_its_own_promises_nothing() -> None:
    with pytest.raises(NotCovered, match="promises nothing"):
        device_stage(server_noise(slots=1, noise=1.0, delta=0.1), delta=0.1)


def test_the_two_updates_of_the_grid_are_an_odd_number_of_steps_apart() -> None:
    campaign = client_noise(slots=1, noise=2.0, capacity=1, delta=0.1)
    stage = device_stage(campaign, delta=0.1, odd=True)
    one, other = (int(stage.sampler.encode(update).units[0]) for update in stage.updates)
    assert (one - other) % 2 == 1
    assert one - other > 1.99 * 10_000


@pytest.mark.parametrize("name", BATTERY)
def test_every_drill_has_a_claim_of_its_own(name: str) -> None:
    claim = BATTERY[name].stage().claim
    assert 0.0 < claim.epsilon < 4.0
    assert 0.0 < claim.delta < 1.0


def test_a_replaced_canary_has_two_data() -> None:
    campaign = averaged(slots=2, contributors=4, local_epsilon=2.0, delta=0.01)
    assert campaign.budget.adjacency is Adjacency.REPLACE_ONE
    (scene,) = scenes_for(campaign)
    assert scene.data(present=True) == -(scene.data(present=False) or 0.0)
