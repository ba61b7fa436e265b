"""Gaussian noise: seen values, other accountants, simulation of the protocol, and its rounding."""

from __future__ import annotations

import itertools
import math
import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_ndtr
from scipy.stats import norm

from checkins.accounting.design import LEAST_SLOT_NOISE, MOST_SLOT_NOISE
from checkins.accounting.exact.gaussian import GaussianCampaign
from checkins.accounting.exact.gaussian_replace_one import GaussianReplaceOne
from checkins.accounting.exact.slot_ratio import (
    AntipodalGaussian,
    DilutedRatio,
    DisplacedGaussian,
    Envelope,
    ShiftedGaussian,
)
from checkins.accounting.exact.slot_sum import AddRemove, ReplaceOne
from checkins.accounting.solve import Interval
from tests.soak import examples

pytestmark = pytest.mark.slow

CELLS = 512
FAILURE = 1e-6
"""Probability with which each statistical test here fails although the code is right."""


def certified(
    make: type[AddRemove] | type[GaussianReplaceOne],
    *,
    noise: float,
    slots: int,
    participation: float = 1.0,
    displaces: int | None = None,
    delta: float = 1e-6,
    cells: int = CELLS,
) -> Interval:
    campaign = GaussianCampaign(noise, slots, participation, displaces)
    return make(campaign, delta=delta, cells=cells).epsilon(delta)


# Values computed by hand


@pytest.mark.parametrize(
    ("noise", "slots", "seen"), [(1.0, 10, 2.652), (1.0, 100, 0.858), (2.0, 1000, 0.0592)]
)
def test_the_table_of_noise_at_the_server_is_reproduced(
    noise: float, slots: int, seen: float
) -> None:
    found = certified(AddRemove, noise=noise, slots=slots, cells=1024)
    assert found.lower == pytest.approx(seen, rel=1e-3)
    assert found.upper == pytest.approx(seen, rel=1e-3)


@pytest.mark.parametrize(
    ("slots", "envelope", "alone", "doubled"),
    [(100, 0.466, 0.205, 0.858), (1000, 0.085, 0.059, 0.172)],
)
def test_the_envelope_lies_where_it_was_seen(
    slots: int, envelope: float, alone: float, doubled: float
) -> None:
    """K = 1, sigma 2: between shift C, which is no guarantee, and shift 2C, which is too much."""
    displaced = certified(AddRemove, noise=2.0, slots=slots, displaces=1, cells=1024)
    assert displaced.upper == pytest.approx(envelope, abs=6e-4)
    assert displaced.lower == pytest.approx(alone, abs=6e-4)
    for noise, seen in ((2.0, alone), (1.0, doubled)):
        found = certified(AddRemove, noise=noise, slots=slots, cells=1024)
        assert found.upper == pytest.approx(seen, abs=6e-4)


@pytest.mark.parametrize(("slots", "seen", "split"), [(10, 1.373, 1.489), (100, 0.399, 0.426)])
def test_antipodal_data_have_the_recorded_epsilon(slots: int, seen: float, split: float) -> None:
    """The example of the theory notes, sigma 2; going through the absent client costs more.

    Both numbers are those of a client that displaces nobody.
    """
    found = certified(GaussianReplaceOne, noise=2.0, slots=slots)
    assert found.lower <= seen + 5e-4
    assert found.upper == pytest.approx(seen, rel=4e-3)
    away = AddRemove(GaussianCampaign(2.0, slots, 1.0), delta=1e-6, cells=CELLS)

    def through_absence(epsilon: float) -> float:
        return min(
            away.remove_upper(share * epsilon)
            + math.exp(share * epsilon) * away.add_upper((1 - share) * epsilon)
            for share in np.linspace(0.2, 0.8, 61)
        )

    assert through_absence(split * 0.995) > 1e-6 > through_absence(split * 1.005)
    assert found.upper < split


# Other accountants


