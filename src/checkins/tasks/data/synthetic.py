"""Synthetic data for any number of clients, drawn from a seed, so they need no protection.

``Problem`` is a convex problem with a known optimum; it computes the exact excess risk of a model.
``load`` returns a data set for classification. With two classes it is the logistic problem below.
With more classes, x is uniform on the unit sphere, and label k has probability proportional to
exp⟨x, wₖ⟩.

A client of a ``Problem`` holds x, uniform on the unit sphere in p dimensions, and a target y that
depends on ⟨x, c⟩, where c is the optimum. Models θ are in the ball ‖θ‖ ≤ R/2. With s = ⟨x, θ⟩,
loss ℓ, risk F(θ) = E ℓ, Lipschitz constant L and smoothness β, the problems are

    absolute   ℓ = |s − y|, y = ⟨x, c⟩, except that y = ±R/2 for a quarter of the clients;
               F(θ) − F(c) = ¾ κ ‖θ − c‖, L = 1, not smooth
    squared    ℓ = (s − y)²/2, y = ⟨x, c⟩ ± R/10;
               F(θ) − F(c) = ‖θ − c‖²/(2p), L = R, β = 1
    logistic   ℓ = log(1 + eˢ) − ys, y = 1 with probability 1/(1 + e^−⟨x, c⟩), else 0;
               F(θ) − F(c) = an integral over a disc, L = 1, β = 1/4

with κ = E|x₁| = Γ(p/2)/(√π Γ((p + 1)/2)). The sign of each ± is drawn with probability 1/2. With
the absolute loss, the clients with y = ±R/2 do not move the optimum: because |s| ≤ R/2, their loss,
averaged over the two signs, is R/2 for every θ. The excess risk of the squared loss follows from
E[xxᵀ] = I/p. The excess risk of the logistic loss is the mean Kullback-Leibler divergence of two
Bernoulli distributions with log-odds ⟨x, c⟩ and ⟨x, θ⟩. It depends only on the projection of x onto
the plane of c and θ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh_tridiagonal
from scipy.special import expit, gammaln, ndtri, softmax

from checkins import validate
from checkins.errors import InvalidValue
from checkins.tasks.data import REAL_TARGETS, Dataset

MAX_DIMENSIONS = 1000
MAX_DIAMETER = 200.0
OPTIMUM_NORM_SHARE = 0.8
"""Norm of the optimum, divided by the radius of the ball."""

_OUTLIER_SHARE = 0.25  # share of the clients with y = ±R/2, with the absolute loss
# With the squared loss, y = ⟨x, c⟩ ± _TARGET_NOISE R. So |s − y| ≤ R/2 + 0.8 · R/2 + 0.1 R = R.
_TARGET_NOISE = 0.1
_TENSOR_NAME = "weights"


class Loss(StrEnum):
    """The loss function of a problem."""

    ABSOLUTE = "absolute"
    SQUARED = "squared"
    LOGISTIC = "logistic"


@dataclass(frozen=True, slots=True)
class Problem:
    """One of the problems above, on a ball of ``diameter`` R. ``seed`` determines the optimum.

    A ``Problem`` also has the methods of a model, so it can be trained: it is a linear model with
    one tensor of p weights and no intercept.

    >>> problem = Problem(Loss.SQUARED, dimension=4, diameter=2.0, seed=1)
    >>> problem.lipschitz, problem.smoothness
    (2.0, 1.0)
    >>> problem.excess_risk(problem.optimum), round(problem.excess_risk(np.zeros(4)), 6)
    (0.0, 0.08)
    """

    loss_kind: Loss
    dimension: int
    diameter: float
    seed: int

    def __post_init__(self) -> None:
        validate.one_of(Loss, loss_kind=self.loss_kind)
        validate.count(most=MAX_DIMENSIONS, dimension=self.dimension)
        validate.positive(diameter=self.diameter)
        if not self.diameter <= MAX_DIAMETER:
            raise InvalidValue("diameter", self.diameter, f"must be at most {MAX_DIAMETER:g}")
        validate.one_of(int, seed=self.seed)

    @property
    def lipschitz(self) -> float:
        """L, an upper bound on the norm of one client's gradient, for any θ in the ball."""
        return self.diameter if self.loss_kind is Loss.SQUARED else 1.0

    @property
    def smoothness(self) -> float | None:
        """β, the Lipschitz constant of the gradient; None for the absolute loss (not smooth)."""
        return {Loss.ABSOLUTE: None, Loss.SQUARED: 1.0, Loss.LOGISTIC: 0.25}[self.loss_kind]

    @property
    def optimum(self) -> NDArray[np.float64]:
        """The minimiser c of the population risk, which is inside the ball."""
        direction = points_on_sphere(self.seed, "optimum", np.zeros(1, np.int64), self.dimension)[0]
        return np.asarray(direction * (OPTIMUM_NORM_SHARE * self.diameter / 2.0))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the model's tensors."""
        return {_TENSOR_NAME: (self.dimension,)}

    def start(self, seed: int = 0) -> NDArray[np.float64]:
        """Return θ₁ = 0. The seed has no effect."""
        return np.zeros(self.dimension)

    def loss(self, parameters: dict[str, Any], features: Any, label: Any) -> Any:
        """Return ℓ at one example, in numpy or JAX, depending on the type of the weights."""
        weights = parameters[_TENSOR_NAME]
        score, xp = features @ weights, weights.__array_namespace__()
        match self.loss_kind:
            case Loss.ABSOLUTE:
                return xp.abs(score - label)
            case Loss.SQUARED:
                return 0.5 * (score - label) ** 2
            case Loss.LOGISTIC:
                return xp.logaddexp(0.0, score) - label * score

    def loss_derivative(self, scores: Any, labels: Any) -> Any:
        """Return ∂ℓ/∂s for each score s. At s = y, it is 0 for the absolute loss.

        A client's gradient is ∂ℓ/∂s times its features.
        """
        match self.loss_kind:
            case Loss.ABSOLUTE:
                return scores.__array_namespace__().sign(scores - labels)
            case Loss.SQUARED:
                return scores - labels
            case Loss.LOGISTIC:
                return 1.0 / (1.0 + scores.__array_namespace__().exp(-scores)) - labels

    def scores(self, flat: NDArray[Any], features: NDArray[Any]) -> NDArray[np.float64]:
        """Return ⟨x, θ⟩ for each row."""
        return np.asarray(features, np.float64) @ np.asarray(flat, np.float64)

    def gradient(
        self, flat: NDArray[Any], features: NDArray[Any], labels: NDArray[Any]
    ) -> NDArray[np.float64]:
        """Return the mean gradient over the rows."""
        rows = np.asarray(features, np.float64)
        derivatives = np.asarray(self.loss_derivative(self.scores(flat, rows), labels), np.float64)
        return derivatives @ rows / len(rows)

    def clients(
        self, indices: NDArray[np.int64], *, stream: str = "clients"
    ) -> tuple[NDArray[np.float64], NDArray[Any]]:
        """Return features x and targets y of the clients with these numbers. Nothing is stored."""
        features = points_on_sphere(self.seed, stream, indices, self.dimension)
        draws = uniforms(self.seed, f"{stream}:targets", indices, 2)
        optimal_scores = features @ self.optimum
        signs = np.where(draws[:, 1] < 0.5, -1.0, 1.0)
        match self.loss_kind:
            case Loss.ABSOLUTE:
                outliers = signs * (self.diameter / 2.0)
                return features, np.where(draws[:, 0] < _OUTLIER_SHARE, outliers, optimal_scores)
            case Loss.SQUARED:
                return features, optimal_scores + signs * (_TARGET_NOISE * self.diameter)
            case Loss.LOGISTIC:
                return features, (draws[:, 0] < expit(optimal_scores)).astype(np.int64)

    def dataset(self, *, clients: int, holdout: int = 0) -> Dataset:
        """Return the first ``clients`` clients, one row each, and a holdout drawn the same way."""
        validate.count(most=10**9, clients=clients)
        classes = 2 if self.loss_kind is Loss.LOGISTIC else REAL_TARGETS
        return _draw_dataset(f"synthetic-{self.loss_kind}", self, classes, clients, holdout)

    def excess_risk(self, model: NDArray[np.float64]) -> float:
        """Return F(θ) − F(c) ≥ 0 for a model θ in the ball.

        Rounding:    to nearest. The error of the logistic integral is at most 1e-12.
        """
        theta = np.asarray(model, dtype=np.float64)
        if theta.shape != (self.dimension,) or not np.all(np.isfinite(theta)):
            raise InvalidValue("model", theta.shape, f"must be {self.dimension} finite weights")
        norm = float(np.linalg.norm(theta))
        if not norm <= self.diameter / 2.0 * (1.0 + 1e-9):
            why = f"lies outside the ball of radius {self.diameter / 2}"
            raise InvalidValue("model", norm, why)
        distance = float(np.linalg.norm(theta - self.optimum))
        match self.loss_kind:
            case Loss.ABSOLUTE:
                return (1.0 - _OUTLIER_SHARE) * _mean_absolute_coordinate(self.dimension) * distance
            case Loss.SQUARED:
                return distance * distance / (2.0 * self.dimension)
            case Loss.LOGISTIC:
                return _logistic_excess_risk(self.optimum, theta)


