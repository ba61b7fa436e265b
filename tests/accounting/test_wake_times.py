"""The sliding protocol: wake times that depend on data, and windows in which many clients wake.

Small protocols are enumerated: every slot that a client may draw, every choice of the server.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from checkins.accounting import (
    Adjacency,
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Parameter,
    Population,
    Protocol,
    RandomizedResponseReports,
    WakeTimes,
    calibrate,
    certify,
    certify_heterogeneous,
)
from checkins.accounting.exact import campaign_divergence
from checkins.accounting.exact.pure import PureCampaign, UnrelatedWindows
from checkins.accounting.paper.occupancy import overflow_probability
from checkins.campaign import Campaign
from checkins.errors import InvalidValue, NotCovered
from tests.accounting.enumeration import law_of_releases, laws_of_reports
from tests.support.campaigns import SLIDING, campaign

ADD_REMOVE, REPLACE_ONE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE
ANY, INDEPENDENT = WakeTimes.ANY, WakeTimes.INDEPENDENT


def sliding(wake_times: WakeTimes = ANY, **given_: Any) -> Design:
    base: dict[str, Any] = {
        "slots": 50,
        "window": 10,
        "participation": 1.0,
        "randomizer": LocalRandomizer(1.0),
        "wake_times": wake_times,
    }
    return Design(Protocol.SLIDING, **{**base, **given_})


def certified(design: Design, adjacency: Adjacency = REPLACE_ONE, **given_: Any) -> Any:
    return certify(design, adjacency=adjacency, compare=False, **{"delta": 1e-6, **given_})


# ---- enumeration -------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    local_epsilon=st.sampled_from([0.5, 1.0, 2.5]),
    capacity=st.integers(1, 2),
    others=st.integers(0, 2),
    wakes=st.tuples(st.integers(0, 2), st.integers(0, 2)),
)
@example(seed=1, local_epsilon=1.0, capacity=1, others=0, wakes=(0, 2))
def test_no_small_protocol_exceeds_its_delta_if_wake_times_depend_on_data(
    seed: int, local_epsilon: float, capacity: int, others: int, wakes: tuple[int, int]
) -> None:
    """A window of two slots; the replaced client wakes at either of two times."""
    slots, window = 4, 2
    rng = np.random.default_rng(seed)
    dummy, *reports = laws_of_reports(rng, local_epsilon, 3 + others)
    other_windows = [range(s, s + window) for s in rng.integers(0, 3, others)]
    one, two = (
        law_of_releases(
            [range(wake, wake + window), *other_windows],
            np.stack([own, *reports[2:]]),
            dummy,
            slots=slots,
            capacity=capacity,
        )
        for wake, own in zip(wakes, reports[:2], strict=True)
    )
    design = sliding(
        slots=5, window=2, capacity=capacity, randomizer=LocalRandomizer(local_epsilon)
    )
    bounds = campaign_divergence.divergence(design, REPLACE_ONE, delta=1e-2)
    for epsilon in (0.0, 0.3, 0.8, 1.5):
        delta = float(np.maximum(one - math.exp(epsilon) * two, 0.0).sum())
        assert delta <= bounds.upper(epsilon) * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("local_epsilon", [0.5, 2.0])
@pytest.mark.parametrize("window", [1, 2, 3])
def test_a_client_alone_with_disjoint_windows_attains_the_delta(
    local_epsilon: float, window: int
) -> None:
    """So the bound for independent wake times would be too small."""
    r = 1.0 / (1.0 + math.exp(local_epsilon))
    dummy, report = np.array([1 - r, r]), np.array([r, 1 - r])
    one, two = (
        law_of_releases(
            [range(wake, wake + window)],
            np.append(report, 0.0)[np.newaxis],
            np.append(dummy, 0.0),
            slots=2 * window,
            capacity=1,
        )
        for wake in (0, window)
    )
    bounds = UnrelatedWindows(PureCampaign(local_epsilon, window, 1.0), delta=1e-2)
    independent = campaign_divergence.divergence(
        sliding(INDEPENDENT, window=window, randomizer=LocalRandomizer(local_epsilon)),
        REPLACE_ONE,
        delta=1e-2,
    )
    for epsilon in (0.1, 0.4, 0.9 * local_epsilon):
        delta = float(np.maximum(one - math.exp(epsilon) * two, 0.0).sum())
        assert bounds.lower(epsilon) <= delta * (1 + 1e-12)
        assert delta <= bounds.upper(epsilon)
        assert bounds.upper(epsilon) <= bounds.lower(epsilon) * (1 + 1e-5)
        if delta:
            assert independent.upper(epsilon) < delta


# ---- numbers and properties --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("local_epsilon", "window", "independent", "any_time"),
    [(0.5, 100, 0.2137, 0.2773), (1.0, 1000, 0.1487, 0.1760)],
)
def test_the_published_epsilons_are_met(
    local_epsilon: float, window: int, independent: float, any_time: float
) -> None:
    given_ = {"slots": 5 * window, "window": window, "randomizer": LocalRandomizer(local_epsilon)}
    assert certified(sliding(INDEPENDENT, **given_)).epsilon == pytest.approx(independent, abs=5e-5)
    found = certified(sliding(ANY, **given_))
    assert found.epsilon == pytest.approx(any_time, abs=5e-5)
    assert found.epsilon_lower == pytest.approx(found.epsilon, rel=1e-6)


@given(
    local_epsilon=st.floats(0.01, 20.0),
    slots=st.one_of(st.integers(1, 40), st.integers(1, 10**7)),
    participation=st.floats(0.01, 1.0),
    delta=st.sampled_from([1e-9, 1e-6, 1e-3]),
)
def test_both_ends_meet(
    local_epsilon: float, slots: int, participation: float, delta: float
) -> None:
    found = UnrelatedWindows(PureCampaign(local_epsilon, slots, participation), delta=delta)
    interval = found.epsilon(delta)
    assert 0.0 <= interval.lower <= interval.upper <= 2.0 * local_epsilon * (1 + 1e-9)
    assert interval.upper <= interval.lower * (1 + 1e-3) + 1e-9 or interval.lower == 0.0
    assert found.upper(interval.upper) <= delta


def test_a_sum_over_all_counts_agrees() -> None:
    from scipy.stats import binom

    b, m, p0 = math.exp(0.7), 9, 0.8
    counts = np.arange(m + 1)
    masses = binom.pmf(counts, m, 1 / (1 + b))
    f = 1 - p0 + p0 * (counts * b + (m - counts) / b) / m
    found = UnrelatedWindows(PureCampaign(0.7, m, p0), delta=1e-3)
    for epsilon in (0.0, 0.2, 0.6):
        gains = np.maximum(np.subtract.outer(f, math.exp(epsilon) * f), 0.0)
        delta = float(masses @ gains @ masses)
        assert found.lower(epsilon) <= delta <= found.upper(epsilon)
        assert found.upper(epsilon) <= delta * (1 + 1e-5)


DESIGNS = {
    "pure": {},
    "capacity": {"capacity": 4},
    "named": {"capacity": 1, "randomizer": RandomizedResponseReports(1.0)},
    "local delta": {"randomizer": LocalRandomizer(1.0, 1e-10)},
    "noise at the client": {"capacity": 2, "randomizer": GaussianNoise(2.0, NoiseAt.CLIENT)},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DESIGNS)
def test_without_the_assumption_epsilon_is_larger_and_the_certificate_says_less(name: str) -> None:
    def says(certified: Any) -> bool:
        return any("client wakes does not depend" in line for line in certified.assumptions)

    assumed, free = (certified(sliding(times, **DESIGNS[name])) for times in (INDEPENDENT, ANY))
    assert says(assumed)
    assert not says(free)
    assert assumed.epsilon * 1.001 < free.epsilon <= 3.0 * assumed.epsilon
    assert free.epsilon_lower >= assumed.epsilon_lower * (1 - 1e-9)
    assert {"paper", "no-amplification"}.isdisjoint(a.method for a in free.alternatives)
    twice = certified(sliding(ANY, **DESIGNS[name]), campaigns=2).epsilon
    assert free.epsilon < twice
    same = certified(sliding(ANY, **DESIGNS[name]), ADD_REMOVE).epsilon
    assert same == certified(sliding(INDEPENDENT, **DESIGNS[name]), ADD_REMOVE).epsilon


def test_noise_at_the_server_on_all_check_ins_needs_no_assumption() -> None:
    noise = GaussianNoise(2.0, NoiseAt.SERVER)
    assumed, free = (certified(sliding(times, randomizer=noise)) for times in (INDEPENDENT, ANY))
    assert assumed.epsilon == free.epsilon
    assert not any("wakes" in line for line in assumed.assumptions)


def test_wake_times_go_with_calibration_kinds_and_no_curious_clients() -> None:
    met = calibrate(
        sliding(),
        parameter=Parameter.LOCAL_EPSILON,
        epsilon=0.3,
        delta=1e-3,
        adjacency=REPLACE_ONE,
    )
    assert met.certificate.epsilon <= 0.3
    with pytest.raises(NotCovered, match="wake times"):
        certified(sliding(), curious=1)
    mixed = certify_heterogeneous([sliding(), sliding(window=5)], delta=1e-6, adjacency=REPLACE_ONE)
    assert mixed.epsilon == certified(sliding(window=5)).epsilon
    with pytest.raises(InvalidValue, match="kinds"):
        certify_heterogeneous([sliding(), sliding(INDEPENDENT)], delta=1e-6, adjacency=REPLACE_ONE)


# ---- arrivals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("others", "window", "capacity", "probability"),
    [(100, 100, 10, 7.632e-6), (400, 100, 20, 7.471e-7)],
)
def test_the_published_overflow_probabilities_are_met(
    others: int, window: int, capacity: int, probability: float
) -> None:
    """``arrivals`` counts the client itself too."""
    design = sliding(
        slots=1000,
        window=window,
        capacity=capacity,
        randomizer=GaussianNoise(2.0, NoiseAt.CLIENT),
        arrivals=others + 1,
    )
    for adjacency in Adjacency:
        found = campaign_divergence.overflow_probability_of(design, adjacency)
        factor = 2.0 if adjacency is REPLACE_ONE else 1.0
        assert found == pytest.approx(factor * probability, rel=2e-4)


@settings(max_examples=20)
@given(
    wakes=st.lists(st.integers(0, 7), min_size=0, max_size=5),
    own=st.integers(0, 7),
    window=st.integers(1, 3),
    capacity=st.integers(1, 3),
    participation=st.sampled_from([0.4, 1.0]),
)
def test_no_uneven_arrivals_exceed_the_overflow_probability(
    wakes: list[int], own: int, window: int, capacity: int, participation: float
) -> None:
    """The probability that others fill a slot of the client's window, by enumeration."""
    everyone = [*wakes, own]
    arrivals = max(sum(s <= wake < s + window for wake in everyone) for s in range(-3, 8))
    exact = 0.0
    for drawn in product(range(window + 1), repeat=len(wakes)):  # the last: no participation
        probability = math.prod(
            1 - participation if pick == window else participation / window for pick in drawn
        )
        picked = [w + pick for w, pick in zip(wakes, drawn, strict=True) if pick < window]
        exact += probability * any(
            picked.count(slot) >= capacity for slot in range(own, own + window)
        )
    bound = overflow_probability(
        clients=arrivals, slots=window, participation=participation, capacity=capacity
    )
    assert exact <= bound + 1e-12


