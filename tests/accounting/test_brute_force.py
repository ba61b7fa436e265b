"""Small adaptive protocols, enumerated outcome by outcome, against the exact accountant."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from checkins.accounting import Adjacency
from checkins.accounting.exact.pure import PureAddRemove, PureCampaign, PureReplaceOne
from checkins.accounting.exact.pure_capacity import PureCapacityCampaign
from tests.accounting import protocols
from tests.accounting.protocols import DUMMY, OTHER_DATUM, Client, Protocol

pytestmark = pytest.mark.slow

ROUND_OFF = 1e-12
DELTA = 1e-9  # no divergence below this is looked at: the bounds are asked for windows that wide

local_epsilons = st.floats(0.05, 4.0)
participations = st.one_of(st.just(1.0), st.floats(0.05, 1.0))
shares = st.floats(0.0, 1.0)
"""How far along [0, largest possible epsilon] a divergence is compared."""
seeds = st.integers(0, 2**32 - 1)


def cap(local_epsilon: float, participation: float) -> float:
    return math.log1p(participation * math.expm1(local_epsilon))


def binary_response(local_epsilon: float) -> np.ndarray:
    """The dummy and the client always differ: the worst for add/remove. Rows 1 and 2 differ too."""
    sets = (frozenset({0}), frozenset({1}), frozenset({0}))
    return protocols.subset_response(local_epsilon, 2, sets)


def alone(matrix: np.ndarray, *, slots: int, participation: float) -> protocols.Releases:
    client = Client(protocols.DATUM, participation, tuple(range(slots)))
    return Protocol(slots, 1, protocols.always(matrix), client).releases()


@st.composite
def windows(draw: st.DrawFn, slots: int) -> tuple[int, ...]:
    first = draw(st.integers(0, slots - 1))
    return tuple(range(first, draw(st.integers(first, slots - 1)) + 1))


@st.composite
def small_protocols(draw: st.DrawFn) -> tuple[Protocol, float]:
    """A protocol with adaptive randomizers and its local epsilon."""
    capacity = draw(st.sampled_from([1, 1, 2]))
    slots = draw(st.integers(1, 4 if capacity == 1 else 3))
    local_epsilon = draw(local_epsilons)
    client = Client(protocols.DATUM, draw(participations), draw(windows(slots)))
    datum = st.integers(0, 3)
    others = draw(
        st.lists(
            st.builds(Client, datum, participations, windows(slots)), max_size=3 if slots < 4 else 2
        )
    )
    randomizer = protocols.adaptive(draw(seeds), local_epsilon, rows=4)
    return Protocol(slots, capacity, randomizer, client, tuple(others)), local_epsilon


def campaign_of(protocol: Protocol, local_epsilon: float) -> PureCampaign:
    client = protocol.client
    return PureCampaign(local_epsilon, len(client.window), client.participation)


# The enumerator itself


@given(case=small_protocols())
def test_the_enumerator_yields_probability_distributions(case: tuple[Protocol, float]) -> None:
    distributions = case[0].releases()
    for distribution in (distributions.absent, distributions.present, distributions.replaced):
        assert distribution.min() >= 0.0
        assert distribution.sum() == pytest.approx(1.0, abs=1e-12)


@given(seed=seeds, local_epsilon=local_epsilons)
def test_random_randomizers_keep_their_local_epsilon(seed: int, local_epsilon: float) -> None:
    matrix = protocols.random_randomizer(np.random.default_rng(seed), local_epsilon, rows=4)
    assert np.log(matrix.max(axis=0) / matrix.min(axis=0)).max() <= local_epsilon + 1e-12


def test_the_enumerator_agrees_with_a_case_done_by_hand() -> None:
    """One slot, one other client, participation 1 each: the client is used half of the time."""
    matrix = binary_response(1.0)
    client, other = Client(1, 1.0, (0,)), Client(2, 1.0, (0,))
    distributions = Protocol(1, 1, protocols.always(matrix), client, (other,)).releases()
    np.testing.assert_allclose(distributions.absent, matrix[2], atol=1e-15)
    np.testing.assert_allclose(distributions.present, (matrix[1] + matrix[2]) / 2, atol=1e-15)
    np.testing.assert_allclose(distributions.replaced, matrix[2], atol=1e-15)


# Never above


@settings(max_examples=150)
@given(case=small_protocols(), share=shares)
def test_no_protocol_exceeds_the_bound_of_either_adjacency(
    case: tuple[Protocol, float], share: float
) -> None:
    protocol, local_epsilon = case
    campaign = campaign_of(protocol, local_epsilon)
    epsilon, released = share * cap(local_epsilon, campaign.participation), protocol.releases()
    add_remove = PureAddRemove(campaign, delta=DELTA).upper(epsilon)
    assert released.add_remove(epsilon) <= add_remove + ROUND_OFF
    replace_one = PureReplaceOne(campaign, delta=DELTA).upper(epsilon)
    assert released.replace(epsilon) <= replace_one + ROUND_OFF


@given(
    seed=seeds,
    local_epsilon=local_epsilons,
    others=st.lists(st.integers(0, 3), max_size=3),
    share=shares,
)
def test_shuffling_adaptive_reports_has_no_larger_epsilon_than_the_replace_one_bound(
    seed: int, local_epsilon: float, others: list[int], share: float
) -> None:
    distributions = protocols.shuffled(
        protocols.adaptive(seed, local_epsilon, rows=4), tuple(others)
    )
    campaign = PureCampaign(local_epsilon, len(others) + 1, 1.0)
    epsilon = share * local_epsilon
    assert (
        distributions.replace(epsilon)
        <= PureReplaceOne(campaign, delta=DELTA).upper(epsilon) + ROUND_OFF
    )


@given(
    seed=seeds,
    local_epsilon=local_epsilons,
    slots=st.integers(1, 3),
    others=st.lists(st.integers(1, 3), max_size=2),
    share=shares,
)
def test_averaged_updates_have_no_larger_epsilon_than_shuffling_the_reports(
    seed: int, local_epsilon: float, slots: int, others: list[int], share: float
) -> None:
    everywhere = tuple(range(slots))
    protocol = Protocol(
        slots,
        None,
        protocols.adaptive(seed, local_epsilon, rows=4),
        Client(protocols.DATUM, 1.0, everywhere),
        tuple(Client(datum, 1.0, everywhere) for datum in others),
    )
    campaign = PureCampaign(local_epsilon, len(others) + 1, 1.0)
    epsilon = share * local_epsilon
    bound = PureReplaceOne(campaign, delta=DELTA).upper(epsilon)
    assert protocol.releases().replace(epsilon) <= bound + ROUND_OFF


def test_averaged_updates_show_whether_a_lone_client_was_there() -> None:
    """Why add/remove is refused for them: an empty slot is skipped, so its absence shows."""
    client = Client(protocols.DATUM, 1.0, (0, 1))
    distributions = Protocol(2, None, protocols.always(binary_response(1.0)), client).releases()
    assert distributions.add_remove(5.0) == 1.0


# Attained


@given(
    local_epsilon=local_epsilons,
    slots=st.integers(1, 4),
    participation=participations,
    share=st.floats(0.0, 0.95),
)
def test_binary_response_alone_against_dummies_attains_the_add_remove_bound(
    local_epsilon: float, slots: int, participation: float, share: float
) -> None:
    distributions = alone(binary_response(local_epsilon), slots=slots, participation=participation)
    exact = PureAddRemove(PureCampaign(local_epsilon, slots, participation), delta=DELTA)
    epsilon = share * cap(local_epsilon, participation)
    assert exact.lower(epsilon) <= distributions.add_remove(epsilon) + ROUND_OFF
    assert distributions.add_remove(epsilon) == pytest.approx(
        exact.upper(epsilon), rel=1e-6, abs=ROUND_OFF
    )


FIVE = {
    "l and l' equal": ({0}, {1}, {1}),
    "only l' moves": ({0}, {0}, {1}),
    "only l moves": ({0}, {1}, {0}),
    "3-ary response": ({0}, {1}, {2}),
    "its mirror image": ({0, 1}, {0, 2}, {1, 2}),
}
"""Favoured outcomes of the dummy, of d and of d' for the five laws of docs/theory/pure.md."""