def gaussian_mechanism(noise: float, epsilon: float) -> float:
    """[BW18, Thm 8]: the analytic Gaussian mechanism."""
    upper = log_ndtr(0.5 / noise - epsilon * noise)
    lower = epsilon + log_ndtr(-0.5 / noise - epsilon * noise)
    return -math.exp(upper) * math.expm1(min(0.0, lower - upper))


@given(noise=st.floats(0.1, 1000.0), share=st.floats(0.01, 1.5))
def test_one_slot_is_the_analytic_gaussian_mechanism(noise: float, share: float) -> None:
    epsilon = share * (0.5 / noise**2 + 5 / noise)
    bound = AddRemove(GaussianCampaign(noise, 1, 1.0), delta=1e-9, cells=2)
    exact = gaussian_mechanism(noise, epsilon)
    # the oracle cancels too: about 1e-16 of its terms
    terms = norm.cdf(0.5 / noise - epsilon * noise)
    assert bound.lower(epsilon) <= exact * (1 + 1e-9) + 1e-15 * terms
    assert exact <= bound.upper(epsilon) * (1 + 1e-9) + 1e-15 * terms
    assert bound.upper(epsilon) == pytest.approx(exact, rel=1e-6, abs=1e-14 * terms)


@given(noise=st.floats(0.2, 100.0), share=st.floats(0.01, 1.5))
def test_replacing_in_one_slot_is_a_gaussian_of_twice_the_sensitivity(
    noise: float, share: float
) -> None:
    epsilon = share * (2 / noise**2 + 10 / noise)
    bound = GaussianReplaceOne(GaussianCampaign(noise, 1, 1.0), delta=1e-9, cells=2)
    exact = gaussian_mechanism(noise / 2, epsilon)
    terms = norm.cdf(1 / noise - epsilon * noise / 2)
    assert bound.upper(epsilon) == pytest.approx(exact, rel=1e-6, abs=1e-14 * terms)


@pytest.mark.parametrize("participation", [0.01, 0.3])
@pytest.mark.parametrize("noise", [0.7, 3.0])
def test_one_slot_behind_a_coin_flip_is_the_subsampled_gaussian(
    participation: float, noise: float
) -> None:
    oracle = privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=participation, value_discretization_interval=1e-4
    )
    bound = AddRemove(GaussianCampaign(noise, 1, participation), delta=1e-9, cells=2)
    for epsilon in (0.0, 0.01, 0.1, 0.5):
        pessimistic = oracle.get_delta_for_epsilon(epsilon)
        assert bound.upper(epsilon) <= pessimistic * (1 + 1e-6) + 1e-9
        assert bound.lower(epsilon) == pytest.approx(pessimistic, rel=5e-3, abs=1e-7)


