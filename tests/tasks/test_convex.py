"""Problems with a known optimum: the risk, the optimum and the constants are what they claim."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import dblquad, quad
from scipy.special import expit

from checkins.errors import InvalidValue
from checkins.tasks import Loss, Problem
from checkins.tasks.data.synthetic import OPTIMUM_NORM_SHARE

problems = st.builds(
    Problem, st.sampled_from(Loss), st.integers(1, 40), st.floats(0.1, 20.0), st.integers(0, 2**40)
)


def inside(problem: Problem, seed: int, share: float) -> np.ndarray:
    """A model at this share of the way out of the ball."""
    direction = np.random.default_rng(seed).normal(size=problem.dimension)
    return direction / np.linalg.norm(direction) * (share * problem.diameter / 2.0)


@given(problems, st.integers(0, 99), st.floats(0.0, 1.0))
def test_no_model_is_better_than_the_optimum(problem: Problem, seed: int, share: float) -> None:
    assert problem.excess_risk(problem.optimum) <= 1e-15
    assert problem.excess_risk(inside(problem, seed, share)) >= 0.0
    norm = float(np.linalg.norm(problem.optimum))
    assert norm == pytest.approx(OPTIMUM_NORM_SHARE * problem.diameter / 2.0)


@given(problems, st.integers(0, 99), st.integers(100, 199))
def test_the_risk_is_convex(problem: Problem, first: int, second: int) -> None:
    one, other = inside(problem, first, 1.0), inside(problem, second, 0.7)
    mean = (problem.excess_risk(one) + problem.excess_risk(other)) / 2.0
    assert problem.excess_risk((one + other) / 2.0) <= mean * (1.0 + 1e-12) + 1e-15


@given(problems, st.integers(0, 99), st.floats(0.0, 1.0))
def test_no_gradient_is_longer_than_the_lipschitz_constant(
    problem: Problem, seed: int, share: float
) -> None:
    model = inside(problem, seed, share)
    features, labels = problem.clients(np.arange(200))
    assert np.allclose(np.linalg.norm(features, axis=1), 1.0, atol=1e-12)
    slopes = problem.loss_derivative(problem.scores(model, features), labels)
    assert float(np.abs(slopes).max()) <= problem.lipschitz * (1.0 + 1e-12)


@given(problems, st.integers(0, 99), st.integers(100, 199))
def test_gradients_change_no_faster_than_the_smoothness(
    problem: Problem, first: int, second: int
) -> None:
    if problem.smoothness is None:
        return
    one, other = inside(problem, first, 1.0), inside(problem, second, 0.5)
    features, labels = problem.clients(np.arange(50))
    change = problem.loss_derivative(
        problem.scores(one, features), labels
    ) - problem.loss_derivative(problem.scores(other, features), labels)
    reach = problem.smoothness * float(np.linalg.norm(one - other))
    assert float(np.abs(change).max()) <= reach * (1.0 + 1e-9) + 1e-12


@given(problems, st.integers(0, 99), st.floats(0.05, 0.95))
def test_the_gradient_is_that_of_the_loss(problem: Problem, seed: int, share: float) -> None:
    model = inside(problem, seed, share)
    features, labels = problem.clients(np.arange(30))
    step = 1e-6 * inside(problem, seed + 1, 1.0)

    def losses(weights: np.ndarray) -> np.ndarray:
        return np.asarray(problem.loss({"weights": weights}, features, labels))

    along = (losses(model + step) - losses(model - step)) / 2.0
    slopes = problem.loss_derivative(problem.scores(model, features), labels)
    far = np.abs(problem.scores(model, features) - labels) > 2e-6 * problem.diameter  # off the kink
    wanted = slopes * (features @ step)
    assert np.allclose(along[far], wanted[far], atol=1e-12 * max(1.0, problem.diameter**2))
    mean = problem.gradient(model, features, labels)
    assert np.allclose(mean, (slopes[:, None] * features).mean(axis=0), atol=1e-12)


@pytest.mark.parametrize("kind", Loss)
@pytest.mark.parametrize("dimension", [1, 2, 3, 25])
def test_the_mean_loss_of_many_clients_is_the_risk(kind: Loss, dimension: int) -> None:
    """Seven standard errors of a mean of 200,000: fails with a probability of about 3e-12."""
    problem = Problem(kind, dimension, diameter=6.0, seed=11)
    features, labels = problem.clients(np.arange(200_000))
    model = inside(problem, 5, 0.9)
    excess = problem.loss({"weights": model}, features, labels) - problem.loss(
        {"weights": problem.optimum}, features, labels
    )
    error = float(np.std(excess)) / math.sqrt(len(excess))
    assert abs(float(np.mean(excess)) - problem.excess_risk(model)) < 7.0 * error


def divergence(asked: float, right: float) -> float:
    """Of two coins with these log-odds."""
    return float(
        np.logaddexp(0.0, asked) - np.logaddexp(0.0, right) - expit(right) * (asked - right)
    )


@pytest.mark.parametrize("diameter", [1.0, 10.0])
def test_the_logistic_risk_agrees_with_an_independent_integral(diameter: float) -> None:
    """On the sphere of three dimensions the height is uniform; on a circle the angle is."""
    problem = Problem(Loss.LOGISTIC, 3, diameter, seed=2)
    model = inside(problem, 3, 0.9)
    size = float(np.linalg.norm(problem.optimum))
    along = float(model @ problem.optimum) / size
    across = math.sqrt(float(model @ model) - along**2)

    def integrand(height: float, angle: float) -> float:
        side = math.sqrt(1.0 - height * height) * math.cos(angle)
        return divergence(along * height + across * side, size * height)

    total, _ = dblquad(integrand, 0.0, math.pi, -1.0, 1.0, epsabs=1e-11, epsrel=1e-11)
    assert problem.excess_risk(model) == pytest.approx(total / (2.0 * math.pi), abs=1e-11)

    circle = Problem(Loss.LOGISTIC, 2, diameter, seed=2)
    theta, true = inside(circle, 3, 0.9), circle.optimum
    total, _ = quad(
        lambda angle: divergence(
            theta @ [math.cos(angle), math.sin(angle)], true @ [math.cos(angle), math.sin(angle)]
        ),
        *(0.0, 2.0 * math.pi),
        epsabs=1e-13,
    )
    assert circle.excess_risk(theta) == pytest.approx(total / (2.0 * math.pi), abs=1e-12)


@pytest.mark.parametrize(("dimension", "diameter"), [(3, 200.0), (10, 20.0), (1000, 200.0)])
def test_the_logistic_integral_has_settled(
    dimension: int, diameter: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    from checkins.tasks.data import synthetic as convex

    problem = Problem(Loss.LOGISTIC, dimension, diameter, seed=2)
    model = inside(problem, 3, 1.0)
    risk = problem.excess_risk(model)
    coarse = convex._radius_quadrature
    monkeypatch.setattr(
        convex, "_radius_quadrature", lambda size, norm: coarse(size, 1.7 * norm + 20.0)
    )
    assert risk == pytest.approx(problem.excess_risk(model), abs=1e-12)


@given(problems, st.integers(0, 10**8))
@settings(max_examples=20)
def test_a_client_does_not_depend_on_the_other_requested_clients(
    problem: Problem, client: int
) -> None:
    alone = problem.clients(np.array([client]))
    among = problem.clients(np.array([client + 1, client, 0]))
    assert np.array_equal(alone[0][0], among[0][1])
    # A product of matrices may round otherwise for other sizes.
    assert float(alone[1][0]) == pytest.approx(float(among[1][1]), abs=1e-12 * problem.diameter)


@pytest.mark.parametrize("kind", Loss)
def test_the_first_clients_and_a_holdout_make_a_dataset(kind: Loss) -> None:
    problem = Problem(kind, 5, 2.0, seed=3)
    data = problem.dataset(clients=100, holdout=10)
    features, labels = problem.clients(np.arange(100))
    assert np.array_equal(data.features, features.astype(np.float32))
    assert np.array_equal(data.labels, labels)
    assert data.classes == (2 if kind is Loss.LOGISTIC else 0)
    assert len(data.holdout_labels) == 10
    assert not np.array_equal(data.holdout_features, data.features[:10])


@pytest.mark.parametrize("kind", Loss)
def test_jax_finds_the_same_gradient(kind: Loss) -> None:
    jax = pytest.importorskip("jax")
    problem = Problem(kind, 6, 4.0, seed=9)
    features, labels = problem.clients(np.arange(40))
    model = inside(problem, 1, 0.5)
    with jax.enable_x64(True):
        rows = jax.jit(jax.vmap(jax.grad(problem.loss), in_axes=(None, 0, 0)))(
            {"weights": model}, features, labels
        )["weights"]
        assert np.allclose(rows.mean(axis=0), problem.gradient(model, features, labels), rtol=1e-12)
        slopes = jax.jit(problem.loss_derivative)(features @ model, labels)
        assert np.allclose(slopes, problem.loss_derivative(features @ model, labels), rtol=1e-12)


@pytest.mark.parametrize(
    "change",
    [
        {"loss_kind": "absolute"},
        {"dimension": 0},
        {"dimension": 1001},
        {"diameter": 0.0},
        {"diameter": float("nan")},
        {"diameter": 201.0},
        {"seed": 0.5},
    ],
)
def test_an_invalid_problem_is_refused(change: dict[str, object]) -> None:
    sound = {"loss_kind": Loss.SQUARED, "dimension": 3, "diameter": 1.0, "seed": 0}
    with pytest.raises(InvalidValue, match=next(iter(change))):
        Problem(**{**sound, **change})  # type: ignore[arg-type]


@pytest.mark.parametrize("model", [np.zeros(2), np.full(3, np.nan), np.full(3, 1.0)])
def test_the_risk_is_known_inside_the_ball_alone(model: np.ndarray) -> None:
    with pytest.raises(InvalidValue, match="model"):
        Problem(Loss.ABSOLUTE, 3, 2.0, seed=0).excess_risk(model)