def extreme(name: str, local_epsilon: float) -> np.ndarray:
    sets = tuple(frozenset(favoured) for favoured in FIVE[name])
    return protocols.subset_response(local_epsilon, max(max(s) for s in sets) + 1, sets)


@pytest.mark.parametrize("name", FIVE)
def test_an_extreme_randomizer_has_the_likelihood_ratios_claimed_for_it(name: str) -> None:
    b = math.exp(1.3)
    a = 1 / b
    claimed = {
        "l and l' equal": {(a, a), (b, b)},
        "only l' moves": {(1.0, a), (1.0, b)},
        "only l moves": {(b, 1.0), (a, 1.0)},
        "3-ary response": {(a, a), (b, 1.0), (1.0, b)},
        "its mirror image": {(1.0, a), (b, b), (a, 1.0)},
    }[name]
    dummy, datum, other = extreme(name, 1.3)
    seen = {(round(x, 9), round(y, 9)) for x, y in zip(datum / dummy, other / dummy, strict=True)}
    assert seen == {(round(x, 9), round(y, 9)) for x, y in claimed}


@settings(max_examples=40)
@given(
    local_epsilon=local_epsilons,
    slots=st.integers(1, 4),
    participation=participations,
    share=st.floats(0.0, 0.95),
)
def test_the_five_extreme_randomizers_attain_the_replace_one_lower_bound(
    local_epsilon: float, slots: int, participation: float, share: float
) -> None:
    epsilon = share * cap(local_epsilon, participation)
    bound = PureReplaceOne(PureCampaign(local_epsilon, slots, participation), delta=DELTA)
    attained = [
        alone(extreme(name, local_epsilon), slots=slots, participation=participation)
        for name in FIVE
    ]
    # in the order (d, d'); the other order is the mirror image of another law
    best = max(protocols.hockey_stick(law.present, law.replaced, epsilon) for law in attained)
    assert best == pytest.approx(bound.lower(epsilon), rel=1e-6, abs=ROUND_OFF)
    assert (
        max(distribution.replace(epsilon) for distribution in attained)
        <= bound.upper(epsilon) + ROUND_OFF
    )


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_no_randomizer_found_by_search_beats_the_extreme_ones_by_much(slots: int) -> None:
    """A blind search for something worse than the lower bound stays below the upper one."""
    local_epsilon, epsilon = 1.0, 0.3
    bound = PureReplaceOne(PureCampaign(local_epsilon, slots, 1.0), delta=DELTA)
    client = Client(protocols.DATUM, 1.0, tuple(range(slots)))
    worst = max(
        Protocol(slots, 1, protocols.adaptive(seed, local_epsilon, rows=3), client)
        .releases()
        .replace(epsilon)
        for seed in range(150)
    )
    assert worst <= bound.upper(epsilon) + ROUND_OFF