def test_the_fewer_of_arrivals_and_population_counts() -> None:
    noisy = {
        "slots": 400,
        "window": 100,
        "capacity": 20,
        "randomizer": GaussianNoise(1.0, NoiseAt.CLIENT),
        "wake_times": INDEPENDENT,
    }
    everyone = {"population": Population(100, 3000)}
    neither, crowd, few, alone = (
        certified(sliding(**noisy, **more), ADD_REMOVE, delta=1e-4)
        for more in ({}, everyone, {**everyone, "arrivals": 300}, {"arrivals": 300})
    )
    assert few.epsilon == alone.epsilon < neither.epsilon
    assert crowd.epsilon == neither.epsilon
    assert few.method == alone.method == "exact-population"
    text = "; ".join(alone.assumptions)
    assert "at most 300 clients wake in any 100 consecutive slots" in text
    mixed = certify_heterogeneous(
        [sliding(**noisy, arrivals=300)], delta=1e-4, adjacency=ADD_REMOVE
    )
    assert mixed.epsilon == neither.epsilon


# ---- descriptions and files --------------------------------------------------------------------


@pytest.mark.parametrize("change", [{"arrivals": 5}, {"wake_times": ANY}])
def test_only_the_sliding_protocol_has_wake_times(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match="sliding protocol only"):
        Design(
            Protocol.FIXED,
            slots=3,
            participation=1.0,
            randomizer=LocalRandomizer(1.0),
            **change,
        )
    with pytest.raises(InvalidValue, match="arrivals"):
        sliding(arrivals=0)


