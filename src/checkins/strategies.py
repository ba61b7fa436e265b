"""Choose how a server correlates the noise of successive slots.

A model is a weighted sum of the slots before it, so noise that partly cancels across slots changes
it less than independent noise. A ``NoiseStrategy`` says how the noise is correlated. Its
coefficients are public, and every strategy is certified. This module proposes good ones. The result
of an optimiser may differ in its last digits from machine to machine. Therefore coefficients are
rounded to a few binary digits, and a campaign seals the rounded coefficients, not the name of the
method.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from checkins import validate
from checkins.accounting.noise_strategy import MOST_BANDS, NoiseStrategy
from checkins.errors import InvalidValue

FloatArray = npt.NDArray[np.float64]

BITS = 10
"""Number of binary digits of a coefficient. With more, the released sums need a finer grid."""
_LONGEST_HORIZON = 4096
"""Largest number of slots for which coefficients are optimised. Longer runs use the same ones."""
_ITERATIONS = 300


class StrategyName(StrEnum):
    """The strategies that can be named in a campaign file and on the command line."""

    SQUARE_ROOT = "square-root"
    OPTIMISED = "optimised"


@dataclass(frozen=True, slots=True)
class Workload:
    """What the server does with the slots: the run for which coefficients are optimised.

    The server makes steps of gradient descent, one for every ``minibatch`` slots, with ``momentum``
    as in ``campaign.Optimizer``. None means no momentum. If ``tail`` is None, all released models
    matter equally. Otherwise only the mean of the last models matters, over this share of all
    slots.
    """

    slots: int
    momentum: float | None = None
    nesterov: bool = False
    minibatch: int = 1
    tail: float | None = None

    def __post_init__(self) -> None:
        validate.count(slots=self.slots, minibatch=self.minibatch)
        if self.momentum is not None:
            validate.probability(momentum=self.momentum)
        if self.tail is not None:
            validate.positive(tail=self.tail)
            validate.probability(tail=self.tail)

    def error(self, coefficients: npt.ArrayLike) -> float:
        """Return the mean squared error of the models that matter, for noise of deviation 1.

        The noise of a slot is that of a strategy with these coefficients, scaled to norm 1. The
        unit is the squared step size, per coordinate.
        """
        return self._error_and_gradient(np.asarray(coefficients, dtype=np.float64))[0]

    def _step_weights(self) -> FloatArray:
        """Return the weight of a slot in the model after 1, 2, ... slots."""
        steps = np.arange(min(self.slots, _LONGEST_HORIZON)) // self.minibatch + 1
        decay = self.momentum or 0.0
        if decay == 0.0:
            return np.ones(len(steps))
        exponent = steps + 1 if self.nesterov else steps
        return np.asarray((1.0 - decay**exponent) / (1.0 - decay))

    def _error_and_gradient(self, coefficients: FloatArray) -> tuple[float, FloatArray]:
        from scipy.signal import fftconvolve, lfilter

        noise_weights = lfilter([1.0], coefficients, self._step_weights())
        horizon = len(noise_weights)
        if self.tail is None:
            shares = 1.0 - np.arange(horizon) / horizon
            error = float(shares @ noise_weights**2)
            slope = 2.0 * shares * noise_weights
        else:
            window = np.full(max(1, round(self.tail * horizon)), 1.0)
            window /= len(window)
            mean = fftconvolve(noise_weights, window)[:horizon]
            error = float(mean @ mean)
            slope = 2.0 * fftconvolve(mean[::-1], window)[:horizon][::-1]
        back = lfilter([1.0], coefficients, slope[::-1])[::-1]
        gradient = -fftconvolve(back, noise_weights[::-1])[horizon - 1 :][: len(coefficients)]
        gradient = np.pad(gradient, (0, len(coefficients) - len(gradient)))
        square = float(coefficients @ coefficients)
        return error * square, gradient * square + 2.0 * error * coefficients


def square_root(bands: int, *, bits: int = BITS) -> NoiseStrategy:
    """Return the first coefficients of the power series of (1 - x)^(-1/2), scaled to norm 1.

    Without a limit on the bands, this series is nearly optimal for sums of all slots so far.

    >>> square_root(4).numerators
    (839, 420, 315, 262)
    """
    validate.count(most=MOST_BANDS, bands=bands)
    return rounded(_square_root_series(bands), bits=bits)


def optimised(bands: int, workload: Workload, *, bits: int = BITS) -> NoiseStrategy:
    """Return the coefficients that minimise ``Workload.error``, found by L-BFGS.

    >>> strategy = optimised(8, Workload(slots=100))
    >>> workload = Workload(slots=100)
    >>> workload.error(strategy.coefficients) < workload.error(square_root(8).coefficients)
    True
    """
    from scipy.optimize import minimize

    validate.count(most=MOST_BANDS, bands=bands)
    bands = min(bands, workload.slots)
    start = _square_root_series(bands)

    def coefficients_of(log_decreases: FloatArray) -> FloatArray:
        return np.asarray(np.cumsum(np.exp(log_decreases)[::-1])[::-1])

    def log_error(log_decreases: FloatArray) -> tuple[float, FloatArray]:
        error, gradient = workload._error_and_gradient(coefficients_of(log_decreases))
        return math.log(error), np.cumsum(gradient) * np.exp(log_decreases) / error

    decreases = np.append(start[:-1] - start[1:], start[-1])
    found = minimize(
        log_error,
        np.log(decreases),
        jac=True,
        method="L-BFGS-B",
        bounds=[(-30.0, 5.0)] * bands,
        options={"maxiter": _ITERATIONS},
    )
    return rounded(coefficients_of(found.x), bits=bits)


def named(name: StrategyName, bands: int, workload: Workload) -> NoiseStrategy:
    """Return the strategy of this name. ``workload`` matters only for the optimised one."""
    validate.one_of(StrategyName, strategy=name)
    if name is StrategyName.SQUARE_ROOT:
        return square_root(bands)
    return optimised(bands, workload)


def rounded(coefficients: npt.ArrayLike, *, bits: int = BITS) -> NoiseStrategy:
    """Return a strategy that is proportional to ``coefficients``, up to rounding.

    The coefficients must be positive and must not increase. The squares of the rounded ones sum to
    at most 1.
    """
    values = np.asarray(coefficients, dtype=np.float64)
    if not (np.all(values > 0.0) and np.all(np.diff(values) <= 0.0) and np.isfinite(values[0])):
        raise InvalidValue("strategy", values.tolist(), "must be positive and must not increase")
    limit, scale = 4**bits, 2.0**bits / math.sqrt(float(values @ values))
    while True:
        numerators = [max(1, round(float(value) * scale)) for value in values]
        if sum(numerator * numerator for numerator in numerators) <= limit:
            return NoiseStrategy(tuple(numerators), bits)
        scale *= 1.0 - 2.0 ** -(bits + 4)


def read_strategy(path: str | Path) -> NoiseStrategy:
    """Read a strategy from a JSON file: ``{"bits": 2, "numerators": [3, 2]}`` is 3/4, 2/4."""
    try:
        values: Any = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not JSON"
        raise InvalidValue(
            "strategy",
            str(path),
            f"must be {', '.join(StrategyName)} or a file with coefficients: {reason}",
        ) from None
    if not isinstance(values, dict) or values.keys() != {"bits", "numerators"}:
        raise InvalidValue("strategy", str(path), 'must hold {"bits": ..., "numerators": [...]}')
    return NoiseStrategy(tuple(values["numerators"]), values["bits"])


def _square_root_series(bands: int) -> FloatArray:
    ratios = (2.0 * np.arange(1, bands) - 1.0) / (2.0 * np.arange(1, bands))
    return np.concatenate(([1.0], np.cumprod(ratios)))