# Capacity


@st.composite
def shared_protocols(draw: st.DrawFn) -> tuple[Protocol, PureCapacityCampaign]:
    """A protocol whose slots sum up to four reports, with hostile others, and its accountant."""
    capacity, slots = draw(st.integers(2, 4)), draw(st.integers(1, 2))
    local_epsilon, participation = draw(local_epsilons), draw(participations)
    everywhere = tuple(range(slots))
    client = Client(protocols.DATUM, participation, everywhere)
    other = st.builds(Client, st.integers(0, 3), participations, windows(slots))
    others = draw(st.lists(other, max_size=5 - slots))
    randomizer = protocols.adaptive(draw(seeds), local_epsilon, rows=4)
    protocol = Protocol(slots, capacity, randomizer, client, tuple(others))
    return protocol, PureCapacityCampaign(local_epsilon, slots, participation, capacity)


@settings(max_examples=40)
@given(case=shared_protocols(), share=shares)
def test_no_protocol_with_shared_slots_exceeds_the_bounds_with_capacity(
    case: tuple[Protocol, PureCapacityCampaign], share: float
) -> None:
    protocol, campaign = case
    epsilon = share * cap(campaign.local_epsilon, campaign.participation)
    releases = protocol.releases()
    for adjacency, delta in (
        (Adjacency.ADD_REMOVE, releases.add_remove),
        (Adjacency.REPLACE_ONE, releases.replace),
    ):
        bound = campaign.divergence(adjacency, delta=DELTA, cells=200)
        assert delta(epsilon) <= bound.upper(epsilon) + ROUND_OFF


def counterexample(epsilon: float) -> float:
    """3-ary response, 20 slots of capacity 2, another client with a third datum in each."""
    matrix = extreme("3-ary response", 4.0)
    without = protocols.multiset_law([matrix[DUMMY], matrix[OTHER_DATUM]])
    using = protocols.multiset_law([matrix[protocols.DATUM], matrix[OTHER_DATUM]])
    probabilities: dict[float, float] = {}
    for outcome, probability in without.items():
        ratio = round(using[outcome] / probability, 12)
        probabilities[ratio] = probabilities.get(ratio, 0.0) + probability
    return max(
        protocols.delta_of_independent_slots(
            np.array(list(probabilities)),
            np.array(list(probabilities.values())),
            slots=20,
            epsilon=epsilon,
        )
    )


