"""The IDX files of Fashion-MNIST are read strictly, or refused with the remedy."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.errors import InvalidValue
from checkins.tasks.data import fashion_mnist
from checkins.tasks.data.fashion_mnist import load, read_idx

NAMES = {
    "train-images-idx3-ubyte": (3, 28, 28),
    "train-labels-idx1-ubyte": (3,),
    "t10k-images-idx3-ubyte": (2, 28, 28),
    "t10k-labels-idx1-ubyte": (2,),
}


def idx(array: np.ndarray) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes((0, 0, 8, array.ndim)) + sizes + array.astype(np.uint8).tobytes()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three clients and a holdout of two: one file of each pair is gzipped."""
    monkeypatch.setattr(fashion_mnist, "CLIENTS", 3)
    monkeypatch.setattr(fashion_mnist, "HOLDOUT", 2)
    monkeypatch.delenv(fashion_mnist.FOLDER_VARIABLE, raising=False)
    draws = np.random.default_rng(1)
    for number, (name, shape) in enumerate(NAMES.items()):
        content = idx(draws.integers(0, 256 if len(shape) > 1 else 10, shape))
        if number % 2:
            (tmp_path / name).write_bytes(content)
        else:
            (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))
    return tmp_path


def test_files_are_read_gzipped_or_not(folder: Path) -> None:
    data = load(folder)
    assert (data.clients, data.shape, data.classes) == (3, (28, 28), 10)
    assert len(data.holdout_labels) == 2
    raw = np.random.default_rng(1).integers(0, 256, (3, 28, 28))
    assert np.array_equal(data.features, (raw / 255.0).astype(np.float32))


def test_the_variable_names_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(fashion_mnist.FOLDER_VARIABLE, str(folder))
    assert load().clients == 3


def test_debians_folder_comes_last(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fashion_mnist, "DEBIAN_FOLDER", folder)
    assert load().clients == 3
    monkeypatch.setenv(fashion_mnist.FOLDER_VARIABLE, "")  # empty is unset
    assert load().clients == 3


def test_a_missing_folder_names_the_remedy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fashion_mnist, "DEBIAN_FOLDER", folder / "none")
    with pytest.raises(InvalidValue, match=r"dataset-fashion-mnist.*CHECKINS_FASHION_MNIST"):
        load()


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / f"{name}.gz").unlink(missing_ok=True)
    with pytest.raises(InvalidValue, match=f"{name}.*dataset-fashion-mnist"):
        load(folder)


def test_another_number_of_pictures_is_refused(folder: Path) -> None:
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(4)))
    with pytest.raises(InvalidValue, match=r"\(4,\).*must be \(3,\)"):
        load(folder)


def test_a_label_of_no_class_is_refused(folder: Path) -> None:
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(np.array([0, 10, 2])))
    with pytest.raises(InvalidValue, match="label 10"):
        load(folder)


SOUND = idx(np.arange(12).reshape(3, 2, 2))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "begins with nothing"),
        (SOUND[:3], "begins with 000008"),
        (SOUND[:10], "header with shape"),
        (SOUND[:-1], "shorter"),
        (SOUND + b"\0", "longer"),
        (b"\0\0\x0d\x03" + SOUND[4:], "begins with 00000d03"),
        (b"\0\0\x08\x01" + SOUND[4:], "begins with 00000801"),
        (SOUND[:7] + b"\x02" + SOUND[8:], "must be"),
        (gzip.compress(SOUND, mtime=0)[:-9], "damaged"),
        (gzip.compress(SOUND, mtime=0)[:12], "damaged"),
        (b"\x1f\x8bnot gzip at all", "damaged"),
        (gzip.compress(SOUND[:-1], mtime=0), "shorter"),
        (gzip.compress(SOUND + b"\0", mtime=0), "longer"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(InvalidValue, match=message):
        read_idx(path, shape=(3, 2, 2))


@given(shape=st.lists(st.integers(1, 5), min_size=1, max_size=3), zipped=st.booleans())
def test_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, shape: list[int], zipped: bool
) -> None:
    array = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    path = tmp_path_factory.mktemp("idx") / "file"
    path.write_bytes(gzip.compress(idx(array), mtime=0) if zipped else idx(array))
    assert np.array_equal(read_idx(path, shape=tuple(shape)), array)


@given(st.binary(max_size=64))
def test_any_other_bytes_are_refused_and_never_crash(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.mktemp("idx") / "file"
    path.write_bytes(content)
    with pytest.raises(InvalidValue):
        read_idx(path, shape=(100,))


@pytest.mark.slow
def test_the_real_files_hold_what_they_should() -> None:
    try:
        data = load()
    except InvalidValue as error:
        pytest.skip(f"FASHION-MNIST IS NOT TESTED: {error}")
    assert (data.clients, data.shape, data.classes) == (60_000, (28, 28), 10)
    assert np.bincount(data.labels).tolist() == [6_000] * 10
    assert np.bincount(data.holdout_labels).tolist() == [1_000] * 10
    assert float(data.features.min()) == 0.0
    assert float(data.features.max()) == 1.0
    # The mean grey value that is known of these files tells them from the digits of MNIST.
    assert float(data.features.mean(dtype=np.float64)) == pytest.approx(0.2860, abs=1e-4)
