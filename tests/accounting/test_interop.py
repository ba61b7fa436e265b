"""Campaigns as events, loss distributions and accountants of dp_accounting, and back."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import attrs
import dp_accounting
import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant, pld_pmf, privacy_loss_distribution
from hypothesis import given
from hypothesis import strategies as st

from checkins.accounting import (
    Adjacency,
    Design,
    LocalRandomizer,
    RandomAllocation,
    StepDraw,
    certify,
    certify_random_allocation,
    interop,
    loss_distribution,
)
from checkins.accounting.composition import Composition
from checkins.accounting.exact.dominating_pair import ROUND_OFF
from checkins.accounting.exact.grid_distribution import Rounding, Side
from checkins.errors import InvalidValue, NotCovered
from tests.accounting.designs import ADD_REMOVE, REPLACE_ONE, at_client, at_server, local
from tests.strategies import designs, random_allocations
from tests.support.program import run_python

pytestmark = pytest.mark.slow

DELTA = 1e-5
TEN_EPOCHS = RandomAllocation(1000, 10, 1.0, StepDraw.EACH_EPOCH)
UP = Rounding.near(DELTA, side=Side.UP)
mechanisms = st.one_of(designs(), random_allocations())


def accountant(
    adjacency: Adjacency = ADD_REMOVE, interval: float = 1e-3
) -> interop.CheckInsAccountant:
    return interop.CheckInsAccountant(adjacency=adjacency, smallest_delta=DELTA, interval=interval)


# The export is an upper bound, and close


@pytest.mark.parametrize(
    ("designs", "campaigns", "adjacency"),
    [
        ((local(1.0, 50),), 3, ADD_REMOVE),
        ((local(1.0, 50),), 3, REPLACE_ONE),
        ((at_server(1.0, 100),), 10, ADD_REMOVE),
        ((at_server(1.0, 20),), 3, REPLACE_ONE),
        ((at_server(2.0, 30), local(0.5, 20, 0.3)), 2, ADD_REMOVE),
        ((at_client(2.0, 20, capacity=3),), 2, ADD_REMOVE),
    ],
)
def test_several_campaigns_cost_there_what_their_certificate_says(
    designs: tuple[Design, ...], campaigns: int, adjacency: Adjacency
) -> None:
    theirs = loss_distribution(
        designs, delta=DELTA, adjacency=adjacency, interval=1e-3, campaigns=campaigns
    )
    found = certify(designs, delta=DELTA, adjacency=adjacency, campaigns=campaigns, compare=False)
    epsilon = theirs.get_epsilon_for_delta(DELTA)
    assert epsilon >= found.epsilon_lower
    assert epsilon == pytest.approx(found.epsilon, rel=0.02)
    if adjacency is ADD_REMOVE:
        assert found.epsilon * (1 - 1e-8) <= epsilon <= found.epsilon * (1 + 1e-4)
    pair = Composition(designs, adjacency, campaigns).pair(adjacency, DELTA, Side.UP)
    for at in (0.0, 0.1, 0.5, 1.0, 2.0):
        exact = max(pair.remove(at), pair.add(at)) * (1 + ROUND_OFF)
        assert theirs.get_delta_for_epsilon(at) >= exact * (1 - 1e-9) - 1e-15


def test_equal_campaigns_of_a_sequence_are_composed_together() -> None:
    """Composed one by one, as before, the sequence lost half a percent."""
    sequence = [*[at_server(1.0, 100)] * 67, *[at_server(1.0, 102)] * 33]
    found = certify(sequence, delta=DELTA, adjacency=ADD_REMOVE, compare=False)
    smaller, larger = (
        certify(at_server(1.0, m), delta=DELTA, adjacency=ADD_REMOVE, campaigns=100, compare=False)
        for m in (102, 100)
    )
    assert smaller.epsilon < found.epsilon < larger.epsilon


# Events


@given(mechanism=mechanisms, campaigns=st.integers(1, 1000))
def test_an_event_is_read_back_as_the_same_description(
    mechanism: interop.Mechanism, campaigns: int
) -> None:
    event = interop.to_dp_event(mechanism, campaigns=campaigns)
    assert isinstance(event, dp_accounting.DpEvent)
    assert interop.from_dp_event(event) == [(mechanism, campaigns)]
    carried = dp_accounting.DpEvent.from_named_tuple(event.to_named_tuple())
    assert carried == event
    assert hash(interop.CheckInsDpEvent(mechanism)) == hash(interop.CheckInsDpEvent(mechanism))


def test_a_sequence_keeps_its_order_and_its_repetitions() -> None:
    first, second = at_server(1.0, 10), local(1.0, 20)
    event = interop.to_dp_event([first, TEN_EPOCHS, second], campaigns=2)
    once = [(first, 1), (TEN_EPOCHS, 1), (second, 1)]
    assert interop.from_dp_event(event) == once * 2
    nested = dp_accounting.ComposedDpEvent([dp_accounting.NoOpDpEvent(), event])
    assert interop.from_dp_event(nested) == once * 2
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        interop.CheckInsDpEvent(first).mechanism = second  # type: ignore[misc]


def test_other_events_are_not_read_as_campaigns() -> None:
    mixed = dp_accounting.ComposedDpEvent(
        [interop.to_dp_event(TEN_EPOCHS), dp_accounting.GaussianDpEvent(1.0)]
    )
    with pytest.raises(NotCovered, match="neither a campaign nor a composition"):
        interop.from_dp_event(mixed)
    with pytest.raises(InvalidValue, match="mechanism"):
        interop.CheckInsDpEvent("fixed")  # type: ignore[arg-type]


@attrs.frozen
class RandomAllocationDpEvent(dp_event.DpEvent):  # type: ignore[misc]  # dp_accounting has no types
    """The event of newer versions of dp_accounting, with the same name and fields."""

    event: dp_event.DpEvent
    num_selected: int
    num_steps: int


def test_the_event_of_newer_versions_is_read_as_an_allocation_over_the_whole_run() -> None:
    theirs = RandomAllocationDpEvent(dp_accounting.GaussianDpEvent(1.5), 3, 100)
    ours = RandomAllocation(100, 3, 1.5, StepDraw.WHOLE_RUN)
    assert interop.from_dp_event(theirs) == [(ours, 1)]
    certified = certify_random_allocation(ours, delta=DELTA, adjacency=ADD_REMOVE)
    epsilon = accountant().compose(theirs).get_epsilon(DELTA)
    assert certified.epsilon * (1 - 1e-8) <= epsilon <= certified.epsilon * (1 + 1e-4)
    laplace = RandomAllocationDpEvent(dp_accounting.LaplaceDpEvent(1.5), 3, 100)
    assert not accountant().supports(laplace)


# The accountant


@pytest.mark.parametrize("adjacency", Adjacency)
def test_the_accountant_composes_campaigns_with_mechanisms_of_dp_accounting(
    adjacency: Adjacency,
) -> None:
    """The Gaussian mechanism is a campaign of one slot, so a certificate knows the answer."""
    together = certify(
        [at_server(1.0, 10), at_server(4.0, 1)],
        delta=DELTA,
        adjacency=adjacency,
        campaigns=3,
        compare=False,
    )
    both = dp_accounting.ComposedDpEvent(
        [interop.to_dp_event(at_server(1.0, 10)), dp_accounting.GaussianDpEvent(4.0)]
    )
    found = accountant(adjacency).compose(both, 3)
    assert found.get_epsilon(DELTA) >= together.epsilon_lower
    assert found.get_epsilon(DELTA) == pytest.approx(together.epsilon, rel=0.01)
    assert found.get_delta(together.epsilon) == pytest.approx(DELTA, rel=0.1)
    assert found.ledger == dp_accounting.SelfComposedDpEvent(both, 3)


def test_without_campaigns_the_accountant_is_that_of_dp_accounting() -> None:
    event = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
    theirs = PLDAccountant(value_discretization_interval=1e-3).compose(event, 100)
    assert accountant().compose(event, 100).get_epsilon(DELTA) == theirs.get_epsilon(DELTA)


def test_asking_what_is_supported_composes_nothing() -> None:
    asked = accountant()
    assert asked.supports(interop.to_dp_event(at_server(1.0, 10), campaigns=2))
    assert not asked.supports(dp_accounting.UnsupportedDpEvent())
    assert asked.get_epsilon(DELTA) == 0.0


def test_a_design_without_a_theorem_is_an_unsupported_event() -> None:
    assert accountant().supports(interop.to_dp_event(local(1.0, 20)))
    approximate = LocalRandomizer(1.0, local_delta=0.1)
    refused = interop.to_dp_event(replace(local(1.0, 20), randomizer=approximate))
    assert not accountant().supports(refused)
    with pytest.raises(dp_accounting.UnsupportedEventError, match="local_delta"):
        accountant().compose(refused)


def test_dp_accounting_calibrates_the_noise_of_an_allocation() -> None:
    noise = dp_accounting.calibrate_dp_mechanism(
        lambda: accountant(interval=1e-2),
        lambda noise: interop.to_dp_event(replace(TEN_EPOCHS, noise_multiplier=noise)),
        target_epsilon=1.5,
        target_delta=DELTA,
        bracket_interval=dp_accounting.ExplicitBracketInterval(0.9, 1.4),
        tol=0.02,
    )
    found = certify_random_allocation(
        replace(TEN_EPOCHS, noise_multiplier=noise), delta=DELTA, adjacency=ADD_REMOVE
    )
    assert 1.4 < found.epsilon <= 1.5


# Reading a loss distribution


@st.composite
def loss_distributions(draw: st.DrawFn) -> privacy_loss_distribution.PrivacyLossDistribution:
    """The loss distribution of two distributions on a few outcomes."""
    size = draw(st.integers(1, 5))
    weights = st.lists(st.floats(-8.0, 0.0), min_size=size, max_size=size)
    logs = np.array(draw(weights)), np.array(draw(weights))
    p, q = (np.exp(one) / np.exp(one).sum() for one in logs)
    return privacy_loss_distribution.from_two_probability_mass_functions(
        dict(enumerate(np.log(q))),
        dict(enumerate(np.log(p))),
        value_discretization_interval=draw(st.sampled_from([1e-3, 0.1])),
        symmetric=False,
    )


@given(theirs=loss_distributions(), times=st.integers(1, 4))
def test_a_distribution_that_is_read_costs_no_less(
    theirs: privacy_loss_distribution.PrivacyLossDistribution, times: int
) -> None:
    theirs = theirs.self_compose(times)
    remove = interop.from_pmf(theirs._pmf_remove, UP)
    add = interop.mirrored(interop.from_pmf(theirs._pmf_add, UP))
    for epsilon in (0.0, 0.1, 0.5, 1.0, 3.0, 10.0):
        found = max(remove.remove(epsilon), add.add(epsilon))
        assert found >= theirs.get_delta_for_epsilon(epsilon) * (1 - 1e-9) - 1e-14


def test_a_distribution_that_was_handed_over_comes_back() -> None:
    ours = loss_distribution(
        TEN_EPOCHS.designs, delta=DELTA, adjacency=ADD_REMOVE, interval=1e-3, campaigns=5
    )
    found = interop.epsilon_with(
        TEN_EPOCHS.designs, ours, delta=DELTA, adjacency=ADD_REMOVE, campaigns=5
    )
    whole = certify_random_allocation(TEN_EPOCHS, delta=DELTA, adjacency=ADD_REMOVE)
    assert found >= whole.epsilon_lower
    assert found == pytest.approx(whole.epsilon, rel=1e-3)


@pytest.mark.parametrize("adjacency", Adjacency)
def test_campaigns_are_composed_with_the_poisson_sampling_of_another_library(
    adjacency: Adjacency,
) -> None:
    """Each direction of its loss distribution is used: the two differ."""
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        1.0,
        sampling_prob=0.01,
        value_discretization_interval=1e-3,
        neighboring_relation=interop.NEIGHBORING_RELATIONS[adjacency],
    ).self_compose(500)
    alone = theirs.get_epsilon_for_delta(DELTA)
    nothing = at_server(1.0, 10, 0.0)
    read = interop.epsilon_with(nothing, theirs, delta=DELTA, adjacency=adjacency)
    assert alone * (1 - 1e-9) <= read <= 1.002 * alone
    campaign = at_server(2.0, 10)
    ours = loss_distribution(campaign, delta=DELTA, adjacency=adjacency, interval=1e-3)
    there = ours.compose(theirs).get_epsilon_for_delta(DELTA)
    here = interop.epsilon_with(campaign, theirs, delta=DELTA, adjacency=adjacency)
    assert here == pytest.approx(there, rel=0.005)


def test_the_noise_of_a_convolution_is_not_magnified() -> None:
    """Masses of 1e-17 at a loss of -60 would count as 1e9 under the other distribution."""
    masses = np.full(12_001, 1e-17)
    masses[6_000] = 1.0
    noisy = pld_pmf.DensePLDPmf(0.01, -6_000, masses, 0.0, True)
    pair = interop.from_pmf(noisy, UP)
    assert pair.absent.sum() + pair.only_absent == pytest.approx(1.0, abs=1e-9)
    for epsilon in (0.0, 0.5, 5.0):
        assert pair.remove(epsilon) >= noisy.get_delta_for_epsilon(epsilon) * (1 - 1e-9)
        assert pair.remove(epsilon) < 1e-9


def test_sparse_distributions_are_read_and_optimistic_ones_refused() -> None:
    sparse = privacy_loss_distribution.from_privacy_parameters(
        dp_accounting.pld.common.DifferentialPrivacyParameters(0.5, 1e-6)
    )
    nothing = local(1.0, 10, 0.0)
    found = interop.epsilon_with(nothing, sparse, delta=DELTA, adjacency=ADD_REMOVE)
    assert sparse.get_epsilon_for_delta(DELTA) <= found <= 0.51
    optimistic = privacy_loss_distribution.from_gaussian_mechanism(
        1.0, pessimistic_estimate=False, value_discretization_interval=0.01
    )
    with pytest.raises(InvalidValue, match="must be a pessimistic estimate"):
        interop.epsilon_with(nothing, optimistic, delta=DELTA, adjacency=ADD_REMOVE)


def test_a_mechanism_that_reveals_everything_with_some_probability_leaves_no_small_delta() -> None:
    certain = privacy_loss_distribution.from_privacy_parameters(
        dp_accounting.pld.common.DifferentialPrivacyParameters(0.0, 1e-3)
    )
    found = interop.epsilon_with(local(1.0, 10), certain, delta=DELTA, adjacency=ADD_REMOVE)
    assert found == math.inf


# Imports


def test_the_accountant_is_imported_without_dp_accounting() -> None:
    code = "import sys, checkins.accounting; print('dp_accounting' in sys.modules)"
    done = run_python("-c", code)
    assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stderr
    assert "dp_accounting" in sys.modules
    assert REPLACE_ONE in interop.NEIGHBORING_RELATIONS
