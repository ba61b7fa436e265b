"""Filters: no chooser of campaigns, whatever it has seen, gets more than was promised."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from checkins.accounting import (
    METHODS,
    Adjacency,
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Population,
    Protocol,
    composition,
)
from checkins.accounting.exact import campaign_divergence
from checkins.accounting.exact.dominating_pair import DominatingPair
from checkins.accounting.exact.grid_distribution import Rounding, Side
from checkins.accounting.filters import (
    FIXED_BEFOREHAND,
    RENYI_ORDERS,
    SLACK_SHARE,
    Block,
    DeltaCurve,
    Filter,
    block_charge,
    block_slack,
    certify_adaptive,
    choose_filter,
    filtered_epsilon,
    log_moment,
    smallest_shift,
)
from checkins.accounting.solve import crossing
from checkins.errors import InvalidValue, NotCovered
from tests.accounting.designs import ADD_REMOVE, REPLACE_ONE, at_server, local

DELTA = 1e-6
GAUSSIAN = Filter()


def curve_of(design: Design, slack: float, adjacency: Adjacency = ADD_REMOVE) -> DeltaCurve:
    found = composition.Composition((design,), adjacency, 1).curve(slack)
    return DeltaCurve.of(found, slack=slack)


def profile(shift: float, epsilon: float) -> float:
    """delta of two Gaussians, by their distribution functions."""
    return float(
        norm.cdf(shift / 2 - epsilon / shift)
        - math.exp(epsilon) * norm.cdf(-shift / 2 - epsilon / shift)
    )


# ---- the numbers of the derivation ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("slots", "noise", "campaigns", "filtered", "fixed"),
    [
        (100, 1.0, 10, 3.622, 1.966),
        (1000, 1.0, 10, 0.6563, 0.5404),
        (1000, 2.0, 30, 0.3797, 0.3647),
    ],
)
def test_the_gaussian_filter_with_half_of_delta_as_slack(
    slots: int, noise: float, campaigns: int, filtered: float, fixed: float
) -> None:
    design, slack = at_server(noise, slots), DELTA / 2 / campaigns
    charge = campaigns * GAUSSIAN.charge(curve_of(design, slack))
    found = GAUSSIAN.epsilon(charge, delta=DELTA / 2)
    assert found == pytest.approx(filtered, rel=2e-3)
    assert composition.Composition((design,), ADD_REMOVE, campaigns).upper_epsilon(
        DELTA
    ) == pytest.approx(fixed, rel=1e-3)


@pytest.mark.parametrize(
    ("slots", "noise", "campaigns", "orders", "filtered"),
    [(100, 1.0, 10, (7, 8, 9), 2.305), (1000, 2.0, 30, (48, 49, 50), 0.3951)],
)
def test_the_renyi_filter_with_hardly_any_slack(
    slots: int, noise: float, campaigns: int, orders: Sequence[int], filtered: float
) -> None:
    slack = 1e-13
    curve = curve_of(at_server(noise, slots), slack)
    found = min(
        Filter(a).epsilon(campaigns * Filter(a).charge(curve), delta=DELTA - campaigns * slack)
        for a in orders
    )
    assert found == pytest.approx(filtered, rel=4e-3)


# ---- one charge ----------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.5, 2.0, 30.0])
def test_the_shift_of_one_gaussian_is_its_own(noise: float) -> None:
    found = smallest_shift(curve_of(at_server(noise), 1e-12))
    assert found == pytest.approx(1 / noise, rel=2e-3)


@pytest.mark.parametrize("order", [2, 5, 16])
def test_the_moment_of_one_gaussian_is_its_own(order: int) -> None:
    """log E f^a = a (a - 1) s^2 / 2 for a lognormal ratio with shift s."""
    found = log_moment(curve_of(at_server(4.0), 1e-14), order=order)
    assert found == pytest.approx(order * (order - 1) / 32, rel=1e-2)
    assert found >= order * (order - 1) / 32 * (1 - 1e-4)  # what the slack cuts off


def test_moments_of_a_high_order_tend_to_the_largest_loss_of_a_pure_report() -> None:
    curve = curve_of(local(1.0), 1e-12)
    assert log_moment(curve, order=1024) / 1023 == pytest.approx(1.0, abs=5e-3)


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("design", [at_server(0.7, 5), local(2.0, 50, 0.3), local(6.0)])
def test_the_profile_and_the_slack_are_above_what_is_true_between_nodes_too(
    design: Design, adjacency: Adjacency
) -> None:
    slack = 1e-8
    found = composition.Composition((design,), adjacency, 1).curve(slack)
    curve = DeltaCurve.of(found, slack=slack)
    shift = smallest_shift(curve)
    below = campaign_divergence.divergence(
        campaign_divergence.attaining_design(design),
        mechanism_of_lower_bound(design, adjacency),
        delta=slack,
    )
    for epsilon in np.linspace(0.0, float(curve.epsilons[-1]) * 1.3, 333):
        truth = below.lower(float(epsilon))
        assert truth <= profile(shift, float(epsilon)) * (1 + 1e-6) + slack


def mechanism_of_lower_bound(design: Design, adjacency: Adjacency) -> Adjacency:
    """Replace-one is above add/remove, which takes no time to know from below."""
    return adjacency if isinstance(design.randomizer, LocalRandomizer) else ADD_REMOVE


def test_a_slack_that_covers_the_block_charges_nothing() -> None:
    rare = Block((local(9.0, participation=1e-9),))
    assert block_charge(rare, GAUSSIAN, ADD_REMOVE, delta=DELTA, number=1) == 0.0
    assert filtered_epsilon([rare], GAUSSIAN, delta=DELTA, adjacency=ADD_REMOVE) == 0.0


def test_the_slacks_of_any_number_of_blocks_stay_within_their_share() -> None:
    slacks = [block_slack(place, delta=DELTA) for place in range(1, 10_000)]
    assert math.fsum(slacks) < SLACK_SHARE * DELTA
    assert all(slack > 0.0 for slack in slacks)


@pytest.mark.parametrize("chosen", [GAUSSIAN, Filter(2), Filter(1024)])
def test_a_bound_is_what_its_epsilon_admits(chosen: Filter) -> None:
    bound = chosen.bound(epsilon=20.0, delta=DELTA)
    assert chosen.epsilon(bound, delta=DELTA) == pytest.approx(20.0, rel=1e-5)
    assert chosen.epsilon(math.inf, delta=DELTA) == math.inf


# ---- all choosers --------------------------------------------------------------------------------

distributions = st.lists(st.floats(0.05, 1.0), min_size=3, max_size=3).map(
    lambda found: np.array(found) / sum(found)
)
mechanisms = st.lists(st.tuples(distributions, distributions), min_size=2, max_size=3)


@settings(max_examples=40, deadline=None)
@given(menu=mechanisms, epsilon=st.floats(0.0, 3.0), order=st.sampled_from([None, 2, 6, 24]))
def test_the_worst_chooser_of_small_mechanisms_stays_within_the_filter(
    menu: list[tuple[np.ndarray, np.ndarray]], epsilon: float, order: int | None
) -> None:
    """Every adaptive choice is tried: at each node of the tree the worst continuation counts."""
    chosen, slack = Filter(order), 1e-3

    def curve(p: np.ndarray, q: np.ndarray) -> DeltaCurve:
        def delta(at: float) -> float:
            one = np.maximum(p - math.exp(at) * q, 0.0).sum()
            return float(max(one, np.maximum(q - math.exp(at) * p, 0.0).sum()))

        return DeltaCurve.of(delta, slack=slack, nodes=64)

    charges = [chosen.charge(curve(p, q)) for p, q in menu]
    assume(all(map(math.isfinite, charges)))
    bound, most = 1.7 * max(charges), 3

    def worst(p: float, q: float, spent: float, steps: int) -> float:
        best = max(0.0, p - math.exp(epsilon) * q)
        if steps == most:
            return best
        for (ps, qs), charge in zip(menu, charges, strict=True):
            if spent + charge <= bound:
                after = (
                    worst(p * a, q * b, spent + charge, steps + 1)
                    for a, b in zip(ps, qs, strict=True)
                )
                best = max(best, math.fsum(after))
        return best

    truth = worst(1.0, 1.0, 0.0, 0)
    promised = min(1.0, truth - most * slack)
    if promised > 1e-9:  # at this delta, epsilon is not more than the filter says
        assert chosen.epsilon(bound, delta=promised) >= epsilon * (1 - 1e-6)


@settings(max_examples=4, deadline=None)
@given(
    noises=st.lists(st.floats(0.8, 5.0), min_size=1, max_size=2),
    slots=st.integers(1, 60),
    order=st.sampled_from([None, 4, 12, 32]),
)
def test_a_filter_never_lowers_epsilon_than_what_was_fixed_beforehand(
    noises: list[float], slots: int, order: int | None
) -> None:
    designs = [at_server(noise, slots) for noise in noises]
    blocks = [Block((design,)) for design in designs]
    filtered = filtered_epsilon(blocks, Filter(order), delta=DELTA, adjacency=ADD_REMOVE)
    fixed = composition.Composition(designs, ADD_REMOVE, 1).epsilon(DELTA)
    assert filtered >= fixed.lower


def test_identical_campaigns_of_one_block_cost_hardly_more_than_fixed_beforehand() -> None:
    block = Block((at_server(1.0, 100),), 10)
    together = filtered_epsilon([block], GAUSSIAN, delta=DELTA, adjacency=ADD_REMOVE)
    apart = [Block(block.designs)] * 10
    assert together == pytest.approx(1.966, rel=1e-2)
    assert filtered_epsilon(apart, GAUSSIAN, delta=DELTA, adjacency=ADD_REMOVE) > 1.2 * together


# ---- the chooser that the old rule did not see ---------------------------------------------------

PROMISED, AT = 1.0, 1e-3
FIRST = at_server(6.0)


def rare(participation: float) -> Design:
    """Hardly anybody takes part, and whoever does is seen."""
    return local(12.0, participation=participation)


def bulk(shift: float) -> Design:
    """Everybody takes part, with much noise."""
    return at_server(1.0 / shift)


def as_pair(design: Design, side: Side) -> DominatingPair:
    rounding = Rounding(side=side, cells=400, tolerance=1e-15)
    return campaign_divergence.pair(design, ADD_REMOVE, rounding, delta=AT)


def chosen_by_loss(menu: Sequence[Design], epsilon: float, side: Side) -> float:
    """delta of an operator who looks at the first release and takes the worst of the menu."""
    first, others = as_pair(FIRST, side), [as_pair(design, side) for design in menu]

    def after(other: DominatingPair, loss: float) -> float:
        left = other.present - math.exp(epsilon - loss) * other.absent
        return float(np.maximum(left, 0.0).sum()) + other.only_present

    worst = (max(after(other, loss) for other in others) for loss in first.losses)
    return first.only_present + math.fsum(first.present * np.array(list(worst)))


def test_choosing_by_the_first_release_exceeds_what_was_fixed_beforehand() -> None:
    """Each of the two keeps the promise if it was fixed; the choice between them costs 1.295."""
    menu = [rare(1.01e-3), bulk(0.3507)]
    for design in menu:
        fixed = composition.Composition((FIRST, design), ADD_REMOVE, 1).upper_epsilon(AT)
        assert 0.95 < fixed <= PROMISED
    truth = crossing(
        lambda epsilon: chosen_by_loss(menu, epsilon, Side.DOWN), AT, guess=1.0, precision=1e-3
    )
    assert truth.lower > 1.29


@pytest.mark.parametrize("chosen", [GAUSSIAN, Filter(12)])
def test_choosing_by_the_first_release_stays_within_the_filter(chosen: Filter) -> None:
    """The same two, as large as the filter lets them be."""

    def filtered(design: Design) -> float:
        blocks = [Block((FIRST,)), Block((design,))]
        return filtered_epsilon(blocks, chosen, delta=AT, adjacency=ADD_REMOVE)

    def largest(make: type | object, low: float, high: float) -> Design:
        for _ in range(12):
            middle = math.sqrt(low * high)
            fits = filtered(make(middle)) <= PROMISED  # type: ignore[operator]
            low, high = (middle, high) if fits else (low, middle)
        return make(low)  # type: ignore[operator, no-any-return]

    menu = [largest(rare, 1e-7, 1e-2), largest(bulk, 1e-3, 1.0)]
    assert all(0.0 < filtered(design) <= PROMISED for design in menu)
    assert chosen_by_loss(menu, PROMISED, Side.UP) <= AT
    assert filtered(rare(1.01e-3)) > PROMISED


# ---- choosing, and what is said ------------------------------------------------------------------


def test_the_filter_is_chosen_by_the_first_block_and_its_budget() -> None:
    terms = {"epsilon": 1.0, "delta": DELTA, "adjacency": ADD_REMOVE}
    assert choose_filter(Block((at_server(2.0, 1000),), 10), **terms) == GAUSSIAN  # type: ignore[arg-type]
    pure = choose_filter(Block((local(1.0, 4),)), **terms)  # type: ignore[arg-type]
    assert pure.order in RENYI_ORDERS[-4:]
    nobody = choose_filter(Block((local(1.0, participation=0.0),)), **terms)  # type: ignore[arg-type]
    assert nobody == GAUSSIAN


@pytest.mark.parametrize("text", ["gaussian", "renyi-2", "renyi-1024"])
def test_a_filter_reads_back(text: str) -> None:
    assert str(Filter.parse(text)) == text
    assert Filter.parse(text).method in METHODS


@pytest.mark.parametrize("text", ["", "renyi-1", "renyi-1025", "renyi-02", "Gaussian", 8, None])
def test_another_text_is_no_filter(text: object) -> None:
    with pytest.raises(InvalidValue, match=r"must be gaussian, or renyi-"):
        Filter.parse(text)


@pytest.mark.parametrize("order", [0, 1, 1.5, True, math.nan, 2000])
def test_an_order_is_an_integer_from_2(order: object) -> None:
    with pytest.raises(InvalidValue, match="order"):
        Filter(order)  # type: ignore[arg-type]


def test_a_certificate_says_that_a_filter_was_used_and_which() -> None:
    blocks = [Block((local(1.0, 100),), 2), Block((local(0.5, 50),))]
    found = certify_adaptive(blocks, GAUSSIAN, delta=DELTA, adjacency=REPLACE_ONE)
    assert found.method == "filter-gaussian"
    (line,) = (line for line in found.assumptions if "filter" in line)
    assert line.startswith("3 campaigns in 2 blocks")
    assert "after earlier releases" in line
    assert "(gaussian)" in line
    assert not [line for line in found.assumptions if line.endswith(FIXED_BEFOREHAND)]
    proved = [other.method for other in found.alternatives if other.proves]
    assert proved == ["filter-gaussian"]
    (fixed,) = (other for other in found.alternatives if other.method == "exact")
    assert fixed.note == f"with {FIXED_BEFOREHAND}"
    assert found.epsilon_lower <= fixed.epsilon <= found.epsilon


def test_the_variation_is_charged_to_its_own_share() -> None:
    blocks = [Block((local(1.0, 100),)), Block((local(0.5, 50),))]
    terms = {"delta": DELTA, "adjacency": ADD_REMOVE}
    without = certify_adaptive(blocks, GAUSSIAN, **terms)  # type: ignore[arg-type]
    little = certify_adaptive(blocks, GAUSSIAN, variation=1e-9, **terms)  # type: ignore[arg-type]
    assert little.epsilon == without.epsilon
    assert any("to delta" in line for line in little.assumptions)
    with pytest.raises(InvalidValue, match="variation"):
        certify_adaptive(blocks, GAUSSIAN, variation=1e-8, **terms)  # type: ignore[arg-type]


def test_the_variation_is_charged_at_the_budget_that_is_promised() -> None:
    """A path that spends little else must leave the promise as true as one that spends it all."""
    blocks = [Block((local(1.0, 100),)), Block((local(0.5, 50),))]
    terms = {"delta": DELTA, "adjacency": ADD_REMOVE, "variation": 1e-9}
    epsilon = filtered_epsilon(blocks, GAUSSIAN, **terms)  # type: ignore[arg-type]
    assert 0.0 < epsilon < 1.0
    assert filtered_epsilon(blocks, GAUSSIAN, budget=1.0, **terms) == epsilon  # type: ignore[arg-type]
    assert filtered_epsilon(blocks, GAUSSIAN, budget=5.0, **terms) == math.inf  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="variation"):
        certify_adaptive(blocks, GAUSSIAN, budget=5.0, **terms)  # type: ignore[arg-type]


def test_what_holds_against_the_server_says_that_no_filter_holds_it() -> None:
    one, other = Block((local(1.0, 100),)), Block((local(0.5, 50),))
    both = certify_adaptive([one, other], GAUSSIAN, delta=DELTA, adjacency=ADD_REMOVE)
    assert both.against_server is not None
    assert both.against_server.note.endswith(f"; with {FIXED_BEFOREHAND}")
    alone = certify_adaptive([one], GAUSSIAN, delta=DELTA, adjacency=ADD_REMOVE)
    assert alone.against_server is not None
    assert FIXED_BEFOREHAND not in alone.against_server.note


def test_averaged_gaussian_reports_are_charged_as_if_their_slot_were_known() -> None:
    noisy = GaussianNoise(8.0, NoiseAt.CLIENT)
    design = Design(
        Protocol.AVERAGED,
        slots=10,
        participation=1.0,
        randomizer=noisy,
        population=Population(100, 1000),
    )
    found = block_charge(Block((design,)), GAUSSIAN, REPLACE_ONE, delta=DELTA, number=1)
    assert found == pytest.approx((2 / 8.0) ** 2, rel=1e-2)


def test_what_no_curve_is_proved_for_is_refused() -> None:
    approximate = Design(
        Protocol.FIXED, slots=10, participation=1.0, randomizer=LocalRandomizer(1.0, 1e-9)
    )
    with pytest.raises(NotCovered, match="filter gaussian"):
        certify_adaptive(
            [Block((approximate,)), Block((local(1.0),))],
            GAUSSIAN,
            delta=DELTA,
            adjacency=ADD_REMOVE,
        )
