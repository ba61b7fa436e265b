"""Convert between a campaign's model, a flat vector, and the records of Flower's messages.

The vector holds the model's tensors in the order of ``shapes`` (``checkins.tasks.model``). A Flower
app receives them as an ``ArrayRecord`` of float32 arrays with the same names, and replies with the
arrays after its training. The update is received − returned: the server of a campaign subtracts
updates, so with rate 1 the model moves by the mean of returned − received, as in FedAvg.

Arrays of floats of any precision are parameters. Arrays of integers or booleans are not trained, so
their update is zero. They hold counts, such as ``num_batches_tracked`` of batch normalization, and
the change of a count could be so large that clipping would remove most of the update.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import (
    DEFAULT_TTL,
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    Metadata,
    RecordDict,
)
from flwr.app.message import make_message
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from checkins.errors import InvalidValue
from checkins.tasks.model import Shapes, Vector, flatten, unflatten

ARRAYS_KEY, CONFIG_KEY = "arrays", "config"
"""Names of the records that Flower's FedAvg sends to a function of ``@app.train()``."""
LEGACY_ARRAYS_KEY, LEGACY_CONFIG_KEY = "fitins.parameters", "fitins.config"
"""Names of the records that are sent to an app with a ``client_fn``."""

Config = Mapping[str, bool | int | float | str]
"""Values of a config: Flower's ``UserConfig``."""


class InvalidReply(InvalidValue):
    """The reply of a Flower app contains no model of the campaign."""


def arrays_of(model: Vector, shapes: Shapes) -> ArrayRecord:
    """Return a flat vector as an ``ArrayRecord`` of float32 arrays, named as in ``shapes``."""
    tensors = unflatten(model.astype(np.float32), shapes)
    return ArrayRecord({name: Array(np.asarray(tensor)) for name, tensor in tensors.items()})


def has_client_fn(app: ClientApp) -> bool:
    """Return whether a ``ClientApp`` has a ``client_fn`` and so expects legacy records."""
    try:
        app.train()  # returns a decorator, and registers nothing
    except ValueError:
        return True
    return False


def train_content(arrays: ArrayRecord, config: Config, *, legacy: bool) -> RecordDict:
    """Return the content of a message of the type "train". ``legacy`` is ``has_client_fn(app)``."""
    names = (LEGACY_ARRAYS_KEY, LEGACY_CONFIG_KEY) if legacy else (ARRAYS_KEY, CONFIG_KEY)
    return RecordDict(dict(zip(names, (arrays, ConfigRecord(dict(config))), strict=True)))


def train_message(content: RecordDict, *, run_id: int, node_id: int) -> Message:
    """Return a message that asks an app to train, as if a SuperLink had delivered it.

    ``Message`` itself can only be constructed in a process that Flower has started.
    """
    metadata = Metadata(
        run_id=run_id,
        message_id="",
        src_node_id=0,
        dst_node_id=node_id,
        reply_to_message_id="",
        group_id="",
        created_at=time.time(),
        ttl=DEFAULT_TTL,
        message_type=MessageType.TRAIN,
    )
    return make_message(metadata, content)


def update_of_reply(reply: object, model: Vector, shapes: Shapes) -> NDArray[np.float64]:
    """Return received − returned arrays as a flat vector, which may contain NaN and infinities.

    ``model`` is the vector that was sent. The update of an array of integers is zero. Raise
    ``InvalidReply`` if the reply is an error, if its only ``ArrayRecord`` does not have exactly the
    arrays of the model, or if none of them has floats. Metrics are not used.
    """
    if not isinstance(reply, Message):
        raise InvalidReply("reply", type(reply).__name__, "must be a Message of flwr.app")
    if reply.has_error():
        error = reply.error
        raise InvalidReply("reply", f"error {error.code}", f"must have content: {error.reason}")
    if not reply.has_content():
        raise InvalidReply("reply", None, "must have content")
    records = list(reply.content.array_records.values())
    if len(records) != 1:
        raise InvalidReply("reply", f"{len(records)} ArrayRecords", "must have exactly one")
    sent = model.astype(np.float32).astype(np.float64)
    returned, is_trained = _vectors_of(records[0], shapes)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where(is_trained, sent - returned, 0.0)


def _vectors_of(
    record: ArrayRecord, shapes: Shapes
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the arrays of a record as a flat vector, and which of its numbers are floats.

    Arrays are matched by name. If they are numbered "0", "1", ..., as in a record that was made
    from a list, they are matched by position.
    """
    names = list(record)
    if set(names) != set(shapes) and names == [str(index) for index in range(len(shapes))]:
        names = list(shapes)
    tensors = {
        name: numbers_of(name, array) for name, array in zip(names, record.values(), strict=True)
    }
    floats = {name: np.full(one.shape, one.dtype.kind == "f") for name, one in tensors.items()}
    if not any(one.dtype.kind == "f" for one in tensors.values()):
        raise InvalidReply("reply", names, "must have an array of floats")
    try:
        vector = np.asarray(flatten(tensors, shapes), np.float64)
        return vector, np.asarray(flatten(floats, shapes), np.bool_)
    except InvalidValue as error:
        raise InvalidReply(error.name, error.value, error.expected) from error


def numbers_of(name: str, array: Array) -> NDArray[Any]:
    try:
        values = np.asarray(array.numpy())
    except Exception as error:
        expected = f"cannot be read as a numpy array: {error}"
        raise InvalidReply(name, array.stype, expected) from error
    if values.dtype.kind not in "fiub":
        raise InvalidReply(name, values.dtype.name, "must be an array of real numbers")
    return values