def test_a_slot_of_capacity_two_is_not_two_slots() -> None:
    """Why mK places may not be counted instead of m slots."""
    true = counterexample(2.0)
    places = PureAddRemove(PureCampaign(4.0, 40, 1.0), delta=DELTA).upper(2.0)
    slots = PureAddRemove(PureCampaign(4.0, 20, 1.0), delta=DELTA).upper(2.0)
    assert true == pytest.approx(0.432, abs=5e-4)
    assert places == pytest.approx(0.418, abs=5e-4)
    assert places < true <= slots


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 2.0, 3.0])
def test_the_counterexample_stays_below_the_bound_for_slots(epsilon: float) -> None:
    bound = PureAddRemove(PureCampaign(4.0, 20, 1.0), delta=DELTA).upper(epsilon)
    assert counterexample(epsilon) <= bound


# Windows


@settings(max_examples=40)
@given(
    seed=seeds,
    local_epsilon=local_epsilons,
    participation=participations,
    width=st.integers(2, 4),
    outside=st.integers(1, 3),
    share=shares,
)
def test_a_window_partly_outside_the_active_range_has_no_larger_epsilon_than_the_full_one(
    seed: int, local_epsilon: float, participation: float, width: int, outside: int, share: float
) -> None:
    assume(outside < width)
    active = width - outside
    client = Client(protocols.DATUM, participation, tuple(range(width)))
    randomizer = protocols.adaptive(seed, local_epsilon, rows=4)
    distributions = Protocol(active, 1, randomizer, client, (Client(3, 0.5, (0,)),)).releases()
    full = PureCampaign(local_epsilon, width, participation)
    seen = PureCampaign(local_epsilon, active, participation * active / width)
    epsilon = share * cap(local_epsilon, participation)
    for make, delta in (
        (PureAddRemove, distributions.add_remove),
        (PureReplaceOne, distributions.replace),
    ):
        whole, part = make(full, delta=DELTA), make(seen, delta=DELTA)
        assert delta(epsilon) <= part.upper(epsilon) + ROUND_OFF
        assert part.upper(epsilon) <= whole.upper(epsilon) * (1 + 1e-7) + ROUND_OFF


@given(
    seed=seeds,
    local_epsilon=local_epsilons,
    participation=participations,
    slots=st.integers(2, 4),
    done=st.integers(1, 3),
    epsilon=st.floats(0.0, 2.0),
)
def test_what_is_spent_after_some_slots_is_that_of_a_shorter_campaign(
    seed: int, local_epsilon: float, participation: float, slots: int, done: int, epsilon: float
) -> None:
    assume(done < slots)
    randomizer = protocols.adaptive(seed, local_epsilon, rows=4)

    def distribution(last: int, share: float, window: int) -> protocols.Releases:
        everywhere = tuple(range(window))
        client = Client(protocols.DATUM, participation * share, everywhere)
        return Protocol(
            last, 1, randomizer, client, (Client(3, 0.7 * share, everywhere),)
        ).releases()

    so_far, shorter = distribution(done, 1.0, slots), distribution(done, done / slots, done)
    np.testing.assert_allclose(so_far.present, shorter.present, rtol=1e-12)
    np.testing.assert_allclose(so_far.replaced, shorter.replaced, rtol=1e-12)
    spent = PureCampaign(local_epsilon, done, participation * done / slots)
    assert (
        so_far.add_remove(epsilon) <= PureAddRemove(spent, delta=DELTA).upper(epsilon) + ROUND_OFF
    )
    assert so_far.replace(epsilon) <= PureReplaceOne(spent, delta=DELTA).upper(epsilon) + ROUND_OFF


# What a certificate must assume


def test_colluders_who_show_that_they_were_passed_over_undo_the_guarantee() -> None:
    """With a colluder in every slot, delta is at least p0/2 whatever epsilon is.

    The colluders' own reports give them away, so the releases tell who was used.
    """
    honest = binary_response(0.5)
    matrix = np.zeros((4, 3))
    matrix[:3, :2], matrix[3, 2] = honest, 1.0
    slots, participation = 3, 0.6
    colluders = tuple(Client(3, 1.0, (slot,)) for slot in range(slots))
    client = Client(protocols.DATUM, participation, tuple(range(slots)))
    distributions = Protocol(slots, 1, protocols.always(matrix), client, colluders).releases()
    assert distributions.remove(3.0) == pytest.approx(participation / 2)
    assert PureAddRemove(PureCampaign(0.5, slots, participation), delta=DELTA).upper(3.0) == 0.0
