"""Pure randomizers: the two bounds against naive sums in 50 digits, and what they must obey."""

from __future__ import annotations

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import gammaln

from checkins.accounting.exact import pure
from checkins.accounting.exact.pure import (
    PureAddRemove,
    PureCampaign,
    PureReplaceOne,
    ThreePoint,
    ThreePointSum,
    attained_three_points,
    dominating_three_point,
)

pytestmark = pytest.mark.slow

local_epsilons = st.floats(0.01, 8.0)
slot_counts = st.one_of(st.integers(1, 30), st.sampled_from([100, 1000, 10**5]))
participations = st.one_of(st.just(1.0), st.floats(1e-3, 1.0))
deltas = st.floats(-15.0, -1.0).map(lambda power: 10.0**power)
campaigns = st.builds(PureCampaign, local_epsilons, slot_counts, participations)
makers = st.sampled_from([PureAddRemove, PureReplaceOne])


def cap(campaign: PureCampaign) -> float:
    return math.log1p(campaign.participation * math.expm1(campaign.local_epsilon))


# Oracles: the formulas of docs/theory/pure.md term by term, in 50 digits


def naive_add_remove(campaign: PureCampaign, epsilon: float) -> mp.mpf:
    """The sum over counts, outwards from the count where f crosses e^eps (or e^-eps)."""
    with mp.workdps(50 + int(campaign.local_epsilon)):
        b, m = mp.exp(mp.mpf(campaign.local_epsilon)), campaign.slots
        p0, e, r = mp.mpf(campaign.participation), mp.exp(mp.mpf(epsilon)), 1 / (1 + b)

        def ratio(k: int) -> mp.mpf:
            return 1 - p0 + p0 * (k * b + (m - k) / b) / m

        def mass(k: int) -> mp.mpf:
            return mp.binomial(m, k) * r**k * (1 - r) ** (m - k)

        def total(k: int, step: int, term) -> mp.mpf:  # type: ignore[no-untyped-def]
            value, q = mp.mpf(0), mass(k) if 0 <= k <= m else mp.mpf(0)
            while 0 <= k <= m:
                more = q * term(k)
                value += more
                if 0 < more < value * mp.mpf(10) ** -25:
                    break
                q *= (
                    (m - k) * r / ((k + 1) * (1 - r))
                    if step > 0
                    else k * (1 - r) / ((m - k + 1) * r)
                )
                k += step
            return value

        def count_at(value: mp.mpf) -> mp.mpf:
            return ((value - 1 + p0) * m / p0 - m / b) / (b - 1 / b)

        remove = total(max(0, int(mp.ceil(count_at(e)))), 1, lambda k: ratio(k) - e)
        add = total(min(m, int(mp.floor(count_at(1 / e)))), -1, lambda k: 1 - e * ratio(k))
        return max(remove, add, mp.mpf(0))


def naive_three_point(campaign: PureCampaign, point: ThreePoint, epsilon: float) -> mp.mpf:
    """E(f - e^eps f')+ over every (A, B) of the multinomial distribution."""
    with mp.workdps(50):
        m, p0, e = campaign.slots, mp.mpf(campaign.participation), mp.exp(mp.mpf(epsilon))
        q = mp.mpf(point.probability)
        up, middle, down = (
            mp.mpf(one) - e * mp.mpf(other) for one, other in (point.up, point.middle, point.down)
        )
        value = mp.mpf(0)
        for ups, downs in itertools.product(range(m + 1), repeat=2):
            rest = m - ups - downs
            if rest < 0:
                continue
            total = (1 - p0) * (1 - e) + p0 / m * (ups * up + rest * middle + downs * down)
            if total > 0:
                ways = mp.binomial(m, ups) * mp.binomial(m - ups, downs)
                value += ways * q ** (ups + downs) * (1 - 2 * q) ** rest * total
        return value


# Values computed by hand


