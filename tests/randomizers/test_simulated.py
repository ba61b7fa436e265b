"""The samplers of simulation have the laws that the descriptions promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import betaincc
from scipy.stats import kstest, laplace, norm

from checkins.errors import InvalidValue
from checkins.randomizers import (
    Gaussian,
    Laplace,
    PrivUnit,
    RandomizedResponse,
    Simulated,
    simulate_dummies,
    simulate_reports,
)
from checkins.randomizers.simulated import _draw_components, _draw_points_around
from tests.randomizers.evidence import FAILURE, deviates, proven_epsilon

DRAWS = 50_000
ADDITIVE = [Gaussian(2.0, 0.7), Laplace(2.0, 3.0)]
UNITS = [
    PrivUnit(clip=2.0, local_epsilon=local_epsilon, dimension=dimension)
    for dimension in (1, 2, 10)
    for local_epsilon in (0.5, 6.0)
]
RESPONSES = [RandomizedResponse(k, local_epsilon) for k in (2, 5) for local_epsilon in (0.5, 3.0)]


def seeded(seed: int = 20_200_715) -> np.random.Generator:
    return np.random.default_rng(seed)


def name_of(value: object) -> str:
    return repr(value)


def repeated(row: list[float]) -> np.ndarray:
    return np.tile(np.asarray(row, dtype=np.float64), (DRAWS, 1))


def direction(dimension: int) -> np.ndarray:
    v = np.arange(1.0, dimension + 1.0)
    return v / np.linalg.norm(v)


# Privacy, by exact binomial bounds on events that tell inputs apart best


@pytest.mark.parametrize("unit", UNITS, ids=name_of)
def test_no_event_tells_opposite_directions_apart_by_more_than_epsilon(unit: PrivUnit) -> None:
    """The events are caps: false with probability FAILURE at most, and nearly attained."""
    v, cap, draw = direction(unit.dimension), unit.cap, seeded()
    samples = {
        name: simulate_reports(unit, repeated(x), draw).values
        for name, x in {"there": 2 * v, "back": -2 * v, "zero": 0 * v}.items()
    }
    samples["dummy"] = simulate_dummies(
        unit, count=DRAWS, dimension=unit.dimension, generator=draw
    ).values
    hits = {
        (name, sign): sign * rows @ v >= cap.threshold * unit.report_norm
        for name, rows in samples.items()
        for sign in (1, -1)
    }
    worst = max(
        proven_epsilon(hits[here, sign], hits[there, sign], failure=FAILURE / 32)
        for here in samples
        for there in samples
        for sign in (1, -1)
    )
    assert worst <= unit.local_epsilon
    # A leakier sampler would be seen: what is proven comes close to what is promised.
    assert worst >= 0.75 * unit.local_epsilon


@pytest.mark.parametrize("local_epsilon", [0.5, 2.0])
def test_laplace_reports_and_dummies_differ_by_no_more_than_epsilon(local_epsilon: float) -> None:
    noise, draw = Laplace(1.0, local_epsilon), seeded()
    inputs = [[5.0, 0.0], [-5.0, 0.0], [0.0, 0.0]]
    samples = [simulate_reports(noise, repeated(x), draw).values for x in inputs]
    samples.append(simulate_dummies(noise, count=DRAWS, dimension=2, generator=draw).values)
    hits = [rows[:, 0] >= 1.0 for rows in samples]
    pairs = [(a, b) for a in hits for b in hits]
    worst = max(proven_epsilon(a, b, failure=FAILURE / 16) for a, b in pairs)
    assert 0.75 * local_epsilon <= worst <= local_epsilon


@pytest.mark.parametrize("response", RESPONSES, ids=name_of)
def test_no_category_tells_categories_and_dummies_apart_by_more_than_epsilon(
    response: RandomizedResponse,
) -> None:
    k, draw = response.categories, seeded()
    samples = [simulate_reports(response, np.full(DRAWS, c), draw).values for c in range(k)]
    samples.append(simulate_dummies(response, count=DRAWS, dimension=k, generator=draw).values)
    hits = [rows > 0.5 for rows in samples]
    worst = max(
        proven_epsilon(a[:, c], b[:, c], failure=FAILURE / (k * (k + 1) ** 2))
        for a in hits
        for b in hits
        for c in range(k)
    )
    assert 0.75 * response.local_epsilon <= worst <= response.local_epsilon


# Bias and variance


@pytest.mark.parametrize("randomizer", [*ADDITIVE, *UNITS], ids=name_of)
@pytest.mark.parametrize("length", [0.0, 0.4, 50.0])
def test_bias_and_variance_are_the_documented_ones(
    randomizer: Gaussian | Laplace | PrivUnit, length: float
) -> None:
    """Means of DRAWS draws, all coordinates at once: FAILURE each."""
    d = randomizer.dimension if isinstance(randomizer, PrivUnit) else 3
    order = 1 if isinstance(randomizer, Laplace) else 2
    v = direction(d)
    v /= np.linalg.norm(v, order)
    clipped = min(length, randomizer.clip) * v
    errors = simulate_reports(randomizer, repeated(length * v), seeded()).values - clipped
    wide = deviates(tests=2 * d + 2) / math.sqrt(DRAWS)
    assert np.all(np.abs(errors.mean(axis=0)) <= wide * errors.std(axis=0) + 1e-12)
    squares = (errors**2).sum(axis=1)
    documented = randomizer.variance(dimension=d, norm=float(np.linalg.norm(clipped)))
    assert abs(squares.mean() - documented) <= wide * squares.std() + 1e-9 * documented


@pytest.mark.parametrize("response", RESPONSES, ids=name_of)
def test_response_vectors_are_unbiased_with_the_documented_variance(
    response: RandomizedResponse,
) -> None:
    k = response.categories
    errors = simulate_reports(response, np.full(DRAWS, 1), seeded()).values - np.eye(k)[1]
    wide = deviates(tests=2 * k + 2) / math.sqrt(DRAWS)
    assert np.all(np.abs(errors.mean(axis=0)) <= wide * errors.std(axis=0))
    squares = (errors**2).sum(axis=1)
    assert abs(squares.mean() - response.variance(dimension=k)) <= wide * squares.std()


@pytest.mark.parametrize("randomizer", [*ADDITIVE, *UNITS], ids=name_of)
def test_a_dummy_is_the_report_of_a_zero_update(randomizer: Gaussian | Laplace | PrivUnit) -> None:
    """Kolmogorov-Smirnov on a projection, two-sample by hand: level FAILURE."""
    d = randomizer.dimension if isinstance(randomizer, PrivUnit) else 3
    draw = seeded()
    dummies = simulate_dummies(randomizer, count=DRAWS, dimension=d, generator=draw).values
    zeros = simulate_reports(randomizer, np.zeros((DRAWS, d)), draw).values
    here, there = np.sort(dummies @ direction(d)), np.sort(zeros @ direction(d))
    # Signs in one dimension are compared as they are; rounding differs between the two paths.
    points = (here + there) / 2
    gap = np.abs(
        np.searchsorted(here, points, "right") - np.searchsorted(there, points, "right")
    ).max()
    assert gap / DRAWS <= math.sqrt(math.log(2 / FAILURE) / DRAWS)


# Laws


def test_additive_noise_has_its_law_on_top_of_the_clipped_update() -> None:
    """Level FAILURE each."""
    for randomizer, law in zip(
        ADDITIVE, [norm(0, ADDITIVE[0].std), laplace(0, ADDITIVE[1].scale)], strict=True
    ):
        noise = simulate_reports(randomizer, repeated([7.0, 0.0]), seeded()).values - [2.0, 0.0]
        assert kstest(noise[:, 0], law.cdf).pvalue > FAILURE
        assert kstest(noise[:, 1], law.cdf).pvalue > FAILURE


@pytest.mark.parametrize("dimension", [2, 3, 7, 1000, 10**6, 10**8])
@pytest.mark.parametrize("local_epsilon", [1e-3, 0.5, 8.0, 30.0])
def test_the_component_along_the_direction_has_the_promised_law(
    dimension: int, local_epsilon: float
) -> None:
    """Kolmogorov-Smirnov against the mixture of the two parts of the beta law; FAILURE each."""
    unit = PrivUnit(clip=1.0, local_epsilon=local_epsilon, dimension=dimension)
    cap, half = unit.cap, (dimension - 1) / 2
    cosine, sine = _draw_components(unit, DRAWS, seeded())
    np.testing.assert_allclose(cosine**2 + sine**2, 1.0, rtol=1e-12)

    def law(t: np.ndarray) -> np.ndarray:
        both = betaincc(0.5, half, t * t) / 2
        above = np.where(t > 0, both, 1.0 - both)
        in_cap = 1.0 - np.minimum(above / cap.mass, 1.0)
        beyond = np.minimum((1.0 - above) / (1.0 - cap.mass), 1.0)
        return cap.inside * in_cap + cap.outside * beyond

    assert kstest(cosine, law).pvalue > FAILURE


def test_every_report_has_the_same_norm() -> None:
    unit = PrivUnit(clip=3.0, local_epsilon=5.0, dimension=1000)
    values = simulate_reports(unit, seeded().standard_normal((100, 1000)), seeded()).values
    np.testing.assert_allclose(np.linalg.norm(values, axis=1), unit.report_norm, rtol=1e-12)


@pytest.mark.parametrize("unit", [u for u in UNITS if u.dimension > 1], ids=name_of)
def test_across_the_direction_points_are_uniform(unit: PrivUnit) -> None:
    """No side is preferred, whatever the component along it: means of signs, FAILURE each."""
    v = np.zeros((DRAWS, unit.dimension))
    v[:, 0] = 1.0
    points = _draw_points_around(unit, v, seeded())
    signs = np.sign(points[:, 1:])
    assert np.all(np.abs(signs.mean(axis=0)) <= deviates(tests=unit.dimension) / math.sqrt(DRAWS))


# The edge


def test_reports_are_marked_and_reproducible() -> None:
    update = np.ones((3, 2))
    for randomizer in (*ADDITIVE, PrivUnit(1.0, 1.0, 2)):
        one = simulate_reports(randomizer, update, seeded(1))
        two = simulate_reports(randomizer, update, seeded(1))
        assert isinstance(one, Simulated)
        assert one.simulated is True
        np.testing.assert_array_equal(one.values, two.values)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e308, 5e-324, -0.0])
@pytest.mark.parametrize("randomizer", [*ADDITIVE, PrivUnit(2.0, 1.0, 2)], ids=name_of)
def test_strange_updates_give_ordinary_reports(
    randomizer: Gaussian | Laplace | PrivUnit, bad: float
) -> None:
    values = simulate_reports(randomizer, np.full((50, 2), bad), seeded()).values
    assert np.isfinite(values).all()
    assert np.abs(values).max() < 100.0


def test_a_tiny_update_still_has_a_direction() -> None:
    """Its sign is a fair coin, its axis is kept; with a large budget nearly all reports show it."""
    unit = PrivUnit(clip=1.0, local_epsilon=30.0, dimension=2)
    values = simulate_reports(unit, np.full((1000, 2), 5e-324), seeded()).values
    along = np.abs(values @ [1.0, 1.0]) / math.sqrt(2) / unit.report_norm
    assert (along > 0.999).mean() > 0.9


def test_nobody_at_all_gives_no_reports() -> None:
    for randomizer in (*ADDITIVE, PrivUnit(1.0, 1.0, 2)):
        assert simulate_reports(randomizer, np.zeros((0, 2)), seeded()).values.shape == (0, 2)
    none = simulate_reports(RESPONSES[0], np.zeros(0, np.int64), seeded())
    assert none.values.shape == (0, 2)


def test_a_wrong_shape_category_or_generator_is_refused() -> None:
    unit, response = PrivUnit(1.0, 1.0, 3), RandomizedResponse(3, 1.0)
    with pytest.raises(InvalidValue, match=r"^updates = "):
        simulate_reports(ADDITIVE[0], np.zeros(3), seeded())
    with pytest.raises(InvalidValue, match=r"^dimension = 2: must be 3"):
        simulate_reports(unit, np.zeros((1, 2)), seeded())
    with pytest.raises(InvalidValue, match=r"^dimension = 2: must be 3"):
        simulate_dummies(response, count=1, dimension=2, generator=seeded())
    for bad in ([3], [-1], [0.5], [[0]]):
        with pytest.raises(InvalidValue, match=r"^updates = "):
            simulate_reports(response, bad, seeded())
    with pytest.raises(InvalidValue, match=r"^generator = "):
        simulate_reports(ADDITIVE[0], np.zeros((1, 3)), 7)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(InvalidValue, match=r"^randomizer = "):
        simulate_reports("gaussian", np.zeros((1, 3)), seeded())  # type: ignore[arg-type]  # so too
