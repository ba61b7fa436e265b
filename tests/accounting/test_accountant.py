"""Certificates: sane for every design, monotone, composed, and equal to other accountants."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Callable
from functools import lru_cache

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from checkins.accounting import composition
from checkins.accounting.accountant import (
    METHODS,
    certify,
    certify_heterogeneous,
    loss_distribution,
)
from checkins.accounting.certificate import Alternative, Certificate
from checkins.accounting.comparisons import comparisons
from checkins.accounting.design import (
    Adjacency,
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Population,
    Protocol,
)
from checkins.accounting.exact import campaign_divergence, pure
from checkins.accounting.paper import (
    known_slot_epsilon,
    paper_covers,
    paper_epsilon,
)
from checkins.errors import InvalidValue, NotCovered
from checkins.validate import MAX_CAMPAIGNS
from tests import strategies
from tests.soak import examples

pytestmark = pytest.mark.slow

ADD_REMOVE, REPLACE_ONE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE
DELTA = 1e-6
ROUNDING = 1.01
"""Two upper bounds may be out of order by this much: the width of a replace-one interval."""


def at_client(noise: float, capacity: int = 1, **given_: object) -> Design:
    randomizer = GaussianNoise(noise, NoiseAt.CLIENT)
    return design(randomizer=randomizer, capacity=capacity, **given_)


def at_server(noise: float, **given_: object) -> Design:
    return design(randomizer=GaussianNoise(noise, NoiseAt.SERVER), **given_)


def local(epsilon: float, delta: float = 0.0, **given_: object) -> Design:
    return design(randomizer=LocalRandomizer(epsilon, delta), **given_)


def design(**given_: object) -> Design:
    base = {"protocol": Protocol.FIXED, "slots": 100, "participation": 1.0}
    return Design(**{**base, **given_})  # type: ignore[arg-type]


def averaged(epsilon: float, clients: int, **given_: object) -> Design:
    shape = {"protocol": Protocol.AVERAGED, "population": Population(clients, 10 * clients)}
    return local(epsilon, **{**shape, **given_})


def sliding(epsilon: float, window: int, **given_: object) -> Design:
    return local(epsilon, protocol=Protocol.SLIDING, window=window, **given_)


def certified(
    what: Design | list[Design],
    adjacency: Adjacency = ADD_REMOVE,
    *,
    delta: float = DELTA,
    campaigns: int = 1,
) -> Certificate:
    parts = tuple(what) if isinstance(what, list) else what
    return _price(parts, adjacency, delta, campaigns)


@lru_cache(maxsize=None, typed=True)
def _price(
    what: Design | tuple[Design, ...], adjacency: Adjacency, delta: float, campaigns: int
) -> Certificate:
    parts = list(what) if isinstance(what, tuple) else what
    return certify(parts, delta=delta, adjacency=adjacency, campaigns=campaigns, compare=False)


def named(certificate: Certificate, method: str) -> Alternative:
    (found,) = (one for one in certificate.alternatives if one.method == method)
    return found


def sane(certificate: Certificate) -> None:
    """What is true of every certificate."""
    assert 0.0 <= certificate.epsilon_lower <= certificate.epsilon < math.inf
    for one in certificate.alternatives:
        assert not math.isnan(one.epsilon)
        assert one.method in METHODS
        if one.proves:
            assert certificate.epsilon <= one.epsilon
    assert certificate.method in METHODS
    assert named(certificate, certificate.method).epsilon == certificate.epsilon
    assert certificate.assumptions
    text = json.dumps(certificate.as_dict(), allow_nan=False)
    assert json.loads(text)["epsilon"] == certificate.epsilon


pure_designs = st.one_of(
    st.builds(
        local,
        st.floats(0.01, 8.0),
        slots=st.integers(1, 10**6),
        participation=st.floats(0.001, 1.0),
    ),
    st.builds(sliding, st.floats(0.01, 8.0), st.integers(1, 1000), slots=st.just(1000)),
)
noisy_designs = st.one_of(
    st.builds(
        at_server,
        st.floats(0.5, 20.0),
        slots=st.integers(1, 300),
        participation=st.floats(0.001, 1.0),
    ),
    st.builds(at_client, st.floats(0.5, 20.0), st.integers(1, 20), slots=st.integers(1, 100)),
)
asked = st.one_of(
    st.tuples(pure_designs, strategies.adjacencies), st.tuples(noisy_designs, st.just(ADD_REMOVE))
)
"""Designs that are certified quickly; Gaussian replace-one is in ``SLOW``."""

Asked = tuple[Design, Adjacency]
SLOW = (at_server(1.0, slots=5), at_client(3.0, 2, slots=2, participation=0.5))


# Every design


@settings(examples(6, soak=100), suppress_health_check=[HealthCheck.too_slow])
@given(
    what=strategies.designs(most_slots=10**8),
    adjacency=strategies.adjacencies,
    delta=strategies.deltas,
)
def test_every_design_is_certified_or_refused_by_name(
    what: Design, adjacency: Adjacency, delta: float
) -> None:
    try:
        found = certify(what, delta=delta, adjacency=adjacency)
    except NotCovered as refusal:
        assert refusal.name in {"adjacency", "local_delta", "epsilon"}  # noqa: PT017
        if refusal.name == "local_delta":
            assert isinstance(what.randomizer, LocalRandomizer)
            assert not what.randomizer.is_pure
            assert what.randomizer.local_delta > delta
        return
    sane(found)


@examples(8, soak=100)
@given(ask=asked, delta=st.sampled_from([1e-4, 1e-9]))
def test_the_exact_epsilon_is_never_above_the_papers_or_the_unamplified(
    ask: Asked, delta: float
) -> None:
    what, adjacency = ask
    found = certified(what, adjacency, delta=delta)
    sane(found)
    exactly = campaign_divergence.divergence(what, adjacency, delta=delta).epsilon(delta)
    assert named(found, "exact").epsilon == exactly.upper
    assert exactly.upper <= named(found, "no-amplification").epsilon * (1 + 1e-6)
    if paper_covers(what):
        assert exactly.upper <= paper_epsilon(what, delta=delta)
        assert exactly.lower <= named(found, "paper").epsilon
    if isinstance(what.randomizer, LocalRandomizer):
        assert found.epsilon <= what.randomizer.local_epsilon


@examples(8, soak=100)
@given(epsilon=st.floats(0.01, 20.0), clients=st.integers(1, 10**6), slots=st.integers(1, 10**6))
def test_averaged_updates_cost_what_shuffling_the_fewest_costs(
    epsilon: float, clients: int, slots: int
) -> None:
    what = averaged(epsilon, clients, slots=slots)
    found = certify(what, delta=DELTA, adjacency=REPLACE_ONE)
    shuffled = pure.PureReplaceOne(pure.PureCampaign(epsilon, clients, 1.0), delta=DELTA).epsilon(
        DELTA
    )
    assert named(found, "exact").epsilon == shuffled.upper
    assert named(found, "shuffling-best").epsilon == shuffled.upper
    assert found.epsilon <= min(epsilon, named(found, "paper").epsilon)
    assert any(f"at least {clients:,} clients contribute" in line for line in found.assumptions)


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("campaigns", [1, 7, MAX_CAMPAIGNS])
@pytest.mark.parametrize(
    "what", [local(3.0), local(3.0, 1e-3), at_server(0.5), at_client(0.5), sliding(3.0, 10)]
)
def test_a_client_that_never_takes_part_spends_nothing(
    what: Design, adjacency: Adjacency, campaigns: int
) -> None:
    found = certified(dataclasses.replace(what, participation=0.0), adjacency, campaigns=campaigns)
    assert found.epsilon == 0.0


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("what", [local(1.0), at_server(1.0, slots=3)])
def test_a_campaign_that_no_client_takes_part_in_adds_nothing(
    what: Design, adjacency: Adjacency
) -> None:
    nothing = dataclasses.replace(what, participation=0.0)
    alone = certified([what, what], adjacency)
    assert certified([what, nothing, what], adjacency).epsilon == pytest.approx(
        alone.epsilon, rel=5e-3
    )


# Monotone


def cheaper(less: Design, more: Design, adjacency: Adjacency, **given_: float) -> None:
    """``less`` costs no more than ``more``, up to the width of the intervals."""
    one, other = certified(less, adjacency, **given_), certified(more, adjacency, **given_)  # type: ignore[arg-type]
    assert one.epsilon_lower <= other.epsilon
    assert one.epsilon <= other.epsilon * ROUNDING + 1e-12


@examples(5, soak=100)
@given(ask=asked, share=st.floats(0.05, 1.0))
def test_less_participation_never_raises_epsilon(ask: Asked, share: float) -> None:
    what, adjacency = ask
    less = dataclasses.replace(what, participation=what.participation * share)
    cheaper(less, what, adjacency)


@examples(5, soak=100)
@given(ask=asked, more=st.integers(0, 1000))
def test_more_slots_to_choose_from_never_raise_epsilon(ask: Asked, more: int) -> None:
    what, adjacency = ask
    window = what.window and what.window + more
    cheaper(dataclasses.replace(what, slots=what.slots + more, window=window), what, adjacency)


@examples(5, soak=100)
@given(ask=asked, more=st.floats(1.0, 3.0))
def test_more_noise_never_raises_epsilon(ask: Asked, more: float) -> None:
    what, adjacency = ask
    if isinstance(what.randomizer, LocalRandomizer):
        noisier: LocalRandomizer | GaussianNoise = LocalRandomizer(
            what.randomizer.local_epsilon / more
        )
    else:
        noisier = dataclasses.replace(
            what.randomizer, noise_multiplier=what.randomizer.noise_multiplier * more
        )
    cheaper(dataclasses.replace(what, randomizer=noisier), what, adjacency)


@examples(5, soak=100)
@given(ask=asked, share=st.floats(0.01, 1.0))
def test_a_smaller_delta_never_lowers_epsilon(ask: Asked, share: float) -> None:
    what, adjacency = ask
    loose, tight = (certified(what, adjacency, delta=d) for d in (DELTA, DELTA * share))
    assert loose.epsilon_lower <= tight.epsilon
    assert loose.epsilon <= tight.epsilon * ROUNDING


@settings(max_examples=6)
@given(
    noise=st.floats(0.5, 10.0),
    capacity=st.integers(1, 50),
    more=st.integers(1, 50),
    slots=st.integers(1, 100),
)
def test_more_reports_in_a_slot_never_raise_epsilon(
    noise: float, capacity: int, more: int, slots: int
) -> None:
    few = at_client(noise, capacity, slots=slots)
    cheaper(at_client(noise, capacity + more, slots=slots), few, ADD_REMOVE)


# Campaigns


@examples(6, soak=100)
@given(ask=asked, campaigns=st.sampled_from([2, 3, 10, 1000]))
def test_campaigns_cost_at_least_one_and_at_most_their_sum(ask: Asked, campaigns: int) -> None:
    """Basic composition: R times one epsilon at delta / R."""
    what, adjacency = ask
    several = certified(what, adjacency, campaigns=campaigns)
    sane(several)
    each = certified(what, adjacency, delta=DELTA / campaigns)
    assert several.epsilon_lower <= campaigns * each.epsilon
    assert several.epsilon <= campaigns * each.epsilon * ROUNDING + 1e-9
    once = certified(what, adjacency)
    assert once.epsilon_lower <= several.epsilon
    assert once.epsilon <= several.epsilon * ROUNDING


@examples(6, soak=100)
@given(ask=asked)
def test_one_campaign_composed_is_the_campaign(ask: Asked) -> None:
    what, adjacency = ask
    alone = campaign_divergence.divergence(what, adjacency, delta=DELTA).epsilon(DELTA)
    composed = composition.Composition((what,), adjacency, 1).epsilon(DELTA)
    assert alone.lower <= composed.upper * (1 + 1e-6)
    assert composed.lower <= alone.upper * (1 + 1e-6)
    close = 0.01 if adjacency is ADD_REMOVE else 0.05
    assert composed.upper <= alone.upper * (1 + close) + 1e-9
    if adjacency is ADD_REMOVE and what.capacity is None:
        assert composed.lower == pytest.approx(alone.lower, rel=close, abs=1e-9)


@examples(5, soak=100)
@given(what=pure_designs, campaigns=st.integers(1, 100))
def test_replacing_is_never_cheaper_than_adding_or_removing_for_sure(
    what: Design, campaigns: int
) -> None:
    replaced = composition.Composition((what,), REPLACE_ONE, campaigns).epsilon(DELTA)
    added = composition.Composition((what,), ADD_REMOVE, campaigns).epsilon(DELTA)
    assert replaced.upper >= added.lower * (1 - 1e-6)
    assert replaced.lower <= added.upper * (1 + 1e-6)  # the same witness


@settings(max_examples=12)
@given(
    epsilon=st.floats(0.5, 20.0),
    slots=st.integers(1, 5),
    campaigns=st.integers(2, 40),
    adjacency=strategies.adjacencies,
)
def test_few_slots_and_strong_losses_compose_to_no_more_than_their_sum(
    epsilon: float, slots: int, campaigns: int, adjacency: Adjacency
) -> None:
    """The grid must reach the highest losses, and e^epsilon must not magnify what cancels."""
    assume(epsilon * campaigns < 400.0)
    what = local(epsilon, slots=slots)
    found = composition.Composition((what,), adjacency, campaigns).epsilon(DELTA)
    assert found.lower <= campaigns * epsilon * (1 + 1e-6)
    assert found.upper <= campaigns * epsilon * 1.1


@pytest.mark.parametrize("campaigns", [5, 29])
@pytest.mark.parametrize("adjacency", Adjacency)
def test_strong_reports_in_two_slots_compose_within_bounds(
    campaigns: int, adjacency: Adjacency
) -> None:
    found = composition.Composition((local(4.0, slots=2),), adjacency, campaigns).epsilon(DELTA)
    assert found.lower <= 4.0 * campaigns * (1 + 1e-6)
    assert found.upper <= 4.2 * campaigns


def test_gaussian_campaigns_compose_between_one_and_their_sum_replacing_too() -> None:
    what = SLOW[0]
    one = certified(what, REPLACE_ONE)
    several = composition.Composition((what,), REPLACE_ONE, 3).epsilon(DELTA)
    added = composition.Composition((what,), ADD_REMOVE, 3).epsilon(DELTA)
    assert one.epsilon <= several.upper * ROUNDING
    assert several.upper <= 3 * certified(what, REPLACE_ONE, delta=DELTA / 3).epsilon
    assert added.upper <= several.upper * ROUNDING
    assert added.lower < several.lower <= several.upper
    assert several.lower > 0.85 * several.upper


@pytest.mark.parametrize("what", SLOW)
def test_gaussian_replacement_is_monotone_in_every_argument(what: Design) -> None:
    largest = certified(what, REPLACE_ONE).epsilon
    noisier = dataclasses.replace(what.randomizer, noise_multiplier=3.3)
    for change in (
        {"slots": 2 * what.slots - 1},
        {"participation": 0.45},
        {"randomizer": noisier},
    ):
        assert certified(dataclasses.replace(what, **change), REPLACE_ONE).epsilon < largest  # type: ignore[arg-type]
    assert certified(what, REPLACE_ONE, delta=2 * DELTA).epsilon < largest


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("what", [local(1.0), at_server(3.0, slots=1)])
def test_a_lower_bound_for_several_campaigns_is_no_lower_than_for_one(
    what: Design, adjacency: Adjacency
) -> None:
    one, three = certified(what, adjacency), certified(what, adjacency, campaigns=3)
    assert three.epsilon_lower >= one.epsilon_lower * (1 - 5e-3)


@pytest.mark.parametrize("adjacency", Adjacency)
def test_a_mixed_list_costs_the_same_in_any_order_and_no_less_than_its_parts(
    adjacency: Adjacency,
) -> None:
    parts = [local(1.0, slots=50), at_server(1.5, slots=3), sliding(0.5, 20, participation=0.5)]
    found = [certified(order, adjacency) for order in (parts, parts[::-1], [*parts[1:], parts[0]])]
    for one in found:
        sane(one)
        assert one.epsilon == pytest.approx(found[0].epsilon, rel=3e-3)
        assert one.epsilon_lower == pytest.approx(found[0].epsilon_lower, rel=3e-3)
        assert any("3 campaigns" in line for line in one.assumptions)
    for part in parts:
        alone = certified(part, adjacency)
        assert alone.epsilon <= found[0].epsilon * ROUNDING
    thrice = math.fsum(certified(part, adjacency, delta=DELTA / 3).epsilon for part in parts)
    assert found[0].epsilon <= thrice


def test_campaigns_that_dp_accounting_can_compose_too_cost_the_same() -> None:
    """One slot, everybody, noise at the server: the Gaussian mechanism, R times."""
    what, campaigns = at_server(10.0, slots=1), 50
    theirs = PLDAccountant(value_discretization_interval=1e-4)
    theirs.compose(dp_accounting.GaussianDpEvent(10.0), campaigns)
    found = certified(what, campaigns=campaigns)
    expected = theirs.get_epsilon(DELTA)
    assert found.epsilon_lower <= expected * (1 + 1e-4)
    assert found.epsilon == pytest.approx(expected, rel=5e-3)


@pytest.mark.parametrize("adjacency", Adjacency)
def test_a_million_campaigns_are_certified(adjacency: Adjacency) -> None:
    found = certified(local(0.01), adjacency, campaigns=MAX_CAMPAIGNS)
    sane(found)
    assert found.epsilon < 7.0


# Refusals


def refused(make: Callable[[], object], name: str, value: object) -> str:
    with pytest.raises(InvalidValue) as caught:
        make()
    assert caught.value.name == name
    message = str(caught.value)
    assert repr(value) in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, 1.0, -0.1, 2, "1e-6", None, True])
def test_a_delta_lies_strictly_between_zero_and_one(value: object) -> None:
    for make in (
        lambda: certify(local(1.0), delta=value, adjacency=ADD_REMOVE),  # type: ignore[arg-type]
        lambda: certify_heterogeneous([local(1.0)], delta=value, adjacency=ADD_REMOVE),  # type: ignore[arg-type]
        lambda: loss_distribution(
            local(1.0),
            delta=value,  # type: ignore[arg-type]
            adjacency=ADD_REMOVE,
            interval=1e-3,
        ),
    ):
        refused(make, "delta", value)


@pytest.mark.parametrize("value", [0, -1, 10**7, MAX_CAMPAIGNS + 1, 1.0, math.nan, "2", True])
def test_campaigns_are_counted_up_to_a_million(value: object) -> None:
    message = refused(lambda: certified(local(1.0), campaigns=value), "campaigns", value)  # type: ignore[arg-type]
    assert "from 1 to 1,000,000" in message


@pytest.mark.parametrize("value", ["add-remove", None, "zero-out"])
def test_an_adjacency_is_one_of_the_adjacencies(value: object) -> None:
    refused(lambda: certified(local(1.0), value), "adjacency", value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1e-3, None])
def test_the_spacing_of_losses_is_positive_and_finite(value: object) -> None:
    refused(
        lambda: loss_distribution(
            local(1.0),
            delta=DELTA,
            adjacency=ADD_REMOVE,
            interval=value,  # type: ignore[arg-type]
        ),
        "interval",
        value,
    )


def test_no_campaign_at_all_is_refused() -> None:
    for make in (
        lambda: certified([]),
        lambda: certify_heterogeneous([], delta=DELTA, adjacency=ADD_REMOVE),
    ):
        with pytest.raises(InvalidValue, match="design"):
            make()


def test_averaged_updates_are_refused_between_one_more_and_one_less() -> None:
    what = averaged(1.0, 100)
    for make in (
        lambda: certified(what),
        lambda: certified([local(1.0), what]),
        lambda: certify_heterogeneous([what], delta=DELTA, adjacency=ADD_REMOVE),
        lambda: loss_distribution(what, delta=DELTA, adjacency=ADD_REMOVE, interval=1e-3),
    ):
        assert "replace-one" in refused(make, "adjacency", "add-remove")


def test_averaged_updates_are_refused_below_full_participation() -> None:
    refused(lambda: averaged(1.0, 100, participation=0.5), "participation", 0.5)


def test_an_approximate_randomizer_that_spends_more_than_delta_is_refused() -> None:
    what = local(1.0, 1e-5)
    for adjacency in Adjacency:
        refused(lambda: certified(what, adjacency), "local_delta", 1e-5)  # noqa: B023
        refused(lambda: certified(what, adjacency, campaigns=3), "local_delta", 1e-5)  # noqa: B023


def test_an_epsilon_beyond_the_limit_is_refused_and_not_called_infinite() -> None:
    with pytest.raises(NotCovered, match="no epsilon below 500 is proved"):
        certified(at_server(0.2, slots=1), campaigns=10_000)


# Approximate randomizers


@pytest.mark.parametrize("compare", [True, False])
@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("local_delta", [1e-7, 1e-40])
def test_the_local_delta_of_an_approximate_randomizer_is_charged_once(
    local_delta: float, adjacency: Adjacency, compare: bool
) -> None:
    what = local(0.1, local_delta, slots=10**6)
    found = certify(what, delta=DELTA, adjacency=adjacency, compare=compare)
    sane(found)
    assert found.method == "exact"
    pure_too = certified(local(0.1, slots=10**6), adjacency)
    assert pure_too.epsilon * (1 - 1e-6) <= found.epsilon <= 2.0 * pure_too.epsilon
    assert found.epsilon_lower == pytest.approx(pure_too.epsilon_lower)


def test_a_local_delta_that_is_almost_delta_leaves_the_local_epsilon() -> None:
    what = local(0.1, 0.9 * DELTA, slots=10**6)
    found = certified(what, Adjacency.REPLACE_ONE)
    assert found.method == "no-amplification"
    assert found.epsilon <= 0.1 * (1 + 1e-9)
    assert not named(found, "exact").proves
    assert found.as_dict()["alternatives"][0]["epsilon"] is None  # type: ignore[index]


# Population


def test_a_known_population_is_used_where_it_helps_and_is_named() -> None:
    most = Population(1, 10)
    for adjacency in Adjacency:
        found = certified(at_client(1.0, 11, slots=3, population=most), adjacency)
        assert found.method == "exact-population"
        assert found.epsilon < named(found, "exact").epsilon
        assert any("at most 10 clients exist" in line for line in found.assumptions)


def test_a_known_population_is_not_used_where_it_does_not_help() -> None:
    crowd = Population(1, 10**9)
    for adjacency in Adjacency:
        found = certified(at_client(1.0, 10, slots=3, population=crowd), adjacency)
        assert found.method == "exact"
        assert found.epsilon <= named(found, "exact-population").epsilon
        assert not any("clients exist" in line for line in found.assumptions)
        free = certified(at_client(1.0, 10, slots=3), adjacency)
        assert found.epsilon == free.epsilon


def test_a_larger_population_is_never_cheaper() -> None:
    found = [
        certified(at_client(1.0, 4, slots=1000, population=Population(1, most))).epsilon
        for most in (1, 300, 10**6)
    ]
    assert all(one <= other * (1 + 1e-4) for one, other in itertools.pairwise(found))
    lone = certified(at_server(2.0, slots=1000)).epsilon  # four reports, twice the noise of one
    assert found[0] == pytest.approx(lone, rel=1e-4)
    assert found[-1] > 1.1 * found[0]


@settings(max_examples=6)
@given(ask=asked, most=st.integers(1, 10**6))
def test_knowing_the_population_never_raises_epsilon(ask: Asked, most: int) -> None:
    what, adjacency = ask
    known = dataclasses.replace(what, population=Population(1, most))
    assert certified(known, adjacency).epsilon <= certified(what, adjacency).epsilon


# Kinds of clients, and campaigns cut short


@pytest.mark.parametrize("adjacency", Adjacency)
def test_clients_of_several_kinds_have_the_largest_epsilon_of_any_kind(
    adjacency: Adjacency,
) -> None:
    kinds = [
        sliding(2.0, 100, participation=1.0),
        sliding(2.0, 20, participation=0.3),
        sliding(2.0, 50, participation=0.5),
    ]
    each = [certified(kind, adjacency) for kind in kinds]
    found = certify_heterogeneous(kinds, delta=DELTA, adjacency=adjacency)
    assert found.epsilon == max(one.epsilon for one in each)
    assert found.epsilon_lower == max(one.epsilon_lower for one in each)
    assert (
        certify_heterogeneous(kinds[::-1], delta=DELTA, adjacency=adjacency).epsilon
        == found.epsilon
    )


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize(
    "what", [local(2.0, participation=0.7), sliding(2.0, 30), at_server(1.0, slots=6)]
)
def test_what_is_spent_grows_with_the_slots_that_are_over(
    what: Design, adjacency: Adjacency
) -> None:
    whole = certified(what, adjacency)
    spent = [
        certified(what.after(k), adjacency).epsilon
        for k in (1, what.drawable_slots // 3, what.drawable_slots - 1, what.slots)
    ]
    assert spent[-1] == whole.epsilon
    assert all(one <= other * ROUNDING for one, other in itertools.pairwise(spent))


def test_averaged_updates_are_spent_at_once() -> None:
    what = averaged(1.0, 100)
    assert what.after(1) == what


@pytest.mark.parametrize("value", [0, -1, 101, 2.5, None])
def test_only_slots_that_exist_can_be_over(value: object) -> None:
    refused(lambda: local(1.0).after(value), "slots", value)  # type: ignore[arg-type]


# Comparisons


def poisson_by_dp_accounting(noise: float, probability: float, steps: int, delta: float) -> float:
    accountant = PLDAccountant(
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=2e-4
    )
    event = dp_accounting.PoissonSampledDpEvent(probability, dp_accounting.GaussianDpEvent(noise))
    accountant.compose(event, steps)
    return float(accountant.get_epsilon(delta))


@pytest.mark.parametrize(
    ("noise", "slots", "participation", "campaigns"),
    [(1.0, 10, 1.0, 1), (2.0, 100, 1.0, 1), (1.0, 20, 0.3, 1), (3.0, 10, 1.0, 20)],
)
def test_poisson_sampling_costs_what_dp_accounting_says(
    noise: float, slots: int, participation: float, campaigns: int
) -> None:
    what = at_server(noise, slots=slots, participation=participation)
    found = certify(what, delta=DELTA, adjacency=ADD_REMOVE, campaigns=campaigns)
    expected = poisson_by_dp_accounting(noise, participation / slots, slots * campaigns, DELTA)
    ours = named(found, "poisson")
    assert not ours.proves
    assert ours.epsilon == pytest.approx(expected, rel=5e-3)


@pytest.mark.parametrize(("slots", "seen"), [(10, 3.466), (100, 0.954)])
def test_poisson_sampling_has_the_recorded_epsilon(slots: int, seen: float) -> None:
    found = certify(at_server(1.0, slots=slots), delta=DELTA, adjacency=ADD_REMOVE)
    assert named(found, "poisson").epsilon == pytest.approx(seen, rel=2e-3)
    assert found.epsilon < named(found, "poisson").epsilon


@settings(max_examples=12)
@given(epsilon=st.floats(0.05, 8.0), slots=st.integers(1, 10**5))
def test_shuffling_is_compared_with_one_client_a_slot_or_as_many_as_declared(
    epsilon: float, slots: int
) -> None:
    for population, clients in ((None, slots), (Population(7 * slots, 9 * slots), 7 * slots)):
        found = certify(
            local(epsilon, slots=slots, population=population), delta=DELTA, adjacency=REPLACE_ONE
        )
        best = pure.PureReplaceOne(pure.PureCampaign(epsilon, clients, 1.0), delta=DELTA)
        assert named(found, "shuffling-best").epsilon == best.epsilon(DELTA).upper
        assert named(found, "shuffling-best").epsilon <= named(found, "shuffling-paper").epsilon
        older = named(found, "shuffling-efmrtt19")
        assert named(found, "shuffling-paper").epsilon <= older.epsilon
        assert not older.proves


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("what", [local(1.0), at_server(1.0)])
def test_comparisons_can_be_left_out_and_change_nothing(what: Design, adjacency: Adjacency) -> None:
    bare = certified(what, adjacency)
    full = certify(what, delta=DELTA, adjacency=adjacency)
    assert full.epsilon == bare.epsilon
    assert all(one.proves for one in bare.alternatives)
    assert set(bare.alternatives) <= set(full.alternatives)


# Handed to dp_accounting


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("what", [local(1.0), at_server(1.0, slots=10), at_client(2.0, 3, slots=5)])
def test_a_loss_distribution_gives_the_epsilon_that_the_certificate_does(
    what: Design, adjacency: Adjacency
) -> None:
    theirs = loss_distribution(what, delta=DELTA, adjacency=adjacency, interval=1e-4)
    found = certified(what, adjacency)
    epsilon = theirs.get_epsilon_for_delta(DELTA)
    assert epsilon >= found.epsilon_lower
    assert epsilon == pytest.approx(found.epsilon, rel=0.02)


@pytest.mark.parametrize("adjacency", Adjacency)
def test_loss_distributions_compose_there_as_campaigns_do_here(adjacency: Adjacency) -> None:
    one, other = local(1.0), at_server(1.0, slots=10)
    both = certified([one, other], adjacency)
    first, second = (
        loss_distribution(what, delta=DELTA, adjacency=adjacency, interval=1e-4)
        for what in (one, other)
    )
    epsilon = first.compose(second).get_epsilon_for_delta(DELTA)
    assert epsilon >= both.epsilon_lower
    assert epsilon == pytest.approx(both.epsilon, rel=0.02)


def test_a_loss_distribution_composes_with_a_laplace_mechanism() -> None:
    """The Laplace mechanism of scale 2 is above its own merging into a few outcomes."""
    what, scale, interval = local(1.0, slots=20), 2.0, 1e-4
    laplace = privacy_loss_distribution.from_laplace_mechanism(
        scale, value_discretization_interval=interval
    )
    ours = loss_distribution(what, delta=DELTA, adjacency=ADD_REMOVE, interval=interval)
    found = ours.compose(laplace)

    distribution = pure.PureAddRemove(pure.PureCampaign(1.0, 20, 1.0), delta=1e-12)
    x = np.linspace(-30.0, 31.0, 6101)
    cdf = [np.where(x < c, 0.5 * np.exp((x - c) / scale), 1 - 0.5 * np.exp((c - x) / scale))
           for c in (0.0, 1.0)]  # fmt: skip
    p, q = (np.diff(np.concatenate(([0.0], one, [1.0]))) for one in cdf)
    present = np.multiply.outer(distribution.masses * distribution.ratios, p).ravel()
    absent = np.multiply.outer(distribution.masses, q).ravel()
    for epsilon in (0.2, 0.6, 1.0):
        merged = max(
            np.maximum(present - math.exp(epsilon) * absent, 0.0).sum(),
            np.maximum(absent - math.exp(epsilon) * present, 0.0).sum(),
        )
        delta = found.get_delta_for_epsilon(epsilon)
        assert delta >= merged * (1 - 1e-9)
        assert delta == pytest.approx(merged, rel=0.01)


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("what", [local(1.0), at_server(1.0)])
def test_the_loss_distribution_of_a_campaign_that_no_client_takes_part_in_is_none(
    what: Design, adjacency: Adjacency
) -> None:
    nothing = dataclasses.replace(what, participation=0.0)
    theirs = loss_distribution(nothing, delta=DELTA, adjacency=adjacency, interval=1e-3)
    assert theirs.get_epsilon_for_delta(DELTA) == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("interval", [1.0, 100.0, 1000.0])
def test_a_coarse_spacing_of_losses_is_pessimistic_or_refused(interval: float) -> None:
    what = at_server(1.0)
    try:
        theirs = loss_distribution(what, delta=DELTA, adjacency=ADD_REMOVE, interval=interval)
    except InvalidValue as refusal:
        assert refusal.name == "interval"  # noqa: PT017
    else:
        assert theirs.get_epsilon_for_delta(DELTA) >= certified(what).epsilon_lower


# Held locally


@settings(max_examples=25)
@given(epsilon=st.floats(1e-6, 90.0), share=st.floats(1e-5, 1.0), campaigns=st.integers(2, 50))
def test_pure_campaigns_never_raise_epsilon_than_their_local_epsilons(
    epsilon: float, share: float, campaigns: int
) -> None:
    assume(share * campaigns > DELTA)
    what = local(epsilon, slots=3, participation=share)
    found = certified(what, campaigns=campaigns)
    held = known_slot_epsilon(what, LocalRandomizer(epsilon), delta=DELTA)
    assert found.epsilon <= campaigns * held * (1 + 1e-9)
    assert held <= epsilon * (1 + 1e-9)


# Found by a newcomer


def test_kinds_do_not_count_on_their_own_kind_to_leave_room() -> None:
    def kind(window: int, participation: float) -> Design:
        return Design(
            Protocol.SLIDING,
            slots=5000,
            window=window,
            participation=participation,
            randomizer=GaussianNoise(0.1, NoiseAt.CLIENT),
            capacity=3400,
            population=Population(1, 300_000),
        )

    wide, hasty = kind(100, 1.0), kind(50, 0.6)
    found = certify_heterogeneous([wide, hasty], delta=1e-6, adjacency=Adjacency.ADD_REMOVE)
    alone = certify(wide, delta=1e-6, adjacency=Adjacency.ADD_REMOVE)
    assert alone.method == "exact-population"
    assert found.epsilon >= named(alone, "exact").epsilon
    assert not any("exist" in line for line in found.assumptions)


@pytest.mark.parametrize(
    ("local_epsilon", "participation", "delta"),
    [(10.0, 1.0, 1e-15), (5.0, 0.9, 1e-15), (8.0, 0.3, 1e-18), (4.0, 0.5, 1e-12)],
)
def test_an_epsilon_close_to_the_local_one_is_rounded_up_to_its_last_digit(
    local_epsilon: float, participation: float, delta: float
) -> None:
    what = local(local_epsilon, slots=1, participation=participation)
    epsilon = certified(what, delta=delta).epsilon
    with mpmath.workdps(60):
        b = mpmath.exp(local_epsilon)
        present = 1 - mpmath.mpf(participation) + mpmath.mpf(participation) * b
        true = (present - mpmath.exp(mpmath.mpf(epsilon))) / (1 + b)
    assert true <= delta


def test_two_campaigns_of_a_declared_population_cost_less_than_twice_one() -> None:
    what = design(
        slots=200,
        randomizer=GaussianNoise(0.1, NoiseAt.CLIENT),
        capacity=176,
        population=Population(15_000, 20_000),
    )
    once, twice = certified(what, delta=5e-7), certified([what, what], delta=1e-6)
    assert twice.method == "exact-population"
    assert once.epsilon < twice.epsilon < 2 * once.epsilon


def test_approximate_reports_add_up_over_campaigns_within_delta() -> None:
    what = local(0.5, 1e-9)
    twice = certified(what, Adjacency.REPLACE_ONE, delta=1e-6, campaigns=2)
    once = certified(what, Adjacency.REPLACE_ONE, delta=1e-6)
    assert once.epsilon < twice.epsilon <= 2.0 * once.epsilon
    with pytest.raises(InvalidValue, match="local_delta"):
        certified(what, Adjacency.REPLACE_ONE, delta=1e-9, campaigns=2)


@pytest.mark.parametrize("what", ["x", 3, None])
def test_what_is_not_a_design_is_refused(what: object) -> None:
    with pytest.raises((InvalidValue, TypeError)):
        certify(what, delta=1e-6, adjacency=Adjacency.ADD_REMOVE)  # type: ignore[arg-type]


@pytest.mark.parametrize("adjacency", Adjacency)
def test_a_window_that_slides_off_the_end_has_the_lower_end_of_the_slots_it_meets(
    adjacency: Adjacency,
) -> None:
    """A client meets three active slots at most, each with a sixth of its probability."""
    short, met = sliding(2.0, 6, slots=8), local(2.0, slots=3, participation=0.5)
    found, true = certified(short, adjacency, delta=0.01), certified(met, adjacency, delta=0.01)
    assert found.epsilon_lower == pytest.approx(true.epsilon_lower)
    assert found.epsilon_lower < found.epsilon


def test_a_sum_of_pure_reports_has_the_lower_end_of_a_slot_for_each() -> None:
    """Two reports of a canary and a dummy, enumerated: their order is hidden."""
    epsilon0, delta = 1.0, 0.1
    what = design(slots=1, randomizer=LocalRandomizer(epsilon0), capacity=2)
    found = certified(what, delta=delta)
    yes = math.exp(epsilon0) / (1 + math.exp(epsilon0))
    without = [yes * yes, 2 * yes * (1 - yes), (1 - yes) ** 2]  # by how many report the other
    with_it = [yes * (1 - yes), yes * yes + (1 - yes) ** 2, yes * (1 - yes)]

    def told(epsilon: float) -> float:
        pairs = [(with_it, without), (without, with_it)]
        return max(
            sum(max(0.0, p - math.exp(epsilon) * q) for p, q in zip(one, other, strict=True))
            for one, other in pairs
        )

    assert told(found.epsilon_lower) == pytest.approx(delta, rel=1e-6)
    assert told(found.epsilon) < delta


def test_more_reports_than_the_accountant_covers_are_not_compared_with_a_shuffle() -> None:
    """Shuffling 10**12 slots of 100 reports would take terabytes of memory."""
    design = Design(
        Protocol.FIXED,
        slots=10**12,
        participation=1.0,
        randomizer=LocalRandomizer(4.0),
        capacity=100,
    )
    assert not list(comparisons(design, Adjacency.REPLACE_ONE, campaigns=1, delta=1e-6))