@pytest.mark.parametrize(
    ("local_epsilon", "slots", "participation", "add_remove", "upper", "lower"),
    [
        (1.0, 1_000, 1.0, "0.1266", "0.1487", "0.1306"),
        (1.0, 10_000, 0.1, "0.0029", "0.0035", "0.0031"),
        (2.0, 1_000, 1.0, "0.3233", "0.3971", "0.3720"),
        (4.0, 1_000, 1.0, "1.691", "1.853", "1.797"),
        (4.0, 100_000, 1.0, "0.0847", "0.1182", "0.1170"),  # not 0.1171: see below
    ],
)
def test_the_table_is_reproduced_digit_for_digit(
    local_epsilon: float, slots: int, participation: float, add_remove: str, upper: str, lower: str
) -> None:
    campaign = PureCampaign(local_epsilon, slots, participation)
    exact = PureAddRemove(campaign, delta=1e-6).epsilon(1e-6)
    replaced = PureReplaceOne(campaign, delta=1e-6).epsilon(1e-6)
    digits = len(add_remove.split(".")[1])
    assert f"{exact.upper:.{digits}f}" == f"{exact.lower:.{digits}f}" == add_remove
    assert f"{replaced.upper:.{digits}f}" == upper
    assert f"{replaced.lower:.{digits}f}" == lower


def test_the_last_lower_bound_of_the_table_is_that_of_three_ary_response() -> None:
    """The plain double sum over both counts gives 0.11702, so the table's 0.1171 is a misprint."""
    slots, b = 100_000, math.exp(4.0)
    q = 1.0 / (b + 2.0)
    most = int(slots * q + 12 * math.sqrt(slots * q))
    ups = np.arange(most)[:, None].astype(float)
    downs = np.arange(most)[None, :].astype(float)
    rest = slots - ups - downs
    log_masses = gammaln(slots + 1.0) - gammaln(ups + 1) - gammaln(downs + 1) - gammaln(rest + 1)
    masses = np.exp(log_masses + (ups + downs) * math.log(q) + rest * math.log1p(-2 * q))

    def delta(epsilon: float) -> float:
        e = math.exp(epsilon)
        sums = ups * (b - e) + downs * (1 - b * e) + rest * (1 - e) / b
        return float((masses * np.maximum(sums, 0.0)).sum()) / slots

    assert delta(0.11702) > 1e-6 > delta(0.11703)
    lower = PureReplaceOne(PureCampaign(4.0, slots, 1.0), delta=1e-6).epsilon(1e-6).lower
    assert 0.1169 < lower <= 0.11703


# Against the naive sums


@settings(max_examples=40)
@given(
    local_epsilon=local_epsilons,
    slots=st.integers(1, 40),
    participation=participations,
    share=st.floats(0.0, 0.99),
)
def test_add_remove_brackets_the_naive_sum(
    local_epsilon: float, slots: int, participation: float, share: float
) -> None:
    campaign = PureCampaign(local_epsilon, slots, participation)
    epsilon = share * cap(campaign)
    truth = naive_add_remove(campaign, epsilon)
    assume(truth > 1e-15)
    bound = PureAddRemove(campaign, delta=1e-15)
    assert bound.lower(epsilon) <= truth <= bound.upper(epsilon)
    assert bound.upper(epsilon) == pytest.approx(float(truth), rel=1e-6)


@pytest.mark.parametrize(
    ("local_epsilon", "participation"),
    [(1.0, 1.0), (4.0, 0.3), (0.01, 1.0), (8.0, 1.0), (1.0, 1e-3), (3.0, 1e-6)],
)
def test_a_million_slots_and_a_delta_of_1e_15_lose_no_digits(
    local_epsilon: float, participation: float
) -> None:
    campaign = PureCampaign(local_epsilon, 10**6, participation)
    found = PureAddRemove(campaign, delta=1e-15).epsilon(1e-15)
    assert found.lower <= found.upper <= found.lower * (1 + 1e-6)
    at_upper, at_lower = (naive_add_remove(campaign, x) for x in (found.upper, found.lower))
    assert at_upper <= 1e-15 <= at_lower
    assert float(at_upper) == pytest.approx(1e-15, rel=1e-6)


@settings(max_examples=15)
@given(
    local_epsilon=st.floats(0.01, 6.0),
    slots=st.integers(1, 14),
    participation=participations,
    share=st.floats(0.0, 0.95),
    distribution=st.sampled_from([0, 1, 2]),
)
def test_three_point_sums_bracket_the_naive_multinomial(
    local_epsilon: float, slots: int, participation: float, share: float, distribution: int
) -> None:
    campaign = PureCampaign(local_epsilon, slots, participation)
    point = (dominating_three_point(local_epsilon), *attained_three_points(local_epsilon))[
        distribution
    ]
    epsilon = share * cap(campaign)
    truth = naive_three_point(campaign, point, epsilon)
    assume(truth > 1e-15)
    bound = ThreePointSum(campaign, point, delta=1e-15)
    assert bound.lower(epsilon) <= truth <= bound.upper(epsilon)
    assert bound.upper(epsilon) == pytest.approx(float(truth), rel=1e-6)


