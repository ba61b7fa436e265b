"""A mod for a ClientApp: the reply has only the node's report, and no arrays and no metrics.

A mod is part of the app, so whoever submits the app decides about it. It protects against what a
SuperLink stores, and against a server that reads more than it should. It does not protect against
an app that does not use it, nor against a server that asks a node more than once in its slot: each
reply is a report with noise of its own. The strategy of this package asks once.
"""

from __future__ import annotations

from collections.abc import Callable
from logging import WARNING

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MessageType, RecordDict
from flwr.common.logger import log
from numpy.typing import NDArray

from checkins.accounting import NoiseAt
from checkins.campaign import Campaign
from checkins.errors import InvalidValue
from checkins.flower.records import ARRAYS_KEY, LEGACY_ARRAYS_KEY, numbers_of, update_of_reply
from checkins.protocol.rules import sampler_of
from checkins.tasks.model import Shapes, flatten

REPORT_KEY = "report"
"""Name of the record and of the only array of a reply that contains a report."""
REFUSED_CODE = 0
"""Code of an error reply. Flower calls it unknown; codes below 10 are its own."""

CallNext = Callable[[Message, Context], Message]


def report_mod(campaign: Campaign) -> Callable[[Message, Context, CallNext], Message]:
    """Return the mod ``ClientApp(mods=[report_mod(campaign)])`` of a campaign.

    After training, it clips the update to the campaign's norm and rounds it to the grid. If clients
    add the noise, it also draws the noise, with randomness of the operating system. The reply
    contains only these integers. If training fails, it is the report of a zero update, so that
    nobody learns it. A message that does not ask for training gets an error as reply.
    """

    def mod(message: Message, context: Context, call_next: CallNext) -> Message:
        if message.metadata.message_type.partition(".")[0] != MessageType.TRAIN:
            reason = "clients of a campaign only train, and evaluate nothing"
            return Message(Error(REFUSED_CODE, reason), reply_to=message)
        model, shapes = _received_model(message)
        try:
            update = update_of_reply(call_next(message, context), model, shapes)
        except Exception as error:  # its text may contain data of the client
            log(WARNING, "Training has failed (%s). The report is a dummy.", type(error).__name__)
            update = np.zeros_like(model)
        sampler = sampler_of(campaign, dimension=update.size)
        at_server = campaign.noise_at is NoiseAt.SERVER
        report = sampler.encode(update) if at_server else sampler.privatize(update)
        array = Array(np.array(report.units))
        content = RecordDict({REPORT_KEY: ArrayRecord({REPORT_KEY: array})})
        return Message(content, reply_to=message)

    return mod


def report_in(reply: Message) -> NDArray[np.int32] | None:
    """Return the report in a reply, or None if the reply contains no record of this name.

    Raise InvalidValue if the record is not a vector of 32-bit integers.
    """
    record = reply.content.array_records.get(REPORT_KEY) if reply.has_content() else None
    if record is None:
        return None
    if list(record) != [REPORT_KEY]:
        raise InvalidValue(REPORT_KEY, sorted(record), "must be one array")
    try:
        units = record[REPORT_KEY].numpy()
    except Exception as error:
        raise InvalidValue(REPORT_KEY, None, f"cannot be read: {error}") from error
    if units.dtype != np.int32 or units.ndim != 1:
        raise InvalidValue(REPORT_KEY, str(units.dtype), "must be a vector of 32-bit integers")
    return np.asarray(units, np.int32)


def _received_model(message: Message) -> tuple[NDArray[np.float64], Shapes]:
    """Return the flat vector and the shapes of the model in a message."""
    records = message.content.array_records
    record = records[LEGACY_ARRAYS_KEY if LEGACY_ARRAYS_KEY in records else ARRAYS_KEY]
    tensors = {name: numbers_of(name, array) for name, array in record.items()}
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    return np.asarray(flatten(tensors, shapes), np.float64), shapes