def sealed(**given_: Any) -> Campaign:
    return campaign(**SLIDING, **given_)


def test_a_campaign_file_declares_both() -> None:
    found = sealed(arrivals=40, wake_times="any").design
    assert (found.arrivals, found.wake_times) == (40, ANY)
    assert sealed(wake_times="any").seal != sealed().seal
    assert sealed(wake_times="independent").seal == sealed().seal
    assert "arrivals" not in sealed().canonical()
    assert "wake_times" not in sealed().canonical()


@pytest.mark.parametrize(
    ("local_epsilon", "window", "delta", "expected"),
    [
        (25.0, 10, 1e-9, 47.69741491),
        (33.0, 7, 1e-6, 64.05408885),
        (36.0, 1, 1e-6, 71.99999900),
        (40.0, 10, 1e-9, 77.69741491),
    ],
)
def test_large_local_epsilons_lose_no_digits(
    local_epsilon: float, window: int, delta: float, expected: float
) -> None:
    """The expected epsilons were summed with 120 digits. All are at most twice the local one."""
    bounds = UnrelatedWindows(PureCampaign(local_epsilon, window, 1.0), delta=delta)
    epsilon = bounds.epsilon(delta)
    assert epsilon.lower <= expected + 1e-8
    assert expected - 1e-8 <= epsilon.upper <= expected + 1e-5
    assert bounds.upper(2.0 * local_epsilon) == 0.0


def test_declared_arrivals_are_no_client_to_displace() -> None:
    """With five clients nobody is displaced, so a client alone has the lower bound."""
    noise = GaussianNoise(0.05, NoiseAt.CLIENT)
    common = {"slots": 300, "window": 100, "participation": 1.0, "randomizer": noise}
    limited, populated = (
        certify(
            Design(Protocol.SLIDING, capacity=100, **common, **limit),
            delta=1e-6,
            adjacency=REPLACE_ONE,
            compare=False,
        )
        for limit in ({"arrivals": 5}, {"population": Population(1, 5)})
    )
    assert limited.epsilon_lower == populated.epsilon_lower < limited.epsilon
