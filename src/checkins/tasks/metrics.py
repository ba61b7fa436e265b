"""Metrics of predictions, from scores and labels, in numpy.

``scores`` is the result of ``Model.scores``: for each row of data either the log-odds of class 1,
or one score per class.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkins.errors import InvalidValue
from checkins.tasks.model import check_labels

Scores = NDArray[Any]
Labels = NDArray[Any]


def accuracy(scores: Scores, labels: Labels) -> float:
    """Return the share of rows whose class with the highest score is the label.

    Of several classes with the highest score, the class with the smallest number is predicted.

    >>> accuracy(np.array([[2.0, 1.0], [0.0, 0.0]]), np.array([0, 1]))
    0.5
    """
    _check_scores_and_labels(scores, labels)
    predicted = scores > 0.0 if scores.ndim == 1 else np.argmax(scores, axis=1)
    return float(np.mean(predicted == labels))


def auc(scores: Scores, labels: Labels) -> float:
    """Return the area under the ROC curve.

    It is the share of pairs (row of class 1, row of class 0) in which the first row has the higher
    score; equal scores count one half. Pairs are counted as integers, so only the final division
    rounds. Both classes must occur.

    >>> auc(np.array([0.1, 0.4, 0.4, 0.8]), np.array([0, 0, 1, 1]))
    0.875
    """
    _check_scores_and_labels(scores, labels)
    if scores.ndim == 2:
        if scores.shape[1] != 2:
            raise InvalidValue("scores", scores.shape, "the AUC needs two classes")
        scores = scores[:, 1] - scores[:, 0]
    is_positive = labels == 1
    positives = int(is_positive.sum())
    pairs = positives * (len(labels) - positives)
    if not pairs:
        raise InvalidValue("labels", int(labels[0]), "must hold both classes for an AUC")
    order = np.argsort(scores, kind="stable")
    ranked_scores = scores[order]
    # Rows with equal scores are a group. A row of class 1 counts all rows of class 0 in groups
    # with lower scores, and half of the rows of class 0 in its own group.
    group_starts = np.flatnonzero(np.append(True, ranked_scores[1:] != ranked_scores[:-1]))
    positives_in_group = np.add.reduceat(is_positive[order].astype(np.int64), group_starts)
    negatives_in_group = np.diff(np.append(group_starts, len(ranked_scores))) - positives_in_group
    negatives_below = np.cumsum(negatives_in_group) - negatives_in_group
    wins = positives_in_group * (2 * negatives_below + negatives_in_group)  # in half pairs
    half_pairs: int = sum(wins.tolist())
    return half_pairs / (2 * pairs)


def mean_loss(scores: Scores, labels: Labels) -> float:
    """Return the mean of −log P(label), which is the loss of logistic and softmax models.

    >>> round(mean_loss(np.array([0.0, 0.0]), np.array([0, 1])), 4)
    0.6931
    """
    _check_scores_and_labels(scores, labels)
    z = scores.astype(np.float64)
    if z.ndim == 1:
        return float(np.mean(np.logaddexp(0.0, np.where(labels == 1, -z, z))))
    z -= z.max(axis=1, keepdims=True)
    label_scores = np.take_along_axis(z, labels[:, np.newaxis], axis=1)[:, 0]
    return float(np.mean(np.log(np.exp(z).sum(axis=1)) - label_scores))


def _check_scores_and_labels(scores: Scores, labels: Labels) -> None:
    if scores.ndim not in (1, 2) or not len(scores) or labels.shape != scores.shape[:1]:
        why = f"must have 1 or more rows, one for each label: labels have shape {labels.shape}"
        raise InvalidValue("scores", scores.shape, why)
    if not np.all(np.isfinite(scores)):
        raise InvalidValue("scores", "not finite", "the model has diverged: lower its rate")
    classes = 2 if scores.ndim == 1 else scores.shape[1]
    check_labels(labels, rows=len(scores), classes=classes)
