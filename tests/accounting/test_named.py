"""Named randomizers with their real dummies: known values, enumerations and integrals."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkins.accounting import (
    Adjacency,
    Design,
    LaplaceReports,
    LocalRandomizer,
    PrivUnitReports,
    Protocol,
    RandomizedResponseReports,
    certify,
)
from checkins.accounting.certificate import (
    OF_DESIGN,
    OF_SOME_RANDOMIZER,
    OF_SOME_RANDOMIZER_AMONG_OTHERS,
)
from checkins.accounting.exact import campaign_divergence
from checkins.accounting.exact.named import NamedCampaign, Resolution, mean_of_random_copies
from checkins.accounting.exact.report_distributions import (
    LaplaceDistribution,
    LaplaceRatio,
    LaplaceReplaceOneRatio,
    TwoLevelDistribution,
    privunit,
    randomized_response,
)
from checkins.errors import InvalidValue
from tests.accounting import protocols

pytestmark = pytest.mark.slow

ADD_REMOVE, REPLACE_ONE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE
DELTA = 1e-9
local_epsilons = st.floats(0.05, 4.0)

# Values that were computed elsewhere, at delta 1e-6 and participation 1

KNOWN = {
    ("binary", 1, 0.5, 100): (0.09153, 0.09763, 0.1837),
    ("10-ary", 1, 0.5, 100): (0.07098, 0.07345, 0.1158),
    ("laplace", 1, 0.5, 100): (0.08845, 0.08995, 0.1725),
    ("privunit", 1, 0.5, 100): (0.09215, 0.09301, 0.1743),
    ("binary", 1, 1.0, 1000): (0.05204, 0.06250, 0.1066),
    ("10-ary", 1, 1.0, 1000): (0.04915, 0.05013, 0.08110),
    ("laplace", 1, 1.0, 1000): (0.05257, 0.05535, 0.09956),
    ("privunit", 1, 1.0, 1000): (0.05761, 0.05907, 0.1030),
    ("binary", 1, 4.0, 1000): (0.1185, 0.4922, 0.6711),
    ("10-ary", 1, 4.0, 1000): (0.3517, 0.5081, 0.7109),
    ("laplace", 1, 4.0, 1000): (0.2601, 0.3959, 0.6772),
    ("privunit", 1, 4.0, 1000): (0.4193, 0.5124, 0.7197),
    ("binary", 100, 2.0, 1000): (0.007199, 0.02439, 0.03319),
    ("10-ary", 100, 2.0, 1000): (0.01148, 0.01688, 0.03283),
    ("privunit", 100, 2.0, 1000): (0.01081, 0.02099, 0.03283),
    ("binary", 100, 4.0, 1000): (0.009328, 0.08377, 0.1183),
    ("10-ary", 100, 4.0, 1000): (0.02670, 0.07762, 0.1169),
    ("privunit", 100, 4.0, 1000): (0.03156, 0.07410, 0.1169),
}
"""By randomizer, capacity, local epsilon and slots: add/remove lower and upper, replace-one."""


def law_of(name: str, local_epsilon: float) -> TwoLevelDistribution | LaplaceDistribution:
    laws = {
        "binary": lambda: randomized_response(local_epsilon, 2),
        "10-ary": lambda: randomized_response(local_epsilon, 10),
        "laplace": lambda: LaplaceDistribution(local_epsilon),
        "privunit": lambda: privunit(local_epsilon, 10**4),
    }
    return laws[name]()


@pytest.mark.parametrize("case", KNOWN)
def test_the_known_values_are_reproduced(case: tuple[str, int, float, int]) -> None:
    name, capacity, local_epsilon, slots = case
    lower, upper, replaced = KNOWN[case]
    campaign = NamedCampaign(law_of(name, local_epsilon), slots, 1.0, capacity)
    found = campaign.divergence(ADD_REMOVE, delta=1e-6, cells=1000).epsilon(1e-6)
    assert lower * (1 - 5e-3) <= found.lower <= lower * (1 + 1e-3)
    assert upper * (1 - 1e-3) <= found.upper <= upper * 1.003
    bound = campaign.divergence(REPLACE_ONE, delta=1e-6, cells=800)
    assert bound.upper(replaced * 1.015) <= 1e-6 < bound.upper(replaced * (1 - 1e-3))


# Never exceeded: every outcome of small protocols, with the dummies that run


@st.composite
def named_protocols(draw: st.DrawFn) -> tuple[protocols.Protocol, NamedCampaign]:
    """Randomized response with uniform dummies and hostile others, who adapt to the releases."""
    categories, capacity = draw(st.integers(2, 4)), draw(st.integers(1, 4))
    slots = draw(st.integers(1, 3 if capacity == 1 else 2))
    local_epsilon = draw(local_epsilons)
    participation = draw(st.one_of(st.just(1.0), st.floats(0.05, 1.0)))
    seed = draw(st.integers(0, 2**32 - 1))
    response = protocols.subset_response(
        local_epsilon, categories, tuple(frozenset({one}) for one in range(categories))
    )
    dummy = np.full((1, categories), 1.0 / categories)

    def adaptive(history: protocols.History) -> np.ndarray:
        """Every history lets every datum prefer another category."""
        words = [seed, *(1 + r for release in history for r in (-1, *release))]
        preferred = np.random.default_rng(words).integers(categories, size=3)
        return np.concatenate((dummy, response[preferred]))

    everywhere = tuple(range(slots))
    other = st.builds(protocols.Client, st.integers(0, 3), st.floats(0.2, 1.0), st.just(everywhere))
    others = draw(st.lists(other, max_size=4 if slots == 1 else 3))
    client = protocols.Client(protocols.DATUM, participation, everywhere)
    protocol = protocols.Protocol(slots, capacity, adaptive, client, tuple(others))
    law = randomized_response(local_epsilon, categories)
    return protocol, NamedCampaign(law, slots, participation, capacity)


@settings(max_examples=60)
@given(case=named_protocols(), share=st.floats(0.0, 1.0))
def test_no_protocol_with_uniform_dummies_exceeds_the_bounds(
    case: tuple[protocols.Protocol, NamedCampaign], share: float
) -> None:
    protocol, campaign = case
    most = math.log1p(campaign.participation * math.expm1(campaign.local_epsilon))
    releases, epsilon = protocol.releases(), share * most
    for adjacency, delta in (
        (ADD_REMOVE, releases.add_remove(epsilon)),
        (REPLACE_ONE, releases.replace(epsilon)),
    ):
        bound = campaign.divergence(adjacency, delta=DELTA, cells=200)
        assert delta <= bound.upper(epsilon) + 1e-12


@settings(max_examples=30)
@given(
    categories=st.integers(2, 4),
    slots=st.integers(1, 2),
    capacity=st.integers(1, 3),
    local_epsilon=local_epsilons,
    share=st.floats(0.0, 0.9),
)
def test_a_client_among_dummies_attains_the_lower_bound(
    categories: int, slots: int, capacity: int, local_epsilon: float, share: float
) -> None:
    response = protocols.subset_response(
        local_epsilon, categories, tuple(frozenset({one}) for one in range(2))
    )
    matrix = np.concatenate((np.full((1, categories), 1.0 / categories), response))
    client = protocols.Client(protocols.DATUM, 1.0, tuple(range(slots)))
    releases = protocols.Protocol(slots, capacity, protocols.always(matrix), client).releases()
    campaign = NamedCampaign(randomized_response(local_epsilon, categories), slots, 1.0, capacity)
    epsilon = share * local_epsilon
    for adjacency, attained in (
        (ADD_REMOVE, releases.add_remove(epsilon)),
        (REPLACE_ONE, releases.replace(epsilon)),
    ):
        bound = campaign.divergence(adjacency, delta=DELTA, cells=200)
        assert bound.lower(epsilon) == pytest.approx(attained, rel=1e-6, abs=1e-12)


# The parts against plain sums and integrals


@given(
    local_epsilon=local_epsilons,
    capacity=st.integers(2, 6),
    categories=st.integers(2, 5),
    groups=st.integers(1, 8),
    share=st.floats(0.0, 1.0),
)
def test_the_mean_of_random_copies_is_the_sum_over_all_copies(
    local_epsilon: float, capacity: int, categories: int, groups: int, share: float
) -> None:
    """Groups of numbers of copies are rounded up."""
    law = randomized_response(local_epsilon, categories)
    ratio, s = law.against_dummy, law.dummy_share
    values, masses = ratio.deviations + 1.0, ratio.masses
    t = float(values[0] + share * (values[1] - values[0]))
    call = 0.0
    for extra in range(capacity):
        likely = math.comb(capacity - 1, extra) * s**extra * (1 - s) ** (capacity - 1 - extra)
        for ups in range(extra + 2):
            count = extra + 1
            mass = math.comb(count, ups) * masses[1] ** ups * masses[0] ** (count - ups)
            mean = (ups * values[1] + (count - ups) * values[0]) / count
            call += likely * mass * max(mean - t, 0.0)
    found = mean_of_random_copies(ratio, capacity, s, Resolution(256, groups)).call(np.array([t]))[
        0
    ]
    assert call - 1e-12 <= found
    if groups >= capacity:
        assert found <= call + 0.01 * (values[1] - values[0])


@given(shift=st.floats(0.05, 3.0), share=st.floats(-1.2, 1.2))
def test_the_laplace_ratio_is_an_integral_over_the_noise(shift: float, share: float) -> None:
    y = np.linspace(-40.0, 40.0, 800_001)
    density = np.exp(-np.abs(y)) / 2.0
    values = np.exp(np.abs(y) - np.abs(y - shift))
    t = math.exp(share * shift)
    call = np.trapezoid(np.maximum(values - t, 0.0) * density, y)
    put = np.trapezoid(np.maximum(t - values, 0.0) * density, y)
    ratio, at = LaplaceRatio(shift), np.array([t])
    assert ratio.call(at)[0] == pytest.approx(call, abs=1e-6)
    assert ratio.put(at)[0] == pytest.approx(put, abs=1e-6)
    survival = np.trapezoid((values > t) * density, y)
    assert ratio.survival(at)[0] == pytest.approx(survival, abs=2e-4)


@given(shift=st.floats(0.05, 3.0), epsilon=st.floats(0.0, 2.0), share=st.floats(-0.1, 1.1))
def test_the_laplace_replacement_is_an_integral_over_the_noise(
    shift: float, epsilon: float, share: float
) -> None:
    y = np.linspace(-40.0, 40.0, 800_001)
    density = np.exp(-np.abs(y)) / 2.0
    own, other = np.abs(y) - np.abs(y - shift), np.abs(y) - np.abs(y + shift)
    values = np.exp(own) - math.exp(epsilon) * np.exp(other)
    ratio = LaplaceReplaceOneRatio(shift, epsilon)
    t = ratio.floor + share * (ratio.ceiling - ratio.floor)
    at, scale = np.array([t]), math.exp(shift + epsilon)
    call = np.trapezoid(np.maximum(values - t, 0.0) * density, y)
    put = np.trapezoid(np.maximum(t - values, 0.0) * density, y)
    assert ratio.call(at)[0] == pytest.approx(call, abs=1e-6 * scale)
    assert ratio.put(at)[0] == pytest.approx(put, abs=1e-6 * scale)


@given(shift=st.floats(0.05, 2.0), split=st.floats(0.0, 1.0), share=st.floats(-1.0, 1.0))
def test_a_corner_of_the_l1_ball_is_worse_than_a_point_of_its_face(
    shift: float, split: float, share: float
) -> None:
    """Two coordinates: the product of two ratios is below the ratio of the whole shift."""
    y = np.linspace(-12.0, 12.0, 1201)
    weights = np.exp(-np.abs(y)) / 2.0 * (y[1] - y[0])
    first = np.exp(np.abs(y) - np.abs(y - split * shift))
    second = np.exp(np.abs(y) - np.abs(y - (1.0 - split) * shift))
    t = math.exp(share * shift)
    product = np.maximum(np.multiply.outer(first, second) - t, 0.0)
    found = float(weights @ product @ weights)
    assert found <= LaplaceRatio(shift).call(np.array([t]))[0] + 3e-4 * math.exp(shift)


# What the divergence must obey


@settings(max_examples=20)
@given(
    name=st.sampled_from(["binary", "10-ary", "laplace", "privunit"]),
    local_epsilon=st.floats(0.01, 8.0),
    slots=st.integers(1, 300),
    capacity=st.integers(1, 40),
    participation=st.floats(0.05, 1.0),
    adjacency=st.sampled_from(Adjacency),
)
def test_a_name_never_increases_epsilon_and_the_bounds_do_not_cross(
    name: str,
    local_epsilon: float,
    slots: int,
    capacity: int,
    participation: float,
    adjacency: Adjacency,
) -> None:
    campaign = NamedCampaign(law_of(name, local_epsilon), slots, participation, capacity)
    bound = campaign.divergence(adjacency, delta=1e-6, cells=128)
    anything = campaign.any_randomizer.divergence(adjacency, delta=1e-6, cells=128)
    assert bound.upper_epsilon(1e-6) <= anything.upper_epsilon(1e-6) * (1 + 1e-9)
    for share in (0.0, 0.2, 0.6):
        epsilon = share * local_epsilon
        assert bound.lower(epsilon) <= bound.upper(epsilon) * (1 + 1e-6) + 1e-14


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("name", ["binary", "10-ary", "laplace", "privunit"])
@pytest.mark.parametrize(
    ("local_epsilon", "slots", "capacity"),
    [(1e-5, 10, 5), (1e-4, 3, 10**7), (100.0, 1, 2), (25.0, 10**6, 10**6), (40.0, 3, 7)],
)
def test_extreme_designs_have_bounds(
    local_epsilon: float, slots: int, capacity: int, name: str, adjacency: Adjacency
) -> None:
    campaign = NamedCampaign(law_of(name, local_epsilon), slots, 1.0, capacity)
    bound = campaign.divergence(adjacency, delta=1e-6, cells=128)
    assert 0.0 <= bound.upper_epsilon(1e-6) <= local_epsilon * (1 + 1e-9)
    for share in (0.0, 0.1, 0.5, 0.9):
        epsilon = share * local_epsilon
        assert bound.lower(epsilon) <= bound.upper(epsilon) * (1 + 1e-6) + 1e-13


@pytest.mark.parametrize("local_epsilon", [0.001, 0.01, 0.3])
@pytest.mark.parametrize("slots", [1, 10])
def test_a_tiny_delta_does_not_make_the_laplace_bounds_cross(
    local_epsilon: float, slots: int
) -> None:
    """A client alone among dummies has a privacy loss of half the local epsilon at most."""
    campaign = NamedCampaign(LaplaceDistribution(local_epsilon), slots, 1.0, 1)
    found = campaign.divergence(ADD_REMOVE, delta=1e-18, cells=None).epsilon(1e-18)
    assert found.lower <= local_epsilon / 2.0 <= found.upper <= local_epsilon


# Certificates


def design_with(randomizer: LocalRandomizer, **how: object) -> Design:
    fixed = {"slots": 200, "participation": 1.0, "capacity": 5, **how}
    return Design(Protocol.FIXED, randomizer=randomizer, **fixed)  # type: ignore[arg-type]


NAMES = {
    "randomized response with 4 categories": RandomizedResponseReports(1.0, categories=4),
    "Laplace noise": LaplaceReports(1.0),
    "PrivUnit in dimension 100": PrivUnitReports(1.0, dimension=100),
}


@pytest.mark.parametrize("text", NAMES)
@pytest.mark.parametrize("adjacency", Adjacency)
def test_a_certificate_names_the_randomizer_and_what_its_lower_bound_is_about(
    text: str, adjacency: Adjacency
) -> None:
    terms = {"delta": 1e-6, "adjacency": adjacency, "compare": False}
    named = certify(design_with(NAMES[text]), **terms)  # type: ignore[arg-type]
    anything = certify(design_with(LocalRandomizer(1.0)), **terms)  # type: ignore[arg-type]
    assert 0.0 < named.epsilon_lower < named.epsilon < anything.epsilon
    assert named.epsilon_lower_of == OF_DESIGN
    assert anything.epsilon_lower_of == OF_SOME_RANDOMIZER_AMONG_OTHERS
    assert any(text in line for line in named.assumptions)
    assert not any(text in line for line in anything.assumptions)


def test_without_a_capacity_the_name_is_not_used() -> None:
    terms = {"delta": 1e-6, "adjacency": ADD_REMOVE, "compare": False}
    named = certify(design_with(LaplaceReports(1.0), capacity=None), **terms)  # type: ignore[arg-type]
    plain = certify(design_with(LocalRandomizer(1.0), capacity=None), **terms)  # type: ignore[arg-type]
    assert named.epsilon == plain.epsilon
    assert named.epsilon_lower_of == OF_SOME_RANDOMIZER


@pytest.mark.parametrize(
    ("randomizer", "adjacency"),
    [*((one, ADD_REMOVE) for one in NAMES.values()), (RandomizedResponseReports(1.0), REPLACE_ONE)],
)
def test_several_campaigns_of_a_named_randomizer_are_composed(
    randomizer: LocalRandomizer, adjacency: Adjacency
) -> None:
    terms = {"delta": 1e-6, "adjacency": adjacency, "compare": False}
    one, four = (
        certify(design_with(randomizer), campaigns=count, **terms)  # type: ignore[arg-type]
        for count in (1, 4)
    )
    plain = certify(design_with(LocalRandomizer(1.0)), campaigns=4, **terms)  # type: ignore[arg-type]
    assert one.epsilon < four.epsilon < 4.0 * one.epsilon
    assert four.epsilon < plain.epsilon
    assert four.epsilon_lower <= four.epsilon


def test_curious_clients_leave_only_the_local_epsilon() -> None:
    terms = {"delta": 1e-3, "adjacency": ADD_REMOVE, "compare": False, "curious": 10}
    named, plain = (
        certify(design_with(one, slots=1000, capacity=50), **terms)  # type: ignore[arg-type]
        for one in (LaplaceReports(2.0), LocalRandomizer(2.0))
    )
    assert named.epsilon == plain.epsilon


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomizedResponseReports(1.0, categories=1),
        lambda: PrivUnitReports(1.0, dimension=0),
        lambda: PrivUnitReports(1e-9, dimension=3),
        lambda: LaplaceReports(1.0, 1e-9),
    ],
)
def test_a_named_randomizer_with_impossible_parameters_is_refused(make: object) -> None:
    with pytest.raises(InvalidValue):
        make()  # type: ignore[operator]


# Approximate randomizers: the local delta is charged once


@pytest.mark.parametrize(("adjacency", "epsilon"), [(ADD_REMOVE, 0.1267), (REPLACE_ONE, 0.1489)])
def test_a_local_delta_is_charged_once_and_not_in_every_slot(
    adjacency: Adjacency, epsilon: float
) -> None:
    design = Design(
        Protocol.FIXED, slots=1000, participation=1.0, randomizer=LocalRandomizer(1.0, 1e-9)
    )
    found = certify(design, delta=1e-6, adjacency=adjacency, compare=False)
    assert (found.method, found.epsilon <= epsilon) == ("exact", True)
    pure = Design(Protocol.FIXED, slots=1000, participation=1.0, randomizer=LocalRandomizer(1.0))
    without = certify(pure, delta=1e-6, adjacency=adjacency, compare=False).epsilon
    assert found.epsilon > without * (1 + 1e-5)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    local_epsilon=st.floats(0.1, 2.0),
    log_delta=st.floats(-6.0, -1.0),
    slots=st.integers(1, 3),
    participation=st.floats(0.1, 1.0),
    share=st.floats(0.0, 1.0),
)
def test_no_approximate_protocol_exceeds_the_pure_bound_and_its_charge(
    seed: int,
    local_epsilon: float,
    log_delta: float,
    slots: int,
    participation: float,
    share: float,
) -> None:
    """Each datum shows itself with probability delta0, in an outcome of its own."""
    leak, pure = 10.0**log_delta, protocols.adaptive(seed, local_epsilon, rows=4)

    def leaky(history: protocols.History) -> np.ndarray:
        matrix = pure(history)
        rows, shown = matrix.shape[0], np.zeros((matrix.shape[0], matrix.shape[0]))
        shown[np.arange(rows), np.arange(rows)] = leak
        return np.concatenate(((1.0 - leak) * matrix, shown), axis=1)

    everywhere = tuple(range(slots))
    client = protocols.Client(protocols.DATUM, participation, everywhere)
    others = (protocols.Client(3, 0.7, everywhere),)
    releases = protocols.Protocol(slots, 1, leaky, client, others).releases()
    epsilon = share * local_epsilon
    design = Design(
        Protocol.FIXED,
        slots=slots,
        participation=participation,
        randomizer=LocalRandomizer(local_epsilon),
    )
    e, b = math.exp(epsilon), math.exp(local_epsilon)
    charges = {ADD_REMOVE: e, REPLACE_ONE: (1.0 + e) * (2.0 + b)}
    for adjacency, delta in (
        (ADD_REMOVE, releases.add_remove(epsilon)),
        (REPLACE_ONE, releases.replace(epsilon)),
    ):
        bound = campaign_divergence.divergence(design, adjacency, delta=DELTA).upper(epsilon)
        assert delta <= bound + charges[adjacency] * participation * leak + 1e-12


def test_all_names_are_told_apart() -> None:
    assert len({type(one) for one in NAMES.values()}) == len(NAMES)
    for one, other in itertools.combinations(NAMES.values(), 2):
        assert one != other