@pytest.mark.parametrize(
    ("noise", "slots", "delta", "accuracy"), [(1.0, 10, 1e-6, 0.1), (2.0, 30, 1e-5, 0.1)]
)
def test_the_interval_lies_inside_that_of_an_independent_accountant(
    noise: float, slots: int, delta: float, accuracy: float
) -> None:
    """Oracle: PLD-accounting, which computes the same random allocation in another way."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ImportWarning)  # it would rather have numba
        import PLD_accounting
    theirs = sorted(
        PLD_accounting.gaussian_allocation_epsilon_range(
            sigma=noise, num_steps=slots, delta=delta, epsilon_accuracy=accuracy
        )
    )
    ours = certified(AddRemove, noise=noise, slots=slots, delta=delta)
    assert theirs[0] <= ours.lower <= ours.upper <= theirs[1]


# The ratio of an occupied slot, by brute force over what the clients may hold


def units(rng: np.random.Generator, dimension: int) -> np.ndarray:
    """A vector of norm at most 1, mostly of norm 1."""
    vector = rng.normal(size=dimension)
    vector /= np.linalg.norm(vector)
    return vector * (1.0 if rng.random() < 0.7 else rng.random())


def brute_call(  # E(w (l - e^eps l') + (1 - w)(1 - e^eps) - t)+
    one: np.ndarray,
    other: np.ndarray,
    *,
    shift: float,
    epsilon: float,
    weight: float,
    t: np.ndarray,
) -> np.ndarray:
    """Over the plane of noise, one axis in closed form: ``one`` and ``other`` are the two

    displacements (data minus what is displaced); the ratios are those of N(shift * v, 1).
    """
    size = np.linalg.norm(other)
    axis = other / size if size > 1e-12 else np.eye(len(other))[0]
    along = float(one @ axis)
    across = math.sqrt(max(float(one @ one) - along**2, 0.0))
    h = np.linspace(-13.0, 13.0, 4001)
    probability = norm.pdf(h) * (h[1] - h[0])
    theirs = np.exp(epsilon + shift * size * h - (shift * size) ** 2 / 2)
    forward = np.exp(shift * along * h - (shift * along) ** 2 / 2)
    strike = (t[:, None] + (1 - weight) * math.expm1(epsilon)) / weight + theirs
    deviation = max(shift * across, 1e-9)
    with np.errstate(divide="ignore", invalid="ignore"):
        d = np.where(strike > 0, np.log(forward / np.maximum(strike, 1e-300)) / deviation, np.inf)
        inner = forward * norm.cdf(d + deviation / 2)
        inner = inner - np.where(strike > 0, strike, 0.0) * norm.cdf(d - deviation / 2)
    return np.asarray(weight * (inner + np.maximum(-strike, 0.0)) @ probability)


def strikes(shift: float, epsilon: float) -> np.ndarray:
    middle = -math.expm1(epsilon)
    reach = (1 + math.exp(epsilon)) * np.expm1(np.array([0.01, 0.1, 0.5, 1.0, 2.0, 4.0]) * shift)
    return np.concatenate((middle - reach[::-1], [middle, 0.0], middle + reach))


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    shift=st.floats(0.1, 1.5),
    epsilon=st.floats(0.0, 3.0),
    capacity=st.integers(1, 3),
    dimension=st.integers(2, 3),
)
def test_no_configuration_of_an_occupied_slot_exceeds_the_replace_one_envelope(
    seed: int, shift: float, epsilon: float, capacity: int, dimension: int
) -> None:
    """Data d and d', displaced c, norms at most 1, chosen with probability at most K/(K+1)."""
    rng = np.random.default_rng(seed)
    d, other, displaced = (units(rng, dimension) for _ in range(3))
    if rng.random() < 0.3:
        other = -d
    if rng.random() < 0.3:
        displaced = -(d + other) / max(1.0, float(np.linalg.norm(d + other)))
    most = capacity / (capacity + 1)
    weight = most if rng.random() < 0.7 else most * rng.uniform(0.05, 1.0)
    t = strikes(shift, epsilon)
    envelope = Envelope(AntipodalGaussian(shift, epsilon), DisplacedGaussian(shift, epsilon, most))
    truth = brute_call(
        d - displaced, other - displaced, shift=shift, epsilon=epsilon, weight=weight, t=t
    )
    # trapezoids across the kink of the oracle err by about the square of their step
    assert np.all(truth <= envelope.call(t) * (1 + 1e-4) + 1e-7)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), shift=st.floats(0.1, 1.5), epsilon=st.floats(0.0, 3.0))
def test_no_two_data_against_a_dummy_exceed_the_antipodal_ones(
    seed: int, shift: float, epsilon: float
) -> None:
    rng = np.random.default_rng(seed)
    t = strikes(shift, epsilon)
    truth = brute_call(units(rng, 2), units(rng, 2), shift=shift, epsilon=epsilon, weight=1.0, t=t)
    assert np.all(truth <= AntipodalGaussian(shift, epsilon).call(t) * (1 + 1e-4) + 1e-7)