@settings(max_examples=25)
@given(
    local_epsilon=st.floats(0.05, 6.0),
    slots=st.integers(20, 3000),
    participation=participations,
    share=st.floats(0.0, 0.5),
    blocks=st.integers(1, 40),
    distribution=st.sampled_from([0, 1, 2]),
)
def test_blocks_of_counts_bracket_the_sum_over_single_counts(
    local_epsilon: float,
    slots: int,
    participation: float,
    share: float,
    blocks: int,
    distribution: int,
) -> None:
    campaign = PureCampaign(local_epsilon, slots, participation)
    point = (dominating_three_point(local_epsilon), *attained_three_points(local_epsilon))[
        distribution
    ]
    epsilon = share * cap(campaign)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pure, "_MAX_BLOCKS", 10**7)
        single = ThreePointSum(campaign, point, delta=1e-15)
        patch.setattr(pure, "_MAX_BLOCKS", blocks)
        blocked = ThreePointSum(campaign, point, delta=1e-15)
    assert len(blocked._masses) <= blocks
    assert len(single._masses) == single._most[-1] - single._fewest[0] + 1
    slack = 1 + 1e-12
    assert single.upper(epsilon) <= blocked.upper(epsilon) * slack + 1e-30
    assert blocked.lower(epsilon) <= single.lower(epsilon) * slack + 1e-30


def test_more_blocks_close_the_bracket() -> None:
    campaign, gaps = PureCampaign(1.0, 10**6, 1.0), []
    for blocks in (10, 100, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pure, "_MAX_BLOCKS", blocks)
            distribution = ThreePointSum(campaign, dominating_three_point(1.0), delta=1e-6)
        gaps.append(math.log(distribution.upper(4e-3) / distribution.lower(4e-3)))
    assert gaps[0] > 5 * gaps[1] > 25 * gaps[2] > 0.0


def test_blocks_cost_little_where_they_are_needed() -> None:
    """600 blocks for a billion slots: epsilon of the dominating distribution to a thousandth."""
    campaign = PureCampaign(2.0, 10**9, 1.0)
    distribution = ThreePointSum(campaign, dominating_three_point(2.0), delta=1e-6)
    epsilon = PureReplaceOne(campaign, delta=1e-6).epsilon(1e-6).upper
    assert distribution.lower(0.999 * epsilon) > 1e-6 >= distribution.upper(epsilon)


@given(local_epsilon=st.floats(0.01, 8.0))
def test_three_point_distributions_are_densities_with_mean_one(local_epsilon: float) -> None:
    for point in (dominating_three_point(local_epsilon), *attained_three_points(local_epsilon)):
        for side in (0, 1):
            mean = point.probability * (point.up[side] + point.down[side])
            mean += (1 - 2 * point.probability) * point.middle[side]
            assert mean == pytest.approx(1.0, abs=1e-12)


@given(local_epsilon=st.floats(0.01, 8.0))
def test_attained_distributions_keep_within_local_epsilon(local_epsilon: float) -> None:
    b = math.exp(local_epsilon) * (1 + 1e-12)
    for point in attained_three_points(local_epsilon):
        for one, other in (point.up, point.middle, point.down):
            assert 1 / b <= one <= b
            assert 1 / b <= other <= b
            assert 1 / b <= one / other <= b


# Inverse


@given(campaign=campaigns, delta=deltas, make=makers)
def test_epsilon_is_the_inverse_of_delta(campaign: PureCampaign, delta: float, make) -> None:  # type: ignore[no-untyped-def]
    bound = make(campaign, delta=delta)
    found = bound.epsilon(delta)
    assert 0.0 <= found.lower <= found.upper
    # Near the largest possible epsilon delta drops from delta to 0 within a few floats.
    grain = 1e-9 * found.upper
    assert bound.upper(found.upper + grain) <= delta * (1 + 3e-8)
    if found.lower > 0.0:
        assert bound.lower(found.lower - 1e-9 * found.lower) >= delta * (1 - 3e-8)


@given(campaign=campaigns, delta=deltas)
def test_the_add_remove_interval_is_a_point_for_practical_purposes(
    campaign: PureCampaign, delta: float
) -> None:
    found = PureAddRemove(campaign, delta=delta).epsilon(delta)
    assert found.upper <= found.lower * (1 + 1e-6) + 1e-7


