"""Step sizes and excess-risk bounds: their lemmas by enumeration, the bounds by simulation."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkins.accounting.paper import occupancy, utility
from checkins.errors import InvalidValue, NotCovered

TASK = {"lipschitz": 1.0, "diameter": 1.0, "dimension": 10, "noise_std": 0.3}


def test_the_rate_and_risk_of_the_fixed_window_are_the_printed_ones():
    values = {"clients": 1000, "slots": 500, "participation": 1.0} | TASK
    kept, moment = 1.0 - 2.0 * math.exp(-2.0), 10 * 0.09 + 1.0
    assert utility.fixed_window_rate(**values) == pytest.approx(kept / math.sqrt(moment))
    rate = utility.fixed_window_rate(**values)
    squared = (1.0 / rate + rate * moment / kept**2) * (2.0 + math.log(500)) / math.sqrt(500)
    assert utility.fixed_window_risk(**values) == pytest.approx(squared)


def test_too_few_check_ins_are_refused_and_never_give_a_negative_rate():
    values = {"clients": 100, "slots": 100, "participation": 0.6} | TASK
    for function in (utility.fixed_window_rate, utility.fixed_window_risk):
        with pytest.raises(NotCovered, match=r"participation above 0\.6931") as refusal:
            function(**values)
        assert refusal.value.name == "participation"


@given(clients=st.integers(1, 10**6), slots=st.integers(1, 10**6), share=st.floats(0.01, 1.0))
def test_the_fixed_bound_follows_from_the_proved_one_rescaled_or_not(clients, slots, share):
    values = {"clients": clients, "slots": slots, "participation": share}
    try:
        rate = utility.fixed_window_rate(**values, **TASK)
    except NotCovered:
        return
    risk = utility.fixed_window_risk(**values, **TASK)
    factor = 1.0 / (1.0 - occupancy.empty_probability(**values))
    for used in (rate, rate * factor):
        proved = utility.last_iterate_risk(rate=used, second_moment=1.9, diameter=1.0, **values)
        assert 0.0 < proved <= risk


def test_averaging_uses_the_exact_mean_inverse_load():
    share = occupancy.expected_inverse_load(clients=1000, slots=100)
    assert utility.averaged_rate(clients=1000, slots=100, **TASK) == pytest.approx(
        1.0 / math.sqrt(1.0 + 0.9 * share)
    )
    step = utility.averaged_smooth_step(clients=1000, slots=100, smoothness=2.0, **TASK)
    assert step == pytest.approx(1.0 / (2.0 + math.sqrt(1.9 * share) * 10.0))


def test_with_full_slots_the_smooth_bound_is_the_textbook_one_and_the_start():
    found = utility.averaged_smooth_risk(clients=10**6, slots=100, smoothness=2.0, **TASK)
    deviation = math.sqrt(1.9 * occupancy.expected_inverse_load(clients=10**6, slots=100))
    assert found == pytest.approx(deviation / 10.0 + 2.0 / 200.0 + 1.0 / 100.0)


@given(clients=st.integers(1, 10**5), slots=st.integers(1, 10**5), noise=st.floats(0.0, 10.0))
def test_more_clients_and_less_noise_never_raise_an_averaged_bound(clients, slots, noise):
    def both(**change):
        values = {"clients": clients, "slots": slots} | TASK | {"noise_std": noise} | change
        return (
            utility.averaged_risk(**values),
            utility.averaged_smooth_risk(smoothness=1.0, **values),
        )

    for base, more, quiet in zip(
        both(), both(clients=2 * clients), both(noise_std=noise / 2), strict=True
    ):
        assert 0.0 < quiet <= base
        assert more <= base * (1 + 1e-6)


@settings(max_examples=20)
@given(clients=st.integers(1, 5), slots=st.integers(1, 4))
def test_the_occupancy_lemmas_of_the_proof_hold_by_enumeration(clients, slots):
    """E[(m+1)/(M+1)] ≤ 1/q; E[1/S | M] rises with M; E of it is at most E[1/S | S > 0]."""
    inverse, probability, shrink = defaultdict(list), defaultdict(float), 0.0
    weight = slots**-clients
    for pattern in itertools.product(range(slots), repeat=clients):
        loads = np.bincount(pattern, minlength=slots)
        occupied = int((loads > 0).sum())
        probability[occupied] += weight
        shrink += weight * (slots + 1) / (occupied + 1)
        inverse[occupied].append(float((1.0 / loads[loads > 0]).mean()))
    used = 1.0 - occupancy.empty_probability(clients=clients, slots=slots, participation=1.0)
    assert shrink <= 1.0 / used + 1e-9
    means = {occupied: float(np.mean(values)) for occupied, values in inverse.items()}
    ordered = [means[occupied] for occupied in sorted(means)]
    assert all(left <= right + 1e-12 for left, right in itertools.pairwise(ordered))
    mean = sum(probability[occupied] * means[occupied] for occupied in means)
    assert mean <= occupancy.expected_inverse_load(clients=clients, slots=slots)


@pytest.mark.parametrize(("slots", "occupied"), [(5, 2), (6, 6), (7, 3), (4, 0)])
def test_the_telescope_of_the_proof_sums_to_its_closed_form(slots, occupied):
    total, subsets = 0.0, list(itertools.combinations(range(1, slots + 1), occupied))
    end = slots + 1
    for subset in subsets:
        backwards = [end, *reversed(subset)]
        total += end / (occupied + 1)
        total += sum((end - backwards[j - 1] + 1) / (j * (j - 1)) for j in range(2, occupied + 2))
    harmonic = sum(1.0 / k for k in range(1, occupied + 2))
    closed = (end * harmonic + occupied) / (occupied + 1)
    assert total / len(subsets) == pytest.approx(closed)


def _simulate(*, clients, slots, rates, noise_std, averaged, runs, seed):
    """SGD on F(θ) = E|θ − d| over [−½, ½], d = ½ with probability 0.7: θ* = ½, risk 0.4(½ − θ)."""
    rng = np.random.default_rng(seed)
    model = np.full(runs, -0.5)
    mean = model.copy()
    left = np.full(runs, clients)
    for slot in range(slots):
        load = rng.binomial(left, 1.0 / (slots - slot))
        left = left - load
        used = load if averaged else np.minimum(load, 1)
        plus = rng.binomial(used, 0.7)
        slope = np.where(used > 0, (used - 2.0 * plus) / np.maximum(used, 1), 0.0)
        noise = rng.normal(0.0, noise_std, runs) / np.sqrt(np.maximum(used, 1))
        move = np.where((used > 0) | (not averaged), slope + noise, 0.0)
        model = np.clip(model - rates[slot] * move, -0.5, 0.5)
        mean += model
    return 0.4 * (0.5 - model).mean(), 0.4 * (0.5 - mean / (slots + 1)).mean()


@pytest.mark.parametrize(("clients", "slots"), [(60, 40), (400, 40)])
def test_simulated_training_stays_below_the_bounds(clients, slots):
    """Seeded; the bounds exceed the means by far more than the 0.01 that 4,000 runs can err by."""
    task = {"lipschitz": 1.0, "diameter": 1.0, "dimension": 1, "noise_std": 0.5}
    size = {"clients": clients, "slots": slots}
    run = {"noise_std": 0.5, "runs": 4000, "seed": 3} | size
    roots = np.sqrt(np.arange(1, slots + 1))

    rate = utility.fixed_window_rate(participation=1.0, **size, **task)
    last, _ = _simulate(rates=rate / roots, averaged=False, **run)
    proved = utility.last_iterate_risk(
        participation=1.0, rate=rate, second_moment=1.25, diameter=1.0, **size
    )
    assert last + 0.01 <= proved <= utility.fixed_window_risk(participation=1.0, **size, **task)

    rate = utility.averaged_rate(**size, **task)
    last, _ = _simulate(rates=rate / roots, averaged=True, **run)
    assert last + 0.01 <= utility.averaged_risk(**size, **task)

    step = utility.averaged_smooth_step(smoothness=1e-9, **size, **task)
    _, mean = _simulate(rates=np.full(slots, step), averaged=True, **run)
    assert mean + 0.01 <= utility.averaged_smooth_risk(smoothness=1e-9, **size, **task)


def test_a_protocol_that_no_client_joins_has_no_finite_risk():
    assert (
        utility.last_iterate_risk(
            clients=5, slots=5, participation=0.0, rate=1.0, second_moment=1.0, diameter=1.0
        )
        == math.inf
    )


@pytest.mark.parametrize("name", ["lipschitz", "diameter", "dimension", "noise_std", "smoothness"])
def test_a_value_out_of_range_is_refused_by_name(name):
    values = {"clients": 10, "slots": 5, "smoothness": 1.0} | TASK | {name: -1}
    with pytest.raises(InvalidValue) as refusal:
        utility.averaged_smooth_risk(**values)
    assert refusal.value.name == name
