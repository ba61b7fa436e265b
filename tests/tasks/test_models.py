"""Every model: two gradients that agree, one loss that never overflows, and a fixed flat order."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.campaign.task import Model as ModelName
from checkins.errors import InvalidValue
from checkins.tasks import metrics
from checkins.tasks.built_in_models import CNN, MLP, Logistic, Softmax
from checkins.tasks.model import LinearModel, Model, flatten, parameter_count, unflatten
from checkins.tasks.own_model import MODEL_NAMES, OwnModel, model_by_name
from tests.support.program import output_of

MODELS: dict[str, tuple[Any, tuple[int, ...], int]] = {
    "logistic": (Logistic(5), (5,), 2),
    "softmax": (Softmax(6, 4), (2, 3), 4),
    "mlp": (MLP(5, 3, width=4), (5,), 3),
    "cnn": (CNN(16, 20, 3, filters=(2, 3)), (16, 20), 3),
    "cnn of colours": (CNN(16, 16, 3, channels=2, filters=(2, 2)), (16, 16, 2), 3),
}
names = st.sampled_from(sorted(MODELS))
seeds = st.integers(0, 2**32 - 1)
sizes = st.sampled_from([0.0, 1e-3, 1.0, 30.0, 1e4])


def draw(
    name: str, seed: int, *, weights: float, features: float, rows: int = 3
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    model, shape, classes = MODELS[name]
    generator = np.random.default_rng(seed)
    return (
        weights * generator.standard_normal(model.dimension),
        features * generator.standard_normal((rows, *shape)),
        generator.integers(0, classes, size=rows),
    )


@cache
def by_jax(name: str, precision: type) -> Callable[..., np.ndarray]:
    """The mean over rows of the loss and its gradient by the flat vector."""
    model = MODELS[name][0]

    def mean(flat: jax.Array, features: jax.Array, labels: jax.Array) -> jax.Array:
        parameters = unflatten(flat, model.shapes)
        return jax.vmap(model.loss, in_axes=(None, 0, 0))(parameters, features, labels).mean()

    compiled = jax.jit(jax.value_and_grad(mean))

    def run(flat: np.ndarray, features: np.ndarray, labels: np.ndarray) -> Any:
        with jax.enable_x64(precision is np.float64):
            loss, slope = compiled(flat.astype(precision), features.astype(precision), labels)
        return float(loss), np.asarray(slope)

    return run


@given(names, seeds, sizes, sizes)
def test_the_gradient_of_numpy_is_that_of_jax(name, seed, weights, features):
    flat, x, y = draw(name, seed, weights=weights, features=features)
    expected = by_jax(name, np.float64)(flat, x, y)[1]
    gradient = MODELS[name][0].gradient(flat, x, y)
    assert gradient.dtype == np.float64
    # Where a model is certain, probabilities less 1 are rounding errors of 1.
    certain = 1e-14 * (1.0 + np.abs(x).max()) * (1.0 + np.abs(flat).max())
    assert np.linalg.norm(gradient - expected) <= 1e-9 * np.linalg.norm(expected) + certain


@given(names, seeds)
def test_in_single_precision_they_agree_too(name, seed):
    flat, x, y = draw(name, seed, weights=1.0, features=1.0)
    expected = by_jax(name, np.float32)(flat, x, y)[1]
    gradient = MODELS[name][0].gradient(flat.astype(np.float32), x.astype(np.float32), y)
    assert gradient.dtype == expected.dtype == np.float32
    np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_single_precision_features_do_not_lower_the_precision_of_the_weights(name):
    flat, x, y = draw(name, 1, weights=1.0, features=1.0)
    single = x.astype(np.float32)
    model = MODELS[name][0]
    gradient = model.gradient(flat, single, y)
    np.testing.assert_array_equal(gradient, model.gradient(flat, single.astype(np.float64), y))


@given(names, seeds)
def test_the_gradient_says_how_the_loss_moves(name, seed):
    flat, x, y = draw(name, seed, weights=0.5, features=1.0)
    model = MODELS[name][0]
    way = np.random.default_rng(seed + 1).standard_normal(flat.size)
    way /= np.linalg.norm(way)
    step = 1e-5
    ahead, behind = (
        metrics.mean_loss(model.scores(flat + sign * step * way, x), y) for sign in (1, -1)
    )
    moved = (ahead - behind) / (2 * step)
    assert moved == pytest.approx(float(model.gradient(flat, x, y) @ way), rel=1e-5, abs=1e-7)


@given(names, seeds, sizes, sizes)
def test_the_loss_that_is_learned_is_the_loss_that_is_reported(name, seed, weights, features):
    flat, x, y = draw(name, seed, weights=weights, features=features)
    loss = by_jax(name, np.float64)(flat, x, y)[0]
    reported = metrics.mean_loss(MODELS[name][0].scores(flat, x), y)
    assert reported == pytest.approx(loss, rel=1e-9, abs=1e-9)


@given(names, seeds, st.sampled_from([1e2, 1e4, 1e8]))
def test_extreme_scores_never_overflow(name, seed, weights):
    flat, x, y = draw(name, seed, weights=weights, features=1e4)
    for precision in (np.float32, np.float64):
        loss, slope = by_jax(name, precision)(flat, x, y)
        assert np.isfinite(loss)
        assert np.all(np.isfinite(slope))
        gradient = MODELS[name][0].gradient(flat.astype(precision), x.astype(precision), y)
        assert np.all(np.isfinite(gradient))


@given(names, seeds, st.integers(1, 4))
def test_the_gradient_of_rows_is_the_mean_of_theirs(name, seed, rows):
    flat, x, y = draw(name, seed, weights=1.0, features=1.0, rows=rows)
    model = MODELS[name][0]
    alone = [model.gradient(flat, x[i : i + 1], y[i : i + 1]) for i in range(rows)]
    np.testing.assert_allclose(
        model.gradient(flat, x, y), np.mean(alone, axis=0), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("name", ["logistic", "softmax"])
@pytest.mark.parametrize("arrays", [np, jnp], ids=["numpy", "jax"])
def test_a_linear_gradient_is_the_outer_product_of_the_row_and_its_residuals(
    name: str, arrays: ModuleType
) -> None:
    flat, x, y = draw(name, 5, weights=1.0, features=1.0, rows=1)
    model = MODELS[name][0]
    assert isinstance(model, LinearModel)
    with jax.enable_x64(True):
        scores = arrays.asarray(model.scores(flat, x))
        residuals = np.asarray(model.residuals(scores, arrays.asarray(y)))
    outer = np.outer(np.append(x.reshape(-1), 1.0), residuals)
    np.testing.assert_allclose(model.gradient(flat, x, y), outer.reshape(-1), rtol=1e-12)
    norm = np.sqrt(np.sum(x**2) + 1.0) * np.linalg.norm(residuals)
    assert np.linalg.norm(outer) == pytest.approx(norm)


def test_models_with_hidden_layers_are_not_linear_models() -> None:
    assert not isinstance(MLP(2, 2), LinearModel)
    assert not isinstance(CNN(16, 16, 2), LinearModel)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_initial_weights_are_public_fit_float32_and_follow_from_the_seed(name):
    model = MODELS[name][0]
    assert isinstance(model, Model)
    start = model.start(7)
    assert start.dtype == np.float64
    assert start.shape == (model.dimension,) == (parameter_count(model.shapes),)
    np.testing.assert_array_equal(start, start.astype(np.float32))
    np.testing.assert_array_equal(start, model.start(7))
    linear = isinstance(model, LinearModel)
    assert np.any(start) != linear
    assert np.array_equal(start, model.start(8)) == linear


@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_flat_vector_and_the_tensors_are_the_same_numbers(name):
    shapes = MODELS[name][0].shapes
    flat = np.arange(float(parameter_count(shapes)))
    tensors = unflatten(flat, shapes)
    assert {key: tensor.shape for key, tensor in tensors.items()} == shapes
    assert all(np.shares_memory(tensor, flat) for tensor in tensors.values())
    shuffled = dict(reversed(tensors.items()))  # the order is that of the shapes alone
    np.testing.assert_array_equal(flatten(shuffled, shapes), flat)


def test_tensors_of_other_names_or_shapes_are_refused() -> None:
    shapes = {"a": (2,), "b": ()}
    with pytest.raises(InvalidValue, match="must be a, b"):
        flatten({"a": np.zeros(2)}, shapes)
    with pytest.raises(InvalidValue, match="must have the shape"):
        flatten({"a": np.zeros(3), "b": np.zeros(())}, shapes)
    with pytest.raises(InvalidValue, match="a vector of 3 numbers"):
        unflatten(np.zeros(4), shapes)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_rows_and_labels_that_do_not_fit_are_refused(name):
    model, _, classes = MODELS[name]
    flat, x, y = draw(name, 0, weights=1.0, features=1.0)
    for labels in (y[:-1], y.astype(float), y - classes, y + classes):
        with pytest.raises(InvalidValue, match="labels"):
            model.gradient(flat, x, labels)
    with pytest.raises(InvalidValue, match="labels"):
        model.gradient(flat, x[:0], y[:0])
    with pytest.raises(InvalidValue, match="features"):
        model.gradient(flat, x[:, :-1], y)
    with pytest.raises(InvalidValue, match="flat"):
        model.scores(flat[:-1], x)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Logistic(0),
        lambda: Softmax(3, 1),
        lambda: Softmax(10**8, 10),
        lambda: MLP(3, 2, width=0),
        lambda: CNN(30, 28, 10),
        lambda: CNN(12, 28, 10),
        lambda: CNN(28, 28, 10, filters=(0, 1)),
    ],
)
def test_sizes_that_make_no_model_are_refused(make):
    with pytest.raises(InvalidValue):
        make()


def test_a_hidden_layer_learns_what_no_linear_model_can() -> None:
    x = np.array([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]])
    y = np.array([0, 1, 1, 0])
    models = {Softmax(2, 2): 0.75, MLP(2, 2, width=16): 1.0}
    for model, best in models.items():
        flat = model.start(0)
        for _ in range(300):
            flat = flat - 0.5 * model.gradient(flat, x, y)
        accuracy = metrics.accuracy(model.scores(flat, x), y)
        assert accuracy <= best
        assert (accuracy == 1.0) == (best == 1.0)


def test_a_network_of_filters_tells_upright_from_flat_bars() -> None:
    generator = np.random.default_rng(0)
    x = np.zeros((40, 16, 16), np.float32)
    y = np.arange(40) % 2
    for picture, upright, place in zip(x, y, generator.integers(2, 14, 40), strict=True):
        (picture.T if upright else picture)[place] = 2.0
    model = CNN(16, 16, 2, filters=(4, 4))
    flat = model.start(0)
    for _ in range(60):
        flat = flat - 0.5 * model.gradient(flat, x, y)
    assert metrics.accuracy(model.scores(flat, x), y) == 1.0


# The catalogue of names, and models of one's own.


def test_every_name_that_a_campaign_may_seal_is_a_model() -> None:
    assert set(MODEL_NAMES) == {str(name) for name in ModelName}
    assert model_by_name("logistic", (7,), 2) == Logistic(7)
    assert model_by_name("softmax", (28, 28), 10) == Softmax(784, 10)
    assert model_by_name("mlp", (7,), 3) == MLP(7, 3)
    assert model_by_name("cnn", (28, 28), 10) == CNN(28, 28, 10)
    assert model_by_name("cnn", (32, 32, 3), 10) == CNN(32, 32, 10, channels=3)


def clusters(features_shape: tuple[int, ...], classes: int) -> OwnModel:
    """One centre a class, a row belongs to the nearest: as a user would write a model."""
    scales = np.linspace(-1.0, 1.0, classes * features_shape[0])

    def scores(own, features):
        return -((features - own["centres"]) ** 2).sum(axis=-1) + own["offsets"]

    def loss(own, features, label):
        all_scores = scores(own, features)
        return jax.nn.logsumexp(all_scores) - all_scores[label]

    return OwnModel(
        {"centres": scales.reshape(classes, -1), "offsets": np.zeros(classes)},
        loss,
        example_scores=scores,
    )


def test_an_own_model_is_named_by_module_and_function() -> None:
    model = model_by_name(f"{__name__}:clusters", (2,), 3)
    assert isinstance(model, Model)
    assert model.shapes == {"centres": (3, 2), "offsets": (3,)}
    flat = model.start(0)
    np.testing.assert_array_equal(flat, model.start(1))
    x, y = np.array([[-1.0, -0.5], [0.9, 0.8]]), np.array([0, 2])
    assert metrics.accuracy(model.scores(flat, x), y) == 1.0
    with jax.enable_x64(True):
        before = metrics.mean_loss(model.scores(flat, x), y)
        gradient = model.gradient(flat, x, y)
        after = metrics.mean_loss(model.scores(flat - 1e-6 * gradient, x), y)
    assert gradient.dtype == np.float64
    assert (before - after) / 1e-6 == pytest.approx(gradient @ gradient, rel=1e-4)


def test_a_given_row_gradient_is_used() -> None:
    model = OwnModel(
        {"mean": np.zeros(2)},
        lambda own, x, _: ((x - own["mean"]) ** 2).sum() / 2,
        lambda own, x, _: {"mean": own["mean"] - x.mean(axis=0)},
    )
    x = np.array([[1.0, 2.0], [3.0, 4.0]])
    assert model.gradient(np.zeros(2), x, np.zeros(2)).tolist() == [-2.0, -3.0]
    with pytest.raises(InvalidValue, match="must be given to compute scores"):
        model.scores(np.zeros(2), x)


def not_a_model(features_shape: tuple[int, ...], classes: int) -> object:
    return object()


@pytest.mark.parametrize(
    ("name", "shape", "classes", "said"),
    [
        ("logistic", (3,), 4, "the data has 4: use softmax"),
        ("cnn", (784,), 10, "needs pictures"),
        ("linear", (3,), 2, "module:function"),
        (":f", (3,), 2, "module:function"),
        ("no_such_module_here:f", (3,), 2, "No module named"),
        ("math:no_such_function", (3,), 2, "does not exist in math"),
        ("math:pi", (3,), 2, "is not a function in math"),
        (f"{__name__}:not_a_model", (3,), 2, "returned a object without shapes"),
    ],
)
def test_a_name_that_gives_no_model_is_refused_with_the_reason(name, shape, classes, said):
    with pytest.raises(InvalidValue, match=said):
        model_by_name(name, shape, classes)


@pytest.mark.parametrize(
    ("initial", "loss"),
    [
        ({}, abs),
        ([1.0], abs),
        ({"a": np.array(["x"])}, abs),
        ({"a": np.array([np.nan])}, abs),
        ({"a": np.zeros(0)}, abs),
        ({"a": np.zeros(2)}, None),
    ],
)
def test_an_own_model_needs_finite_weights_and_a_loss(initial, loss):
    with pytest.raises(InvalidValue):
        OwnModel(initial, loss)


def test_a_device_without_jax_computes_every_gradient() -> None:
    program = """
import sys
sys.modules["jax"] = None  # any import of it fails
import numpy as np
from checkins.tasks.own_model import model_by_name
from checkins.tasks import metrics
from checkins.tasks.data import scattering
for name, shape in (("logistic", (4,)), ("softmax", (4,)), ("mlp", (4,)), ("cnn", (16, 16))):
    model = model_by_name(name, shape, 2)
    x, y = np.ones((2, *shape), np.float32), np.array([0, 1])
    assert model.gradient(model.start(0), x, y).shape == (model.dimension,)
    metrics.accuracy(model.scores(model.start(0), x), y)
"""
    output_of(program)
