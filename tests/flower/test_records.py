"""A model becomes Flower's records and comes back, and replies that are no model are refused."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from hypothesis import given
from hypothesis import strategies as st

from checkins.flower import records
from checkins.flower.records import (
    InvalidReply,
    arrays_of,
    train_content,
    train_message,
    update_of_reply,
)
from checkins.tasks.model import parameter_count

SHAPES = {"layer.weight": (2, 3), "layer.bias": (2,), "scale": ()}
MODEL = np.linspace(-1.0, 1.0, 9)

shapes = st.dictionaries(
    st.text(min_size=1, max_size=8),
    st.lists(st.integers(1, 4), max_size=3).map(tuple),
    min_size=1,
    max_size=4,
)


def sent(model=MODEL, of=SHAPES) -> Message:
    content = train_content(arrays_of(model, of), {}, legacy=False)
    return train_message(content, run_id=1, node_id=2)


def reply(*arrays: ArrayRecord) -> Message:
    content = {f"arrays{index}": record for index, record in enumerate(arrays)}
    metrics = MetricRecord({"num-examples": 3, "loss": 0.5})
    return Message(RecordDict({**content, "metrics": metrics}), reply_to=sent())


@given(shapes, st.integers(0, 2**32 - 1))
def test_arrays_that_come_back_unchanged_are_the_update_zero(of, seed: int) -> None:
    model = np.random.default_rng(seed).normal(size=parameter_count(of))
    back = Message(RecordDict({"arrays": arrays_of(model, of)}), reply_to=sent(model, of))
    assert np.array_equal(update_of_reply(back, model, of), np.zeros(len(model)))


def test_the_update_is_received_minus_returned_whatever_the_order_of_the_names() -> None:
    returned = arrays_of(MODEL + np.arange(9), SHAPES)
    turned = ArrayRecord({name: returned[name] for name in reversed(list(returned))})
    for record in (returned, turned):
        assert np.allclose(
            update_of_reply(reply(record), MODEL, SHAPES), -np.arange(9.0), atol=1e-6
        )


def test_a_list_of_arrays_is_matched_by_position() -> None:
    arrays = arrays_of(MODEL + 1.0, SHAPES).to_numpy_ndarrays()
    assert np.allclose(update_of_reply(reply(ArrayRecord(arrays)), MODEL, SHAPES), -1.0, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_of_any_precision_are_parameters(dtype: type[np.floating]) -> None:
    returned = ArrayRecord({"mean": Array(np.array([0.5, -2.0], dtype))})
    assert update_of_reply(reply(returned), np.ones(2), {"mean": (2,)}).tolist() == [0.5, 3.0]


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_])
def test_integers_are_counters_whose_update_is_zero(dtype: type[np.generic]) -> None:
    of = {"num_batches_tracked": (), "mean": (1,)}
    counted = Array(np.array(1, dtype))
    returned = ArrayRecord({"num_batches_tracked": counted, "mean": Array(np.array([0.5]))})
    assert update_of_reply(reply(returned), np.zeros(2), of).tolist() == [0.0, -0.5]


def test_nan_and_infinity_reach_the_clipping_which_removes_them() -> None:
    model = np.full(9, np.inf)
    model[0] = np.nan
    with np.errstate(invalid="ignore"):
        update = update_of_reply(reply(arrays_of(model, SHAPES)), MODEL, SHAPES)
    assert np.isnan(update[0])
    assert np.isneginf(update[1:]).all()


def changed(name: str, values: object) -> ArrayRecord:
    record = arrays_of(MODEL, SHAPES)
    record[name] = Array(np.asarray(values))
    return record


def without(name: str) -> ArrayRecord:
    record = arrays_of(MODEL, SHAPES)
    del record[name]
    return record


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "must be a Message"),
        (Message(Error(code=20, reason="no rows"), reply_to=sent()), "no rows"),
        (reply(), "0 ArrayRecords"),
        (reply(arrays_of(MODEL, SHAPES), arrays_of(MODEL, SHAPES)), "2 ArrayRecords"),
        (reply(without("scale")), "must be layer.bias, layer.weight, scale"),
        (
            reply(ArrayRecord({name: Array(np.ones(of, int)) for name, of in SHAPES.items()})),
            "must have an array of floats",
        ),
        (reply(changed("more", 0.0)), "must be layer.bias, layer.weight, scale"),
        (reply(changed("scale", [0.0])), "must have the shape ()"),
        (reply(changed("layer.weight", np.zeros((3, 2)))), "must have the shape (2, 3)"),
        (reply(changed("scale", 1j)), "real numbers"),
        (reply(changed("scale", "text")), "real numbers"),
        (reply(ArrayRecord({"scale": Array("float32", (), "other", b"")})), "cannot be read"),
        (reply(ArrayRecord({"scale": Array("float32", (), "numpy.ndarray", b"?")})), "cannot be"),
    ],
)
def test_a_reply_without_the_arrays_of_the_model_is_refused(answer: object, said: str) -> None:
    with pytest.raises(InvalidReply) as caught:
        update_of_reply(answer, MODEL, SHAPES)
    assert said in str(caught.value)


def test_the_two_forms_of_an_app_are_told_apart_without_a_change_of_the_app() -> None:
    new = ClientApp()
    assert not records.has_client_fn(new)

    @new.train()
    def train(message, context): ...

    assert not records.has_client_fn(new)
    assert records.has_client_fn(ClientApp(lambda context: NumPyClient().to_client()))


def test_each_form_gets_its_own_names_of_records() -> None:
    arrays = arrays_of(MODEL, SHAPES)
    new = train_content(arrays, {"lr": 0.1}, legacy=False)
    old = train_content(arrays, {"lr": 0.1}, legacy=True)
    assert set(new) == {"arrays", "config"}
    assert set(old) == {"fitins.parameters", "fitins.config"}
    assert new["config"] == old["fitins.config"] == ConfigRecord({"lr": 0.1})
