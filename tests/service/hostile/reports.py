"""Reports that no honest client sends, by what is wrong with them."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
from typing import Any

import numpy as np

from checkins.protocol.report import report_to_bytes

HUGE = 2**64 - 1


def tensors(header: dict[str, Any] | str | bytes, data: bytes) -> bytes:
    """Safetensors by hand: eight bytes of length, a header, the data."""
    if isinstance(header, dict):
        header = json.dumps(header)
    text = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(text)) + text + data


def tensor(dtype: str, shape: list[int], data: bytes, name: str = "report") -> bytes:
    return tensors({name: {"dtype": dtype, "shape": shape, "data_offsets": [0, len(data)]}}, data)


def malformed(dimension: int) -> dict[str, bytes]:
    """By name; none of them may be taken."""
    honest = report_to_bytes(np.zeros(dimension, np.int32))
    data = bytes(4 * dimension)
    info = {"dtype": "I32", "shape": [dimension], "data_offsets": [0, len(data)]}
    text = json.dumps(info)
    return {
        **_wrong_values(dimension),
        **_wrong_shapes(dimension),
        **_wrong_files(honest, dimension),
        "another name": tensor("I32", [dimension], data, "model"),
        "an empty name": tensor("I32", [dimension], data, ""),
        "two tensors": tensors(
            {"report": info, "more": {**info, "data_offsets": [len(data), 2 * len(data)]}}, 2 * data
        ),
        "two tensors in one place": tensors({"report": info, "more": info}, data),
        "the same name twice": tensors(f'{{"report": {text}, "report": {text}}}', data),
        "the same name twice, as floats first": tensors(
            f'{{"report": {text.replace("I32", "F32")}, "report": {text}}}', data
        ),
        "the same field twice": tensors(
            '{"report": ' + text.replace("{", '{"dtype": "F32", ', 1) + "}", data
        ),
        "nothing in it": tensors({}, b""),
        "only metadata": tensors({"__metadata__": {"report": "1"}}, data),
        "metadata that is no text": tensors({"__metadata__": {"a": 1}, "report": info}, data),
        "an unknown type": tensor("I31", [dimension], data),
        "offsets below zero": tensors({"report": {**info, "data_offsets": [-4, 4]}}, data),
        "offsets backwards": tensors({"report": {**info, "data_offsets": [len(data), 0]}}, data),
        "offsets beyond the end": tensors(
            {"report": {**info, "data_offsets": [len(data), 2 * len(data)]}}, data
        ),
        "offsets beyond 64 bits": tensors({"report": {**info, "data_offsets": [0, 2**70]}}, data),
        "offsets that leave a gap": tensors(
            {"report": {**info, "data_offsets": [4, len(data) + 4]}}, data + bytes(4)
        ),
        "offsets that are fractions": tensors({"report": {**info, "data_offsets": [0.5, 4]}}, data),
    }


def _wrong_values(dimension: int) -> dict[str, bytes]:
    def of(values: Any, kind: str, name: str) -> bytes:
        return tensor(name, [dimension], np.full(dimension, values, kind).tobytes())

    return {
        "NaN": of(np.nan, "<f4", "F32"),
        "infinite": of(np.inf, "<f4", "F32"),
        "minus infinite, 64 bits": of(-np.inf, "<f8", "F64"),
        "NaN, 16 bits": of(np.nan, "<f2", "F16"),
        "floats": of(0.5, "<f4", "F32"),
        "integers of 64 bits": of(1, "<i8", "I64"),
        "integers of 16 bits": of(1, "<i2", "I16"),
        "integers without a sign": of(1, "<u4", "U32"),
        "truth values": of(1, "u1", "BOOL"),
        "the largest integers": of(2**31 - 1, "<i4", "I32"),
        "the smallest integers": of(-(2**31), "<i4", "I32"),
    }


def _wrong_shapes(dimension: int) -> dict[str, bytes]:
    def of(shape: list[int]) -> bytes:
        return tensor("I32", shape, bytes(4 * int(np.prod(shape, dtype=np.int64))))

    return {
        "one coordinate more": of([dimension + 1]),
        "one coordinate less": of([dimension - 1]),
        "a column": of([dimension, 1]),
        "a row": of([1, dimension]),
        "one number": of([]),
        "no coordinate": of([0]),
        "many coordinates": of([3000]),
        "a shape that its data does not have": tensor("I32", [dimension], bytes(4 * dimension - 4)),
        "a shape beyond 64 bits": tensor("I32", [2**40, 2**40], bytes(4 * dimension)),
        "a shape below zero": tensor("I32", [-dimension], bytes(4 * dimension)),
    }


def _wrong_files(honest: bytes, dimension: int) -> dict[str, bytes]:
    array = np.zeros(dimension, np.int32)
    file = io.BytesIO()
    np.save(file, array)
    length = struct.unpack("<Q", honest[:8])[0]
    cuts = {
        f"cut off after {size} bytes": honest[:size]
        for size in (1, 7, 8, 9, 8 + length // 2, 8 + length, len(honest) - 1)
    }
    lies = {
        f"a header of {told:,} bytes": struct.pack("<Q", told) + honest[8:]
        for told in (0, 1, length - 1, length + 1, len(honest), 10**8, 2**63, HUGE)
    }
    return {
        **cuts,
        **lies,
        "a byte too many": honest + b"\0",
        "two reports": honest + honest,
        "nothing": b"",
        "zeros": bytes(100),
        "text": b"hello",
        "JSON": b'{"report": [1, 2, 3]}',
        "pickled": pickle.dumps(array),
        "an array of numpy": file.getvalue(),
        "compressed, and not said so": gzip.compress(honest),
        "a header that is a list": tensors("[]", bytes(4 * dimension)),
        "a header that is no JSON": tensors("{report}", bytes(4 * dimension)),
        "a header that is no text": tensors(b"\xff\xfe{}", bytes(4 * dimension)),
        "a deep header": tensors("[" * 900, bytes(4 * dimension)),
        "a deeper header": tensors('{"report":' * 2000, bytes(4 * dimension)),
        "a header full of blanks": tensors(" " * 10_000 + "{}", bytes(4 * dimension)),
        "a header larger than bodies may be": tensors(" " * 100_000 + "{}", bytes(4 * dimension)),
        "a header of NaN": tensors("NaN", bytes(4 * dimension)),
        "a number of many digits": tensors('{"report": ' + "9" * 5000 + "}", b""),
    }