@given(
    seed=st.integers(0, 2**32 - 1),
    shift=st.floats(0.05, 2.0),
    capacity=st.integers(1, 4),
    others=st.integers(0, 8),
)
def test_no_configuration_of_a_slot_exceeds_the_add_remove_envelope(
    seed: int, shift: float, capacity: int, others: int
) -> None:
    """Fewer than K others: a dummy is displaced; more: one of them, with probability K/(c+1)."""
    rng = np.random.default_rng(seed)
    d, displaced = units(rng, 3), units(rng, 3)
    weight = 1.0 if others < capacity else capacity / (others + 1)
    moved = float(np.linalg.norm(d if others < capacity else d - displaced))
    most = capacity / (capacity + 1)
    envelope = Envelope(ShiftedGaussian(shift), DilutedRatio(ShiftedGaussian(2 * shift), most))
    t = np.exp(np.linspace(-6.0, 6.0, 121) * shift)
    truth = DilutedRatio(ShiftedGaussian(max(shift * moved, 1e-9)), weight).call(t)
    assert np.all(truth <= envelope.call(t) * (1 + 1e-9) + 1e-15)


def test_the_envelope_is_needed_because_neither_distribution_is_above_the_other() -> None:
    t = np.array([0.2, 1.0, 5.0])
    alone, displaced = ShiftedGaussian(1.0).call(t), DilutedRatio(ShiftedGaussian(2.0), 0.5).call(t)
    assert alone[0] > displaced[0]
    assert alone[2] < displaced[2]


# Simulation of the protocol itself


class Campaign:
    """Slots of a plane, what others put there, and who would be displaced: all of it fixed (F).

    Slot i holds ``loads[i]`` others, all with the update ``theirs``; a slot uses up to ``capacity``
    reports, each with noise ``noise`` per coordinate (the clip is 1), and fills up with dummies.
    """

    def __init__(
        self,
        loads: tuple[int, ...],
        capacity: int,
        noise: float,
        participation: float,
        theirs: tuple[float, float],
    ) -> None:
        self.loads, self.capacity, self.noise = np.array(loads), capacity, noise
        self.participation, self.theirs = participation, np.array(theirs)
        self.deviation = noise * math.sqrt(capacity)
        self.weights = np.where(
            self.loads < capacity, 1.0, capacity / (np.maximum(self.loads, capacity) + 1.0)
        )
        used = np.minimum(self.loads, capacity)
        self.centres = used[:, None] * self.theirs
        self.displaced = np.where((self.loads >= capacity)[:, None], self.theirs, 0.0)
        self.accounted = GaussianCampaign(self.deviation, len(loads), participation, capacity)

    def run(self, rng: np.random.Generator, runs: int, update: np.ndarray | None) -> np.ndarray:
        """What the slots release, report by report: draws of shape (runs, slots, 2)."""
        slots = len(self.loads)
        noise = rng.normal(size=(runs, slots, self.capacity, 2)).sum(axis=2) * self.noise
        released = self.centres + noise
        if update is None:
            return released
        present = rng.random(runs) < self.participation
        where = rng.integers(slots, size=runs)
        tickets = rng.random((runs, int(self.loads.max()) + 1))  # the lowest K tickets are used
        rank = np.zeros(runs, dtype=int)
        for other in range(int(self.loads.max())):
            rank += (tickets[:, other + 1] < tickets[:, 0]) & (other < self.loads[where])
        chosen = present & (rank < self.capacity)
        rows = np.flatnonzero(chosen)
        released[rows, where[rows]] += update - self.displaced[where[rows]]
        return released

    def ratio(self, released: np.ndarray, update: np.ndarray) -> np.ndarray:
        """Density of the releases with the client (holding ``update``) over that without it."""
        moved = update - self.displaced
        from_centre = released - self.centres
        exponent = (from_centre * moved).sum(axis=2) - (moved**2).sum(axis=1) / 2
        inner = 1 - self.weights + self.weights * np.exp(exponent / self.deviation**2)
        return 1 - self.participation + self.participation * inner.mean(axis=1)


def confident(samples: np.ndarray) -> tuple[float, float]:
    """Hoeffding bounds on the mean of samples in [0, 1], each failing with probability FAILURE."""
    margin = math.sqrt(math.log(1 / FAILURE) / (2 * len(samples)))
    return float(samples.mean()) - margin, float(samples.mean()) + margin


