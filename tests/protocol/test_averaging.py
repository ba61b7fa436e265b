"""The average of released models: its weights, and the mean of plain models."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.errors import InvalidValue
from checkins.protocol.model_update import RunningAverage, average_weights

shares = st.floats(0.01, 1.0)


def average_of(models: np.ndarray, share: float) -> np.ndarray:
    average = reduce(RunningAverage.with_model, models, RunningAverage(share))
    assert average.models == len(models)
    assert average.model is not None
    return average.model


def final_weights(count: int, share: float) -> np.ndarray:
    """The weight of each of ``count`` models in their average."""
    return average_of(np.eye(count), share=share)


@given(st.integers(1, 60), shares)
def test_weights_are_positive_add_up_to_one_and_never_fall(count: int, share: float) -> None:
    weights = final_weights(count, share)
    assert weights.min() > 0.0
    assert weights.sum() == pytest.approx(1.0)
    assert (np.diff(weights) >= -1e-12).all()


@given(st.integers(1, 60), shares)
def test_the_mean_age_of_the_models_is_half_the_share(count: int, share: float) -> None:
    """Exactly: the mean age is (count − 1) / (η + 2), and 1 / (η + 2) = share / 2."""
    mean = final_weights(count, share) @ np.arange(1, count + 1)
    assert count - mean == pytest.approx((count - 1) * share / 2)


def test_with_share_one_it_is_the_mean() -> None:
    models = np.random.default_rng(1).normal(size=(7, 3))
    assert average_of(models, share=1.0) == pytest.approx(models.mean(axis=0))


def test_the_average_of_one_model_is_the_model_for_every_share() -> None:
    assert average_weights(np.array([1]), share=0.3).tolist() == [1.0]
    assert average_of(np.ones((1, 2)), share=0.3).tolist() == [1.0, 1.0]
    assert RunningAverage(0.3).model is None


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, float("nan")])
def test_a_share_outside_zero_to_one_is_refused(share: float) -> None:
    with pytest.raises(InvalidValue, match="share"):
        average_weights(np.array([1]), share=share)