def points_on_sphere(
    seed: int, stream: str, indices: NDArray[np.int64], dimension: int
) -> NDArray[np.float64]:
    """Return points uniform on the unit sphere, one per client. In one dimension they are ±1."""
    normals = np.asarray(ndtri(uniforms(seed, stream, indices, dimension)), np.float64)
    return np.asarray(normals / np.linalg.norm(normals, axis=1, keepdims=True))


def _mean_absolute_coordinate(dimension: int) -> float:
    """Return κ = E|x₁|, where x is uniform on the unit sphere."""
    log_ratio = float(gammaln(dimension / 2.0) - gammaln((dimension + 1) / 2.0))
    return math.exp(log_ratio) / math.sqrt(math.pi)


def _logistic_excess_risk(optimum: NDArray[np.float64], model: NDArray[np.float64]) -> float:
    """Return E[B(⟨x, model⟩, ⟨x, optimum⟩)], where B is the Bregman divergence of log(1 + eˢ).

    Projected onto the plane of model and optimum, x has the length √t with t ~ Beta(1, (p − 2)/2),
    and a uniform angle. The integral uses Gauss-Jacobi quadrature in t and the trapezoidal rule in
    the angle. The two rules converge exponentially, because the integrand is analytic. Long vectors
    need more nodes, because the poles of the integrand, at log-odds of ±iπ, are then closer.
    """
    dimension, optimum_norm = len(optimum), float(np.linalg.norm(optimum))
    radii, weights = _radius_quadrature(dimension, max(optimum_norm, float(np.linalg.norm(model))))
    axis = optimum / optimum_norm
    along = float(model @ axis)
    across = float(np.linalg.norm(model - along * axis))
    angle_count = 64 + 16 * math.ceil(max(optimum_norm, float(np.linalg.norm(model))))
    if dimension == 1:
        angle_count = 2  # x is ±1, so there are two angles, and ``across`` is a rounding error
    angles = np.arange(angle_count) * (2.0 * math.pi / angle_count)
    cosines, sines = np.cos(angles), np.sin(angles)
    optimal_log_odds = radii[:, None] * (optimum_norm * cosines)
    model_log_odds = radii[:, None] * (along * cosines + across * sines)
    bregman = (
        np.logaddexp(0.0, model_log_odds)
        - np.logaddexp(0.0, optimal_log_odds)
        - expit(optimal_log_odds) * (model_log_odds - optimal_log_odds)
    )
    return max(0.0, float(weights @ bregman.mean(axis=1)))