UPDATE = np.array([1.0, 0.0])
SETTINGS = [
    # loads, capacity, noise of a report, participation, others' update
    pytest.param(Campaign((0, 0, 0, 0, 0), 1, 1.0, 1.0, (0.0, 0.0)), id="alone"),
    pytest.param(Campaign((0, 0, 0), 3, 0.6, 0.5, (0.0, 0.0)), id="alone among dummies"),
    pytest.param(Campaign((1, 1, 1, 1), 1, 1.0, 1.0, (-1.0, 0.0)), id="one opponent in every slot"),
    pytest.param(Campaign((2, 2, 2), 2, 0.7, 1.0, (-1.0, 0.0)), id="two opponents in every slot"),
    pytest.param(Campaign((0, 1, 2, 5), 2, 1.0, 0.6, (-0.6, 0.8)), id="a mixture"),
]


@pytest.mark.parametrize("campaign", SETTINGS)
def test_simulated_runs_never_leak_more_than_the_add_remove_bound(campaign: Campaign) -> None:
    """Failure probability: 6e-6 per setting (six Hoeffding bounds over 40,000 runs)."""
    rng = np.random.default_rng(20200713)
    bound = AddRemove(campaign.accounted, delta=1e-6, cells=128)
    with_client = campaign.ratio(campaign.run(rng, 40_000, UPDATE), UPDATE)
    without = campaign.ratio(campaign.run(rng, 40_000, None), UPDATE)
    for epsilon in (0.1, 0.5, 1.5):
        e = math.exp(epsilon)
        remove = confident(np.maximum(1 - e / with_client, 0.0))
        add = confident(np.maximum(1 - e * without, 0.0))
        assert remove[0] <= bound.remove_upper(epsilon)
        assert add[0] <= bound.add_upper(epsilon)
        if not any(campaign.loads):
            assert max(remove[1], add[1]) >= bound.lower(epsilon)


@pytest.mark.parametrize("campaign", SETTINGS)
def test_simulated_runs_never_leak_more_than_the_replace_one_bound(campaign: Campaign) -> None:
    """Failure probability: 4e-6 per setting (four Hoeffding bounds over 40,000 runs)."""
    rng = np.random.default_rng(20200713)
    bound = GaussianReplaceOne(campaign.accounted, delta=1e-6, cells=128)
    alone = GaussianReplaceOne(campaign.accounted.uncapped, delta=1e-6, cells=128)
    for one, other in ((UPDATE, -UPDATE), (-UPDATE, UPDATE)):
        released = campaign.run(rng, 40_000, one)
        losses = campaign.ratio(released, one) / campaign.ratio(released, other)
        for epsilon in (0.1, 1.0):
            found = confident(np.maximum(1 - math.exp(epsilon) / losses, 0.0))
            assert found[0] <= bound.upper(epsilon)
            if not any(campaign.loads):
                assert found[1] >= alone.lower(epsilon)


# A few slots, by direct quadrature


def deviates(slots: int) -> tuple[np.ndarray, float]:
    """Nodes for all slots but one, and a factor for what trapezoids lose at the kink of a call."""
    return (
        (np.linspace(-11.0, 14.0, 40_001), 1 + 1e-5)
        if slots == 2
        else (np.linspace(-11.0, 14.0, 501), 1 + 2e-3)
    )


def sums(
    values: np.ndarray, probabilities: np.ndarray, copies: int
) -> tuple[np.ndarray, np.ndarray]:
    """All sums of ``copies`` draws, with their probabilities."""
    total, probability = np.zeros(1), np.ones(1)
    for _ in range(copies):
        total = np.add.outer(total, values).ravel()
        probability = np.multiply.outer(probability, probabilities).ravel()
    return total, probability