@given(campaign=campaigns, delta=deltas)
def test_no_epsilon_is_needed_where_delta_exceeds_the_total_variation(
    campaign: PureCampaign, delta: float
) -> None:
    for make in (PureAddRemove, PureReplaceOne):
        bound = make(campaign, delta=delta)
        if bound.upper(0.0) <= delta * (1 - 1e-7):
            assert bound.epsilon(delta).upper == 0.0


# Order


@given(campaign=campaigns, share=st.floats(0.0, 1.2), make=makers, delta=deltas)
def test_lower_never_exceeds_upper(campaign, share, make, delta) -> None:  # type: ignore[no-untyped-def]
    bound = make(campaign, delta=delta)
    epsilon = share * cap(campaign)
    assert 0.0 <= bound.lower(epsilon) <= bound.upper(epsilon) <= 1.0


@given(campaign=campaigns, delta=deltas, make=makers)
def test_never_above_what_holds_locally(campaign: PureCampaign, delta: float, make) -> None:  # type: ignore[no-untyped-def]
    assert make(campaign, delta=delta).epsilon(delta).upper <= cap(campaign) * (1 + 1e-12)


@given(campaign=campaigns, share=st.floats(0.0, 1.0))
def test_replacing_is_never_cheaper_than_adding_or_removing(
    campaign: PureCampaign, share: float
) -> None:
    """A client whose new datum reports like the dummy is as good as removed."""
    epsilon = share * cap(campaign)
    removed, replaced = (make(campaign, delta=1e-12) for make in (PureAddRemove, PureReplaceOne))
    truth = removed.lower(epsilon)
    assume(truth > 1e-12)
    assert truth <= replaced.upper(epsilon)
    assert truth <= replaced.lower(epsilon) * (1 + 1e-12)


@given(campaign=campaigns, first=st.floats(0.0, 1.0), second=st.floats(0.0, 1.0))
def test_replacing_has_no_larger_epsilon_than_removing_and_adding(
    campaign: PureCampaign, first: float, second: float
) -> None:
    """delta(e1 + e2) <= delta_remove(e1) + e^e1 delta_add(e2): holds for what is attained."""
    one, two = first * cap(campaign) / 2, second * cap(campaign) / 2
    away = PureAddRemove(campaign, delta=1e-15)
    split = away._remove_delta(one) + math.exp(one) * away._add_delta(two)
    assert PureReplaceOne(campaign, delta=1e-15).lower(one + two) <= split * (1 + 1e-6) + 1e-15


@given(campaign=campaigns, share=st.floats(0.0, 1.0), more=st.floats(1.0, 3.0), make=makers)
def test_delta_falls_as_epsilon_grows(campaign, share, more, make) -> None:  # type: ignore[no-untyped-def]
    bound = make(campaign, delta=1e-12)
    epsilon = share * cap(campaign)
    for side in (bound.upper, bound.lower):
        assert side(epsilon * more) <= side(epsilon) * (1 + 1e-9) + 1e-15


@given(campaign=campaigns, delta=deltas, more=st.floats(1.0, 100.0), make=makers)
def test_a_larger_delta_never_needs_a_larger_epsilon(campaign, delta, more, make) -> None:  # type: ignore[no-untyped-def]
    larger = min(0.5, delta * more)
    upper = make(campaign, delta=delta).epsilon(delta).upper
    assert make(campaign, delta=larger).epsilon(larger).upper <= upper * (1 + 1e-6) + 1e-12


@given(campaign=campaigns, delta=deltas, more=st.floats(1.0, 3.0), make=makers)
def test_a_weaker_randomizer_never_lowers_epsilon(campaign, delta, more, make) -> None:  # type: ignore[no-untyped-def]
    weaker = PureCampaign(campaign.local_epsilon * more, campaign.slots, campaign.participation)
    cost = make(campaign, delta=delta).epsilon(delta).upper
    assert cost <= make(weaker, delta=delta).epsilon(delta).upper * (1 + 1e-4) + 1e-9


@given(campaign=campaigns, delta=deltas, less=st.floats(0.001, 1.0), make=makers)
def test_less_participation_never_raises_epsilon(campaign, delta, less, make) -> None:  # type: ignore[no-untyped-def]
    rarer = PureCampaign(campaign.local_epsilon, campaign.slots, campaign.participation * less)
    cost = make(campaign, delta=delta).epsilon(delta).upper
    assert make(rarer, delta=delta).epsilon(delta).upper <= cost * (1 + 1e-4) + 1e-9


