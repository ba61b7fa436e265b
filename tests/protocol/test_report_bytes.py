"""Reports and models as bytes: what goes in comes out, and nothing else comes in."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from checkins.errors import InvalidValue, ProtocolViolation
from checkins.ledger.entry import hash_model
from checkins.protocol.report import (
    MAX_HEADER_BYTES,
    MalformedReport,
    model_from_bytes,
    model_to_bytes,
    report_from_bytes,
    report_to_bytes,
)

units = st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=40)
names = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=8)
tensors = st.dictionaries(
    names.filter(lambda name: name != "__metadata__"),
    st.lists(st.floats(width=64, allow_nan=False), min_size=1, max_size=6),
    min_size=1,
    max_size=4,
)


@given(values=units)
def test_a_report_comes_back_unit_by_unit(values: list[int]) -> None:
    sent = report_to_bytes(np.array(values, dtype=np.int32))
    back = report_from_bytes(sent, dimension=len(values))
    assert back.dtype == np.int32
    assert back.tolist() == values
    assert report_to_bytes(back) == sent
    assert len(sent) <= 8 + MAX_HEADER_BYTES + 4 * len(values)


@given(values=units, more=st.integers(1, 5))
def test_a_report_of_another_size_is_refused(values: list[int], more: int) -> None:
    sent = report_to_bytes(np.array(values, dtype=np.int32))
    with pytest.raises(MalformedReport):
        report_from_bytes(sent, dimension=len(values) + more)


@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_report_or_refused(data: bytes) -> None:
    with pytest.raises(MalformedReport) as refusal:
        report_from_bytes(data, dimension=3)
    assert isinstance(refusal.value, ProtocolViolation)
    assert "Error" not in str(refusal.value)  # in our words, not in a library's


@given(place=st.integers(0, 10**6), byte=st.integers(0, 255))
def test_a_byte_that_was_changed_is_another_report_or_refused(place: int, byte: int) -> None:
    sent = bytearray(report_to_bytes(np.array([1, 2, 3], dtype=np.int32)))
    sent[place % len(sent)] = byte
    try:
        back = report_from_bytes(bytes(sent), dimension=3)
    except MalformedReport:
        return
    assert back.shape == (3,)


@pytest.mark.parametrize(
    "held",
    [
        {"report": np.zeros(3, np.float32)},
        {"report": np.zeros(3, np.int64)},
        {"report": np.zeros((3, 1), np.int32)},
        {"report": np.zeros((1, 3), np.int32)},
        {"Report": np.zeros(3, np.int32)},
        {"report": np.zeros(3, np.int32), "more": np.zeros(0, np.int32)},
        {},
    ],
)
def test_anything_but_one_flat_tensor_of_integers_is_refused(held) -> None:
    with pytest.raises(MalformedReport):
        report_from_bytes(save(held), dimension=3)


@pytest.mark.parametrize(
    "more",
    [
        b'{"__metadata__":{"client":"ann"},"report":%b}',
        b'{"__metadata__":{},"report":%b}',
        b'{"report":%b,"__metadata__":{"slot":"3"}}',
    ],
)
def test_a_report_carries_no_metadata(more: bytes) -> None:
    tensor = b'{"dtype":"I32","shape":[3],"data_offsets":[0,12]}'
    for header, taken in ((b'{"report":%b}' % tensor, True), (more % tensor, False)):
        whole = struct.pack("<Q", len(header)) + header + bytes(12)
        if taken:
            assert report_from_bytes(whole, dimension=3).tolist() == [0, 0, 0]
            continue
        with pytest.raises(MalformedReport, match="one tensor"):
            report_from_bytes(whole, dimension=3)


def test_a_tensor_has_no_fields_but_its_own() -> None:
    header = b'{"report":{"dtype":"I32","shape":[3],"data_offsets":[0,12],"by":"ann"}}'
    with pytest.raises(MalformedReport, match="and nothing else"):
        report_from_bytes(struct.pack("<Q", len(header)) + header + bytes(12), dimension=3)


def test_a_header_that_claims_more_than_there_is_is_refused() -> None:
    for length in (2**63, 2**31, 10**6):
        with pytest.raises(MalformedReport):
            report_from_bytes(struct.pack("<Q", length) + b"{}", dimension=3)
    header = json.dumps(
        {"report": {"dtype": "I32", "shape": [3], "data_offsets": [0, 12]}}
    ).encode()
    whole = struct.pack("<Q", len(header)) + header + bytes(12)
    assert report_from_bytes(whole, dimension=3).tolist() == [0, 0, 0]
    for wrong in (whole[:-1], whole + b"\0", whole + bytes(2000)):
        with pytest.raises(MalformedReport):
            report_from_bytes(wrong, dimension=3)


@given(held=tensors, about=st.dictionaries(names, st.text(max_size=9), max_size=3))
def test_a_model_comes_back_in_its_order_and_with_its_hash(held, about) -> None:
    about.pop("order", None)
    model = {name: np.array(values) for name, values in held.items()}
    back, known = model_from_bytes(model_to_bytes(model, about))
    assert list(back) == list(model)
    assert known == about
    hashes = [
        hash_model(np.concatenate([each.ravel() for each in tensors.values()]))
        for tensors in (model, back)
    ]
    assert hashes[0] == hashes[1]


def test_a_model_keeps_its_shapes_and_every_bit() -> None:
    model = {"b": np.array([[1.0, -0.0], [np.pi, 5e-324]]), "a": np.array(2.5)}
    back, _ = model_from_bytes(model_to_bytes(model))
    assert [tensor.shape for tensor in back.values()] == [(2, 2), ()]
    assert all(back[name].tobytes() == model[name].tobytes() for name in model)


@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_model_or_refused(data: bytes) -> None:
    with pytest.raises(InvalidValue, match="is not a model of checkins"):
        model_from_bytes(data)


@pytest.mark.parametrize("order", ["[1]", "{}x", '["other"]', "5", "[[]]"])
def test_a_model_whose_order_is_not_its_own_is_refused(order: str) -> None:
    for held in ({"a": np.zeros(2)}, {"a": np.zeros(2), "other": np.zeros(1)}):
        with pytest.raises(InvalidValue, match="is not a model of checkins"):
            model_from_bytes(save(held, {"order": order}))