@pytest.mark.slow
@examples(20, soak=1000)
@given(
    noise=st.floats(0.3, 5.0),
    slots=st.sampled_from([2, 3]),
    participation=st.one_of(st.just(1.0), st.floats(0.01, 1.0)),
    share=st.floats(0.0, 1.2),
    cells=st.sampled_from([32, 200]),
)
def test_two_or_three_slots_are_bracketed_down_to_the_smallest_delta(
    noise: float, slots: int, participation: float, share: float, cells: int
) -> None:
    """delta of all but one slot by trapezoids over the deviate, of the last in closed form."""
    s = 1.0 / noise
    g, slack = deviates(slots)
    probability = norm.pdf(g) * (g[1] - g[0])
    others, probabilities = sums(np.exp(s * g - s * s / 2), probability, slots - 1)
    epsilon = share * math.log1p(participation / slots * math.expm1(s * s / 2 + 6 * s))
    e, rest = math.exp(epsilon), 1.0 - participation
    calls = ShiftedGaussian(s).call(slots / participation * (e - rest) - others)
    puts = ShiftedGaussian(s).put(slots / participation * (1 / e - rest) - others)
    remove = participation / slots * float(calls @ probabilities)
    add = e * participation / slots * float(puts @ probabilities)
    campaign = GaussianCampaign(noise, slots, participation)
    bound = AddRemove(campaign, delta=max(remove, add, 1e-30), cells=cells)
    assert remove <= bound.remove_upper(epsilon) * slack + 1e-18
    assert add <= bound.add_upper(epsilon) * slack + 1e-18
    assert bound.lower(epsilon) <= max(remove, add) * slack + 1e-18


@pytest.mark.slow
@examples(20, soak=1000)
@given(
    noise=st.floats(0.5, 5.0),
    slots=st.sampled_from([2, 3]),
    participation=st.one_of(st.just(1.0), st.floats(0.01, 1.0)),
    share=st.floats(0.0, 1.2),
    cells=st.sampled_from([32, 200]),
    make=st.sampled_from([ReplaceOne, GaussianReplaceOne]),
)
def test_replacing_in_two_or_three_slots_is_bracketed(
    noise: float,
    slots: int,
    participation: float,
    share: float,
    cells: int,
    make: type[ReplaceOne] | type[GaussianReplaceOne],
) -> None:
    s = 1.0 / noise
    epsilon = share * math.log1p(participation / slots * math.expm1(2 * s * s + 10 * s))
    e = math.exp(epsilon)
    g, slack = deviates(slots)
    probability = norm.pdf(g) * (g[1] - g[0])
    values = np.exp(s * g - s * s / 2) - e * np.exp(-s * g - s * s / 2)
    others, probabilities = sums(values, probability, slots - 1)
    room = slots * (1 - participation) / participation * math.expm1(epsilon)
    calls = AntipodalGaussian(s, epsilon).call(room - others)
    truth = participation / slots * float(calls @ probabilities)
    campaign = GaussianCampaign(noise, slots, participation)
    bound = make(campaign, delta=max(truth, 1e-30), cells=cells)
    noise_floor = 1e-16 * e  # the closed form of the last slot cancels
    assert truth <= bound.upper(epsilon) * slack + noise_floor
    assert bound.lower(epsilon) <= truth * slack + noise_floor


# Rounding


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "displaces", "last"),
    [
        (AddRemove, None, 2e-3),
        (AddRemove, 2, None),
        (GaussianReplaceOne, None, 4e-3),
        (GaussianReplaceOne, 2, None),
    ],
)
def test_the_bracket_closes_as_the_grid_is_refined(
    make: type[AddRemove] | type[GaussianReplaceOne],
    displaces: int | None,
    last: float | None,
) -> None:
    found = [
        certified(make, noise=1.5, slots=40, participation=0.7, displaces=displaces, cells=cells)
        for cells in (64, 128, 256, 512)
    ]
    slack = 1 + 2e-4  # the precision of the search, replace-one
    for coarse, fine in itertools.pairwise(found):
        assert fine.upper <= coarse.upper * slack
        assert coarse.lower <= fine.lower * slack
    uppers = np.array([interval.upper for interval in found])
    assert abs(uppers[3] - uppers[2]) < abs(uppers[1] - uppers[0])
    if last is not None:
        assert found[-1].upper <= found[-1].lower * (1 + last)