@given(campaign=campaigns, delta=deltas, more=st.integers(1, 200), make=makers)
def test_more_slots_never_raise_epsilon(campaign, delta, more, make) -> None:  # type: ignore[no-untyped-def]
    """The average of m + 1 exchangeable ratios is below that of m in convex order."""
    longer = PureCampaign(campaign.local_epsilon, campaign.slots + more, campaign.participation)
    cost = make(campaign, delta=delta).epsilon(delta).upper
    assert make(longer, delta=delta).epsilon(delta).upper <= cost * (1 + 1e-4) + 1e-9


@given(campaign=campaigns, delta=deltas, make=makers, done=st.floats(0.01, 1.0))
def test_spending_so_far_never_exceeds_the_whole(campaign, delta, make, done) -> None:  # type: ignore[no-untyped-def]
    k = max(1, int(done * campaign.slots))
    so_far = PureCampaign(campaign.local_epsilon, k, campaign.participation * k / campaign.slots)
    cost = make(campaign, delta=delta).epsilon(delta).upper
    assert make(so_far, delta=delta).epsilon(delta).upper <= cost * (1 + 1e-4) + 1e-9


# The ends


@given(local_epsilon=local_epsilons, participation=participations, share=st.floats(0.0, 0.99))
def test_one_slot_is_randomized_response_behind_a_coin(
    local_epsilon: float, participation: float, share: float
) -> None:
    campaign = PureCampaign(local_epsilon, 1, participation)
    b, epsilon = math.exp(local_epsilon), share * cap(campaign)
    e, p0 = math.exp(epsilon), participation
    remove = max(0.0, (1 - p0 + p0 * b - e) / (1 + b))
    add = max(0.0, (1 - e * (1 - p0 + p0 / b)) * b / (1 + b))
    expected = max(remove, add)
    assert PureAddRemove(campaign, delta=1e-15).upper(epsilon) == pytest.approx(expected, rel=1e-6)


@given(local_epsilon=local_epsilons, share=st.floats(0.0, 0.99))
def test_one_slot_and_full_participation_replace_one_is_the_local_divergence(
    local_epsilon: float, share: float
) -> None:
    b, e = math.exp(local_epsilon), math.exp(share * local_epsilon)
    bound = PureReplaceOne(PureCampaign(local_epsilon, 1, 1.0), delta=1e-15)
    assert bound.upper(share * local_epsilon) == pytest.approx((b - e) / (1 + b), rel=1e-6)


@pytest.mark.parametrize("make", [PureAddRemove, PureReplaceOne])
@pytest.mark.parametrize("slots", [1, 7, 1000])
def test_a_participation_of_1e_12_costs_in_proportion(make, slots: int) -> None:  # type: ignore[no-untyped-def]
    """delta falls linearly with participation, epsilon being scaled alike."""
    rare, rarer = (make(PureCampaign(1.0, slots, p), delta=1e-15) for p in (1e-11, 1e-12))
    for share in (0.1, 0.5):
        epsilon = share * 1e-12
        assert rarer.upper(epsilon) == pytest.approx(rare.upper(10 * epsilon) / 10, rel=1e-3)
    assert make(PureCampaign(1.0, slots, 1e-12), delta=1e-9).epsilon(1e-9).upper == 0.0


