"""A data set: rows grouped by client, and a public holdout of rows for evaluation.

The rows are scaled by public constants, and no value is missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkins.errors import InvalidValue

MAX_CLASSES = 10**6
"""Largest allowed number of classes."""
REAL_TARGETS = 0
"""Value of ``classes`` in a data set for regression, whose targets are real numbers."""


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Rows grouped by client, in memory. The arrays become read-only views.

    ``features`` has one row per example, of any shape. ``labels`` are integers from 0 to
    ``classes`` − 1 or, if ``classes`` is 0, float64 targets. Client j has the rows
    ``offsets[j]:offsets[j + 1]``, at least one. The holdout is public and may be empty. People in
    the holdout are not protected, and they are not clients.

    >>> data = Dataset.one_row_each("two", np.zeros((2, 3), np.float32), np.array([0, 1]), 2)
    >>> data.clients, data.dimension, data.rows_of(1)
    (2, 3, slice(1, 2, None))
    """

    name: str
    features: NDArray[np.float32]
    labels: NDArray[Any]
    offsets: NDArray[np.int64]
    classes: int
    holdout_features: NDArray[np.float32]
    holdout_labels: NDArray[Any]

    def __post_init__(self) -> None:
        is_integer = isinstance(self.classes, int) and not isinstance(self.classes, bool)
        if not is_integer or not (self.classes == REAL_TARGETS or 2 <= self.classes <= MAX_CLASSES):
            why = f"must be 2 to {MAX_CLASSES:,}, or 0 for real targets"
            raise InvalidValue("classes", self.classes, why)
        _check_features("features", self.features)
        _check_features("holdout_features", self.holdout_features)
        if not len(self.features):
            raise InvalidValue("features", self.features.shape, "must have at least one row")
        if self.holdout_features.shape[1:] != self.features.shape[1:]:
            why = f"a row must have the shape {self.features.shape[1:]} of the clients' rows"
            raise InvalidValue("holdout_features", self.holdout_features.shape, why)
        holdout_rows = len(self.holdout_features)
        _check_labels("labels", self.labels, len(self.features), self.classes)
        _check_labels("holdout_labels", self.holdout_labels, holdout_rows, self.classes)
        _check_offsets(self.offsets, len(self.features))
        for name in ("features", "labels", "offsets", "holdout_features", "holdout_labels"):
            object.__setattr__(self, name, _read_only(getattr(self, name)))

    @classmethod
    def one_row_each(
        cls,
        name: str,
        features: NDArray[np.float32],
        labels: NDArray[Any],
        classes: int,
        *,
        holdout_features: NDArray[np.float32] | None = None,
        holdout_labels: NDArray[Any] | None = None,
    ) -> Dataset:
        """Return a data set with one row per client. Without ``holdout_*``, it has no holdout."""
        offsets = np.arange(len(features) + 1, dtype=np.int64)
        public_features = features[:0] if holdout_features is None else holdout_features
        public_labels = labels[:0] if holdout_labels is None else holdout_labels
        return cls(name, features, labels, offsets, classes, public_features, public_labels)

    @property
    def clients(self) -> int:
        """The number of clients, not counting people in the holdout."""
        return len(self.offsets) - 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the features of one row."""
        return tuple(self.features.shape[1:])

    @property
    def dimension(self) -> int:
        """The number of features of a row."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def max_rows_per_client(self) -> int:
        """The largest number of rows of a client."""
        return int(np.max(np.diff(self.offsets)))

    def rows_of(self, client: int) -> slice:
        """Return the slice of a client's rows."""
        if not 0 <= client < self.clients:
            raise InvalidValue("client", client, f"must be 0 to {self.clients - 1}")
        return slice(int(self.offsets[client]), int(self.offsets[client + 1]))


def _check_features(name: str, features: NDArray[np.float32]) -> None:
    if not isinstance(features, np.ndarray) or features.dtype != np.float32:
        raise InvalidValue(name, _describe_type(features), "must be an array of float32")
    if features.ndim < 2:
        raise InvalidValue(name, features.shape, "must have rows and at least one axis of features")
    if not np.prod(features.shape[1:], dtype=np.int64):
        raise InvalidValue(name, features.shape, "must have at least one feature")
    # np.min and np.max return NaN if any value is NaN, and allocate no array as large as the data.
    extremes = (float(np.min(features, initial=0.0)), float(np.max(features, initial=0.0)))
    if not np.all(np.isfinite(extremes)):
        row = int(np.argwhere(~np.isfinite(features))[0][0])
        raise InvalidValue(name, f"row {row}", "holds NaN or an infinity: features must be finite")


def _check_labels(name: str, labels: NDArray[Any], rows: int, classes: int) -> None:
    dtype = np.int64 if classes else np.float64
    if not isinstance(labels, np.ndarray) or labels.dtype != dtype:
        why = f"must be an array of {np.dtype(dtype).name}"
        raise InvalidValue(name, _describe_type(labels), why)
    if labels.shape != (rows,):
        raise InvalidValue(name, labels.shape, f"must have one label for each of {rows} rows")
    is_valid = (labels >= 0) & (labels < classes) if classes else np.isfinite(labels)
    if not np.all(is_valid):
        row = int(np.argmin(is_valid))
        expected = f"must be 0 to {classes - 1}" if classes else "must be finite"
        raise InvalidValue(f"{name}[{row}]", labels[row].item(), expected)


def _check_offsets(offsets: NDArray[np.int64], rows: int) -> None:
    if not isinstance(offsets, np.ndarray) or offsets.dtype != np.int64 or offsets.ndim != 1:
        raise InvalidValue("offsets", _describe_type(offsets), "must be a vector of int64")
    if len(offsets) < 2:
        raise InvalidValue("offsets", offsets.tolist(), "must describe at least one client")
    if offsets[0] != 0 or offsets[-1] != rows:
        first_and_last = [int(offsets[0]), int(offsets[-1])]
        why = f"must begin with 0 and end with {rows}, the number of rows"
        raise InvalidValue("offsets", first_and_last, why)
    increases = offsets[1:] > offsets[:-1]  # not np.diff, because a subtraction could overflow
    if not np.all(increases):
        client = int(np.argmin(increases))
        why = f"must increase: client {client} would have no rows"
        raise InvalidValue("offsets", offsets[client : client + 2].tolist(), why)


def _describe_type(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype.name} of shape {value.shape}"
    return type(value).__name__


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def in_holdout(ids: Iterable[str], *, share: float, hash_prefix: str) -> NDArray[np.bool_]:
    """Return for each id whether it is in the public holdout, which has about ``share`` of the ids.

    The first 64 bits of SHA-256("``hash_prefix``:id") are divided by 2^64. The id is in the holdout
    if the result is below ``share``. The decision on one person does not depend on other people.

    >>> in_holdout(["ann", "bob", "cid"], share=0.5, hash_prefix="example").tolist()
    [False, False, True]
    """
    if not 0.0 <= share < 1.0:
        raise InvalidValue("holdout", share, "must be a share of the clients: 0 or more, below 1")
    threshold = int(share * 2**64)
    prefix_hash = sha256(f"{hash_prefix}:".encode())

    def is_member(client: str) -> bool:
        digest = prefix_hash.copy()
        digest.update(client.encode())
        return int.from_bytes(digest.digest()[:8], "big") < threshold

    return np.fromiter(map(is_member, ids), dtype=np.bool_)