@pytest.mark.parametrize("noise", [0.3, 1.0, 10.0])
@pytest.mark.parametrize("slots", [1, 10, 1000])
@pytest.mark.parametrize("delta", [1e-5, 1e-12])
def test_lower_and_upper_are_within_a_hundredth(noise: float, slots: int, delta: float) -> None:
    found = certified(AddRemove, noise=noise, slots=slots, delta=delta)
    assert 0.0 < found.lower <= found.upper <= 1.01 * found.lower


@pytest.mark.parametrize("make", [AddRemove, GaussianReplaceOne])
@pytest.mark.parametrize("displaces", [None, 1])
@pytest.mark.parametrize("noise", [LEAST_SLOT_NOISE, 0.3, 0.5, 1e4, MOST_SLOT_NOISE])
@pytest.mark.parametrize("slots", [1, 2, 20])
def test_every_noise_a_design_may_have_can_be_accounted_for(
    make: type[AddRemove] | type[GaussianReplaceOne],
    displaces: int | None,
    noise: float,
    slots: int,
) -> None:
    found = certified(make, noise=noise, slots=slots, displaces=displaces, cells=64)
    assert 0.0 <= found.lower <= found.upper < math.inf


@pytest.mark.parametrize("noise", [100.0, 1e4, 1e6])
@pytest.mark.parametrize("slots", [3, 50])
def test_much_noise_is_a_gaussian_mechanism_with_more_of_it(noise: float, slots: int) -> None:
    """f - 1 is nearly normal with deviation 1/(noise sqrt(slots)) where noise is large."""
    delta = 1e-6 / noise
    found = certified(AddRemove, noise=noise, slots=slots, delta=delta)
    exact = noise * math.sqrt(slots)
    assert gaussian_mechanism(exact, found.upper * (1 - 1e-2)) > delta
    assert gaussian_mechanism(exact, found.upper * (1 + 1e-2)) < delta
    assert gaussian_mechanism(exact, found.lower * (1 - 1e-3)) > delta * (1 - 1e-2)


# Order


campaigns = st.builds(
    GaussianCampaign,
    st.floats(0.4, 20.0),
    st.integers(1, 60),
    st.one_of(st.just(1.0), st.floats(0.01, 1.0)),
    st.sampled_from([None, 1, 4]),
)
small_deltas = st.sampled_from([1e-3, 1e-6, 1e-10])
FEW = 96  # cells: enough for an order that allows for the grid


@cache
def cost(campaign: GaussianCampaign, delta: float, make=AddRemove) -> Interval:  # type: ignore[no-untyped-def]
    return make(campaign, delta=delta, cells=FEW).epsilon(delta)


@given(campaign=campaigns, delta=small_deltas)
def test_lower_never_exceeds_upper(campaign: GaussianCampaign, delta: float) -> None:
    bound = AddRemove(campaign, delta=delta, cells=FEW)
    for epsilon in (0.0, 0.1, 1.0):
        assert 0.0 <= bound.lower(epsilon) <= bound.upper(epsilon) <= 1.0


@given(campaign=campaigns, delta=small_deltas)
def test_an_epsilon_keeps_its_delta(campaign: GaussianCampaign, delta: float) -> None:
    bound = AddRemove(campaign, delta=delta, cells=FEW)
    found = bound.epsilon(delta)
    assert bound.upper(found.upper) <= delta
    assert found.lower == 0.0 or bound.lower(found.lower) > delta


def no_larger(one: Interval, other: Interval) -> None:
    """The first epsilon is at most the second, up to the widths of their intervals."""
    assert one.lower <= other.upper
    assert one.upper <= other.upper * 1.05 + 1e-12


@examples(20, soak=1000)
@given(campaign=campaigns, delta=small_deltas, more=st.floats(1.0, 5.0))
def test_more_noise_never_raises_epsilon(
    campaign: GaussianCampaign, delta: float, more: float
) -> None:
    noisier = replace(campaign, noise=campaign.noise * more)
    no_larger(cost(noisier, delta), cost(campaign, delta))