def _radius_quadrature(
    dimension: int, largest_norm: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return Gauss-Jacobi nodes √t and their probabilities, for t ~ Beta(1, (p − 2)/2).

    They are computed from the eigenvectors of the Jacobi matrix [GW69], because the values of
    polynomials of such high degrees overflow.
    """
    if dimension <= 2:
        return np.ones(1), np.ones(1)
    power = (dimension - 4) / 2.0  # the weight on [−1, 1] is (1 − x)^power
    k = np.arange(1.0, 32 + 4 * math.ceil(largest_norm))
    s = 2.0 * k + power  # as in the recurrence of the Jacobi polynomials
    diagonal = np.append(-power / (power + 2.0), -power * power / (s * (s + 2.0)))
    squares = 4.0 * (k * (k + power)) ** 2 / (s * s * (s + 1.0) * (s - 1.0))
    nodes, vectors = eigh_tridiagonal(diagonal, np.sqrt(squares))
    weights = np.asarray(vectors[0], np.float64) ** 2
    return np.sqrt(np.clip((1.0 + nodes) / 2.0, 0.0, 1.0)), weights


MAX_CLIENTS = 2**48
MAX_DRAWS = 2**16
"""Largest number of draws per client. The index of a client (48 bits) and the index of a draw (16
bits) together fill one word of 64 bits."""

_BLOCK_WORDS = 2**15  # 64-bit words computed at a time, so that they fit into the cache

# The odd constant and the finalizer of SplitMix64 [SLF14], a bijection of 64-bit words.
_COUNTER_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIXING_STEPS = ((30, np.uint64(0xBF58476D1CE4E5B9)), (27, np.uint64(0x94D049BB133111EB)))


def uniforms(seed: int, stream: str, clients: NDArray[np.int64], draws: int) -> NDArray[np.float64]:
    """Return pseudorandom numbers in (0, 1), one row of ``draws`` numbers per client.

    A number depends only on (seed, stream, client, draw). Clients can therefore be drawn again when
    they are needed, and need not be stored. Different pairs (seed, stream) give unrelated numbers.
    These numbers are only for simulated data, never for the noise of a report.

    >>> rows = uniforms(7, "example", np.array([3, 10**12]), 2)
    >>> bool(np.all(rows[1] == uniforms(7, "example", np.array([10**12]), 2)))
    True
    """
    if not 1 <= draws <= MAX_DRAWS:
        raise InvalidValue("draws", draws, f"must be 1 to {MAX_DRAWS:,}")
    indices = np.asarray(clients)
    if indices.ndim != 1 or not np.issubdtype(indices.dtype, np.integer):
        raise InvalidValue("clients", indices.dtype.name, "must be a vector of integers")
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < MAX_CLIENTS:
        first_and_last = [int(indices.min()), int(indices.max())]
        raise InvalidValue("clients", first_and_last, "must be 0 to 2^48 - 1")
    keys = _stream_keys(seed, stream)
    rows = np.empty((len(indices), draws))
    block_clients = max(1, _BLOCK_WORDS // draws)
    for start in range(0, len(indices), block_clients):
        block = slice(start, start + block_clients)
        rows[block] = _uniforms_of_block(keys, indices[block].astype(np.uint64), draws)
    return rows


def _uniforms_of_block(
    keys: tuple[np.uint64, np.uint64], clients: NDArray[np.uint64], draws: int
) -> NDArray[np.float64]:
    draw_numbers = np.arange(draws, dtype=np.uint64)
    words: NDArray[np.uint64] = np.add(clients[:, None] * np.uint64(MAX_DRAWS), draw_numbers)
    words *= _COUNTER_STEP
    for key in keys:  # two passes: after one, counters that differ in few bits give similar words
        words += key
        for shift, factor in _MIXING_STEPS:
            words ^= words >> np.uint64(shift)
            words *= factor
        words ^= words >> np.uint64(31)
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def _stream_keys(seed: int, stream: str) -> tuple[np.uint64, np.uint64]:
    digest = sha256(f"checkins:{stream}:{int(seed)}".encode()).digest()
    first, second = np.frombuffer(digest[:16], dtype="<u8").astype(np.uint64)
    return first, second


NAME = "synthetic"
DIAMETER = 10.0
"""Diameter of the ball of the logistic problem with two classes."""

CLASS_WEIGHT_NORM = 10.0
"""Norm of the weights of each class, if there are more than two classes."""

MAX_CLASSES = 1000


def load(
    *,
    clients: int = 10_000,
    holdout: int = 2_000,
    classes: int = 2,
    dimension: int = 10,
    seed: int = 0,
) -> Dataset:
    """Return a data set for classification. The same arguments give exactly the same data.

    >>> data = load(clients=100, holdout=10, classes=3)
    >>> data.clients, data.shape, len(data.holdout_labels), data.classes
    (100, (10,), 10, 3)
    """
    validate.count(most=10**9, clients=clients)
    if isinstance(holdout, bool) or not 0 <= holdout <= 10**9:
        raise InvalidValue("holdout", holdout, "must be 0 to 10^9 rows")
    if classes == 2:
        problem = logistic_problem(dimension=dimension, seed=seed)
        return problem.dataset(clients=clients, holdout=holdout)
    distribution = SoftmaxDistribution(dimension, classes, seed)
    return _draw_dataset(f"{NAME}-softmax", distribution, classes, clients, holdout)


def _draw_dataset(
    name: str, source: Problem | SoftmaxDistribution, classes: int, clients: int, holdout: int
) -> Dataset:
    features, labels = source.clients(np.arange(clients))
    rows, targets = source.clients(np.arange(holdout), stream="holdout")
    holdout_rows: Any = {"holdout_features": rows.astype(np.float32), "holdout_labels": targets}
    return Dataset.one_row_each(name, features.astype(np.float32), labels, classes, **holdout_rows)


def logistic_problem(*, dimension: int = 10, seed: int = 0) -> Problem:
    """Return the problem that ``load`` uses for two classes."""
    return Problem(Loss.LOGISTIC, dimension, DIAMETER, seed)


@dataclass(frozen=True, slots=True)
class SoftmaxDistribution:
    """The distribution of features and labels, with labels drawn by a softmax of linear scores."""

    dimension: int
    classes: int
    seed: int

    def __post_init__(self) -> None:
        validate.count(most=MAX_DIMENSIONS, dimension=self.dimension)
        validate.one_of(int, seed=self.seed)
        validate.count(most=MAX_CLASSES, classes=self.classes)
        if not self.classes >= 2:
            raise InvalidValue("classes", self.classes, f"must be 2 to {MAX_CLASSES:,}")

    @property
    def weights(self) -> NDArray[np.float64]:
        """The weights wₖ of the softmax, one column per class."""
        rows = points_on_sphere(self.seed, "weights", np.arange(self.classes), self.dimension)
        return CLASS_WEIGHT_NORM * rows.T

    def clients(
        self, indices: NDArray[np.int64], *, stream: str = "clients"
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return features and labels of the clients with these numbers. Nothing is stored."""
        features = points_on_sphere(self.seed, stream, indices, self.dimension)
        cumulative_probabilities = np.cumsum(softmax(features @ self.weights, axis=1), axis=1)
        draws = uniforms(self.seed, f"{stream}:labels", indices, 1)
        # The last cumulative probability is left out: it is 1, but may be rounded below a draw.
        return features, np.sum(draws > cumulative_probabilities[:, :-1], axis=1, dtype=np.int64)
