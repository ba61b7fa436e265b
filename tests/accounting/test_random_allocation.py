"""Random allocation: k of m steps by enumeration, in closed form, and as campaigns."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from checkins.accounting import (
    Adjacency,
    GaussianNoise,
    RandomAllocation,
    StepDraw,
    certify,
    certify_random_allocation,
)
from checkins.accounting.exact.gaussian import shifted_delta
from checkins.errors import InvalidValue
from tests.accounting.designs import ADD_REMOVE, REPLACE_ONE, at_server

pytestmark = pytest.mark.slow

DELTA = 1e-5
EACH, FIRST, WHOLE = StepDraw.EACH_EPOCH, StepDraw.FIRST_EPOCH, StepDraw.WHOLE_RUN


def allocation(
    steps: int, participations: int, noise: float = 1.5, draw: StepDraw = EACH
) -> RandomAllocation:
    return RandomAllocation(steps, participations, noise, draw)


def epsilon(what: RandomAllocation, adjacency: Adjacency = ADD_REMOVE) -> float:
    found = certify_random_allocation(what, delta=DELTA, adjacency=adjacency, compare=False)
    return found.epsilon


# The theorem: a set of k of m steps, against one step in each of k parts

Atoms = list[tuple[float, float, float]]  # mass under Q, ratio of the data, ratio of the other data


@st.composite
def ratios(draw: st.DrawFn) -> Atoms:
    """Two density ratios with mean 1 on two or three outcomes."""
    size = draw(st.integers(2, 3))
    weights = st.lists(st.floats(0.01, 1.0), min_size=size, max_size=size)
    mass, data, other = (np.array(draw(weights)) for _ in range(3))
    mass /= mass.sum()
    return list(zip(mass, data / (mass @ data), other / (mass @ other), strict=True))


def parts_of(steps: int, participations: int) -> list[range]:
    """The parts that ``RandomAllocation.designs`` stands for, as ranges of steps."""
    parts, start = [], 0
    what = allocation(steps, participations, draw=WHOLE)
    for design in what.designs * what.repeats:
        parts.append(range(start, start + design.slots))
        start += design.slots
    assert start == steps
    return parts


def hockey_sticks(
    atoms: Atoms, steps: int, chosen: list[tuple[int, ...]], epsilon: float
) -> tuple[float, float, float]:
    """Delta of remove, add and replace-one, if each of the sets ``chosen`` is equally likely."""
    remove = add = swap = 0.0
    for outcomes in itertools.product(atoms, repeat=steps):
        mass = math.prod(one[0] for one in outcomes)
        f, g = (
            math.fsum(math.prod(outcomes[i][side] for i in where) for where in chosen) / len(chosen)
            for side in (1, 2)
        )
        remove += mass * max(0.0, f - math.exp(epsilon))
        add += mass * max(0.0, 1.0 - math.exp(epsilon) * f)
        swap += mass * max(0.0, f - math.exp(epsilon) * g)
    return remove, add, swap


@settings(max_examples=30)
@given(
    atoms=ratios(),
    shape=st.sampled_from([(2, 2), (3, 2), (4, 2), (4, 3), (5, 2), (5, 3)]),
    epsilon=st.floats(0.0, 2.0),
)
def test_one_step_in_each_part_costs_no_less_than_any_steps(
    atoms: Atoms, shape: tuple[int, int], epsilon: float
) -> None:
    steps, participations = shape
    anywhere = list(itertools.combinations(range(steps), participations))
    in_parts = list(itertools.product(*parts_of(steps, participations)))
    for whole_run, parts in zip(
        hockey_sticks(atoms, steps, anywhere, epsilon),
        hockey_sticks(atoms, steps, in_parts, epsilon),
        strict=True,
    ):
        assert whole_run <= parts + 1e-12


@given(steps=st.integers(1, 10**6), data=st.data())
def test_every_step_is_in_one_campaign_and_every_participation_too(
    steps: int, data: st.DataObject
) -> None:
    participations = data.draw(st.integers(1, min(steps, 1000)))
    what = allocation(steps, participations, draw=WHOLE)
    assert sum(design.slots for design in what.designs) * what.repeats == steps
    assert len(what.designs) * what.repeats == participations
    assert len({design.slots for design in what.designs}) <= 2


# Against closed forms and other certificates


@pytest.mark.parametrize("adjacency", Adjacency)
def test_an_epoch_is_a_campaign(adjacency: Adjacency) -> None:
    campaigns = certify(at_server(1.5, 5), delta=DELTA, adjacency=adjacency, campaigns=4)
    assert epsilon(allocation(20, 4), adjacency) == campaigns.epsilon


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("draw", StepDraw)
def test_taking_part_in_every_step_is_one_gaussian_with_less_noise(
    draw: StepDraw, adjacency: Adjacency
) -> None:
    what = allocation(9, 9, 6.0, draw)
    clips = 1.0 if adjacency is ADD_REMOVE else 2.0
    found = certify_random_allocation(what, delta=DELTA, adjacency=adjacency)
    shift = clips * math.sqrt(9) / 6.0
    exact = shifted_delta(shift, np.array([found.epsilon, found.epsilon_lower]))
    assert exact[0] <= DELTA <= exact[1] * (1 + 1e-6)
    wider = shifted_delta(shift, np.array([0.97 * found.epsilon]))
    if not (adjacency is REPLACE_ONE and draw is not FIRST):  # there, composing loses more
        assert wider[0] > DELTA


def test_a_step_that_is_kept_has_the_ratio_of_all_its_epochs() -> None:
    """By quadrature over the outputs of two steps, each summed over its three epochs."""
    noise, epochs = 2.0, 3
    found = certify_random_allocation(
        allocation(2 * epochs, epochs, noise, FIRST), delta=DELTA, adjacency=ADD_REMOVE
    )
    z = np.linspace(-10.0, 10.0, 1001)
    weights = np.exp(-(z**2) / 2)
    weights /= weights.sum()
    shift = math.sqrt(epochs) / noise
    one = np.exp(shift * z - shift**2 / 2)
    f = 0.5 * np.add.outer(one, one)

    def delta(at: float) -> float:
        excess = np.maximum(f - math.exp(at), 0.0)
        missing = np.maximum(1.0 - math.exp(at) * f, 0.0)
        return max(float(weights @ excess @ weights), float(weights @ missing @ weights))

    assert delta(found.epsilon) <= DELTA * (1 + 1e-3)
    assert delta(found.epsilon_lower) >= DELTA * (1 - 1e-3)


def test_keeping_a_step_costs_more_than_drawing_it_again() -> None:
    assert epsilon(allocation(60, 3)) < epsilon(allocation(60, 3, draw=FIRST))


def test_steps_that_do_not_divide_evenly_lie_between_those_that_do() -> None:
    fewer, between, more = (epsilon(allocation(m, 4, draw=WHOLE)) for m in (80, 83, 84))
    assert more < between < fewer


@settings(max_examples=3)
@given(
    draw=st.sampled_from(StepDraw),
    noise=st.floats(1.0, 5.0),
    more=st.floats(1.05, 2.0),
    epochs=st.integers(1, 4),
)
def test_more_noise_and_fewer_epochs_never_cost_more(
    draw: StepDraw, noise: float, more: float, epochs: int
) -> None:
    what = allocation(30 * epochs, epochs, noise, draw)
    assert epsilon(replace(what, noise_multiplier=more * noise)) <= epsilon(what)
    longer = replace(what, steps=30 * (epochs + 1), participations=epochs + 1)
    assert epsilon(what) <= epsilon(longer)


def test_random_allocation_costs_less_than_the_poisson_sampling_that_it_is_listed_beside() -> None:
    found = certify_random_allocation(allocation(500, 5, 1.0), delta=DELTA, adjacency=ADD_REMOVE)
    poisson = next(one for one in found.alternatives if one.method == "poisson")
    assert not poisson.proves
    assert found.epsilon < poisson.epsilon < 1.1 * found.epsilon
    kept = allocation(500, 5, 1.0, FIRST)
    beside_kept = certify_random_allocation(kept, delta=DELTA, adjacency=ADD_REMOVE)
    assert beside_kept.alternatives[-1] == poisson


# What a certificate says, and what is refused


@pytest.mark.parametrize(
    ("what", "is_known"),
    [
        (allocation(20, 2, draw=WHOLE), False),
        (allocation(20, 1, draw=WHOLE), True),
        (allocation(3, 3, draw=WHOLE), True),
        (allocation(20, 2, draw=EACH), True),
        (allocation(20, 2, draw=FIRST), True),
    ],
)
def test_a_lower_bound_is_stated_only_if_it_is_known(
    what: RandomAllocation, is_known: bool
) -> None:
    found = certify_random_allocation(what, delta=DELTA, adjacency=ADD_REMOVE)
    assert (found.epsilon_lower > 0.0) is is_known


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (EACH, "in each of 5 epochs, every example draws one of 20 steps uniformly"),
        (FIRST, "takes part in this step of each of 5 epochs"),
        (WHOLE, "draws 5 of 100 steps, every set with the same probability"),
    ],
)
def test_a_certificate_names_the_draw_that_it_assumes(draw: StepDraw, words: str) -> None:
    found = certify_random_allocation(
        allocation(100, 5, 4.0, draw), delta=DELTA, adjacency=ADD_REMOVE
    )
    assert sum(words in line for line in found.assumptions) == 1
    assert any("batches have no fixed size" in line for line in found.assumptions)


@pytest.mark.parametrize("draw", [EACH, FIRST])
def test_epochs_of_different_lengths_are_refused(draw: StepDraw) -> None:
    with pytest.raises(InvalidValue, match="steps = 101: must be a multiple of participations"):
        allocation(101, 5, draw=draw)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("steps", (0, 1, 1.0, EACH)),
        ("participations", (10, 11, 1.0, WHOLE)),
        ("participations", (10, 0, 1.0, WHOLE)),
        ("noise_multiplier", (10, 1, math.nan, EACH)),
        ("noise_multiplier", (10, 1, 0.1, EACH)),
        ("noise_multiplier", (100, 100, 1.9, FIRST)),
        ("noise_multiplier", (10, 1, 2e6, EACH)),
        ("draw", (10, 1, 1.0, "each-epoch")),
    ],
)
def test_what_is_not_covered_is_refused_by_name(name: str, fields: tuple[object, ...]) -> None:
    with pytest.raises(InvalidValue) as refused:
        RandomAllocation(*fields)  # type: ignore[arg-type]
    assert refused.value.name == name


def test_a_description_of_anything_else_is_refused() -> None:
    with pytest.raises(InvalidValue, match="allocation"):
        certify_random_allocation(at_server(1.0), delta=DELTA, adjacency=ADD_REMOVE)  # type: ignore[arg-type]


# A loader that shuffles into batches of a fixed size


def test_no_certificate_holds_for_shuffled_batches_of_a_fixed_size() -> None:
    """One epoch. All other gradients are opposite to that of the example, which then displaces one.

    Replacing the example's gradient by zero changes the shift of its step from 2 to 1, and the
    event that some step exceeds a threshold tells them apart.
    """
    noise, steps = 1.0, 100
    shuffled = 4.0
    threshold = np.linspace(0.0, 10.0, 1001)
    data, zero = (
        1.0 - ndtr(threshold) ** (steps - 1) * ndtr(threshold - shift / noise)
        for shift in (2.0, 1.0)
    )
    assert np.max(data - math.exp(shuffled) * zero) > DELTA
    assert epsilon(allocation(steps, 1, noise)) < 1.0


def test_designs_are_campaigns_with_noise_at_the_server() -> None:
    for draw in StepDraw:
        for design in allocation(20, 4, 2.0, draw).designs:
            assert isinstance(design.randomizer, GaussianNoise)
            assert design.capacity is None
            assert design.participation == 1.0