@pytest.mark.parametrize("local_epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("slots", [1, 3, 10, 100])
@pytest.mark.parametrize("participation", [1e-4, 1e-8, 1e-12])
@pytest.mark.parametrize("share", [0.05, 0.3])
def test_a_tiny_participation_is_still_bracketed(
    local_epsilon: float, slots: int, participation: float, share: float
) -> None:
    """f is 1 up to a millionth of a millionth: nothing may be lost to the 1."""
    campaign = PureCampaign(local_epsilon, slots, participation)
    delta = share * participation * math.tanh(local_epsilon / 2) / math.sqrt(slots)
    found = PureAddRemove(campaign, delta=delta).epsilon(delta)
    assert naive_add_remove(campaign, found.upper) <= delta
    assert found.lower == 0.0 or naive_add_remove(campaign, found.lower) >= delta


@pytest.mark.parametrize("make", [PureAddRemove, PureReplaceOne])
@pytest.mark.parametrize("local_epsilon", [1e-12, 1e-9, 1e-6, 1e-3])
def test_a_tiny_local_epsilon_costs_at_most_itself(make, local_epsilon: float) -> None:  # type: ignore[no-untyped-def]
    for slots in (1, 10, 10**6):
        found = make(PureCampaign(local_epsilon, slots, 1.0), delta=1e-15).epsilon(1e-15)
        assert 0.0 <= found.lower <= found.upper <= local_epsilon * (1 + 1e-6)


@pytest.mark.parametrize("local_epsilon", [1e-9, 1e-7, 1e-5, 1e-3])
def test_a_tiny_local_epsilon_is_still_bracketed(local_epsilon: float) -> None:
    campaign = PureCampaign(local_epsilon, 20, 1.0)
    for share in (0.0, 0.1, 0.4):
        truth = naive_add_remove(campaign, share * local_epsilon)
        bound = PureAddRemove(campaign, delta=float(truth))
        assert bound.lower(share * local_epsilon) <= truth <= bound.upper(share * local_epsilon)


@pytest.mark.parametrize("local_epsilon", [10.0, 15.0, 20.0, 30.0, 40.0, 100.0, 299.0])
@pytest.mark.parametrize("slots", [1, 10, 1000])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_a_huge_local_epsilon_is_still_bracketed(
    local_epsilon: float, slots: int, participation: float
) -> None:
    campaign = PureCampaign(local_epsilon, slots, participation)
    found = PureAddRemove(campaign, delta=1e-6).epsilon(1e-6)
    grain = 1 + 1e-6  # one float of epsilon, where epsilon is large and delta steep
    assert naive_add_remove(campaign, found.upper) <= 1e-6 * grain
    assert naive_add_remove(campaign, found.lower) >= 1e-6 / grain
    assert found.upper <= cap(campaign) * (1 + 1e-9)


@pytest.mark.parametrize("local_epsilon", [20.0, 40.0, 100.0, 290.0])
@pytest.mark.parametrize("participation", [1.0, 0.3])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_huge_local_epsilon_keeps_lower_below_upper(
    local_epsilon: float, participation: float, share: float
) -> None:
    campaign = PureCampaign(local_epsilon, 12, participation)
    for make in (PureAddRemove, PureReplaceOne):
        bound = make(campaign, delta=1e-6)
        epsilon = share * cap(campaign)
        assert 0.0 <= bound.lower(epsilon) <= bound.upper(epsilon) <= 1.0


def test_the_largest_epsilon_is_reached_where_every_slot_is_nearly_sure_to_speak_against() -> None:
    """12-DP, a million slots: with probability e^-6 no slot favours the client, f = e^-12."""
    found = PureAddRemove(PureCampaign(12.0, 10**6, 1.0), delta=1e-15).epsilon(1e-15)
    assert found.upper == pytest.approx(12.0, rel=1e-9)
    assert found.lower <= 12.0


@pytest.mark.parametrize("make", [PureAddRemove, PureReplaceOne])
def test_a_billion_slots_are_no_trouble(make) -> None:  # type: ignore[no-untyped-def]
    found = make(PureCampaign(1.0, 10**9, 1.0), delta=1e-6).epsilon(1e-6)
    assert 4e-5 < found.lower <= found.upper < 1e-4


@pytest.mark.parametrize("local_epsilon", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("slots", [3, 10, 30])
def test_a_large_delta_that_only_replacing_exceeds_still_has_an_epsilon(
    local_epsilon: float, slots: int
) -> None:
    """delta just above the total variation of add/remove: free there, not for replacing."""
    campaign = PureCampaign(local_epsilon, slots, 1.0)
    delta = 1.0001 * PureAddRemove(campaign, delta=1e-6).upper(0.0)
    assert PureAddRemove(campaign, delta=delta).epsilon(delta).upper == 0.0
    assert PureReplaceOne(campaign, delta=delta).epsilon(delta).upper <= local_epsilon * (1 + 1e-6)


def test_ratios_and_masses_describe_the_likelihood_ratio() -> None:
    bound = PureAddRemove(PureCampaign(2.0, 50, 0.4), delta=1e-9)
    assert bound.masses.sum() == pytest.approx(1.0)
    assert bound.masses @ bound.ratios == pytest.approx(1.0)
    assert bound.ratios.min() >= 1 - 0.4 + 0.4 * math.exp(-2.0) - 1e-12
    assert np.all(np.diff(bound.ratios) > 0)