@examples(20, soak=1000)
@given(campaign=campaigns, delta=small_deltas, more=st.integers(1, 40))
def test_more_slots_never_raise_epsilon(
    campaign: GaussianCampaign, delta: float, more: int
) -> None:
    longer = replace(campaign, slots=campaign.slots + more)
    no_larger(cost(longer, delta), cost(campaign, delta))


@examples(20, soak=1000)
@given(campaign=campaigns, delta=small_deltas, less=st.floats(0.1, 1.0))
def test_less_participation_never_raises_epsilon(
    campaign: GaussianCampaign, delta: float, less: float
) -> None:
    rarer = replace(campaign, participation=campaign.participation * less)
    no_larger(cost(rarer, delta), cost(campaign, delta))


@examples(20, soak=1000)
@given(campaign=campaigns, delta=small_deltas, more=st.floats(1.0, 100.0))
def test_a_larger_delta_never_needs_a_larger_epsilon(
    campaign: GaussianCampaign, delta: float, more: float
) -> None:
    no_larger(cost(campaign, min(0.9, delta * more)), cost(campaign, delta))


@examples(20, soak=1000)
@given(campaign=campaigns, delta=small_deltas, capacity=st.integers(1, 20))
def test_being_able_to_displace_never_lowers_epsilon(
    campaign: GaussianCampaign, delta: float, capacity: int
) -> None:
    alone, displacing = (replace(campaign, capacity=most) for most in (None, capacity))
    no_larger(cost(alone, delta), cost(displacing, delta))


@examples(20, soak=1000)
@given(campaign=campaigns, delta=small_deltas)
def test_never_above_what_one_known_slot_costs(campaign: GaussianCampaign, delta: float) -> None:
    no_larger(cost(campaign, delta), cost(replace(campaign, slots=1), delta))


@settings(max_examples=15)
@given(campaign=campaigns, share=st.floats(0.05, 1.0))
def test_replacing_has_no_larger_epsilon_than_removing_and_adding(
    campaign: GaussianCampaign, share: float
) -> None:
    """The truth obeys delta(e1 + e2) <= delta_remove(e1) + e^e1 delta_add(e2)."""
    away = AddRemove(campaign, delta=1e-6, cells=FEW)
    epsilon = share * away.epsilon(1e-6).upper
    direct = GaussianReplaceOne(campaign, delta=1e-6, cells=FEW)
    for part in (0.3, 0.5, 0.7):
        one, two = part * epsilon, (1 - part) * epsilon
        split = away.remove_upper(one) + math.exp(one) * away.add_upper(two)
        assert direct.lower(epsilon) <= split * (1 + 1e-6)


@settings(max_examples=15)
@given(campaign=campaigns, epsilon=st.floats(0.0, 2.0))
def test_replacing_is_never_cheaper_than_removing(
    campaign: GaussianCampaign, epsilon: float
) -> None:
    """Data near zero look like nobody's."""
    truth = AddRemove(campaign, delta=1e-6, cells=FEW).lower(epsilon)
    assert truth <= GaussianReplaceOne(campaign, delta=1e-6, cells=FEW).upper(epsilon) + 1e-12


@settings(max_examples=20)
@given(campaign=campaigns, delta=small_deltas, done=st.floats(0.01, 1.0))
def test_spending_so_far_never_exceeds_the_whole(
    campaign: GaussianCampaign, delta: float, done: float
) -> None:
    k = max(1, int(done * campaign.slots))
    so_far = replace(campaign, slots=k, participation=campaign.participation * k / campaign.slots)
    no_larger(cost(so_far, delta), cost(campaign, delta))


def test_a_heavy_ratio_over_many_slots_is_accounted_for_and_not_given_up() -> None:
    campaign = GaussianCampaign(0.3, 100_000, 1.0)
    bounds = GaussianReplaceOne(campaign, delta=1e-8, cells=400).epsilon(1e-8)
    assert 12.1 < bounds.lower < bounds.upper < 12.5
