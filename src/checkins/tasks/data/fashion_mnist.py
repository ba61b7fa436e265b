"""Fashion-MNIST: 60,000 pictures of clothes, one per client, and 10,000 public test pictures.

The four files in IDX format that Zalando published are read from a folder, gzipped or not. Nothing
is downloaded. Grey values from 0 to 255 are divided by 255, which is a public constant.
"""

from __future__ import annotations

import gzip
import os
import zlib
from math import prod
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from checkins.errors import InvalidValue
from checkins.tasks.data import Dataset

NAME = "fashion-mnist"
FOLDER_VARIABLE = "CHECKINS_FASHION_MNIST"
"""Environment variable that names the folder of the files."""
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
"""Folder in which Debian's package dataset-fashion-mnist installs the files."""

CLIENTS, HOLDOUT, SIDE, CLASSES = 60_000, 10_000, 28, 10
"""Pictures of clients, pictures in the holdout, pixels per side, and classes."""

_IDX_UNSIGNED_BYTE = 0x08  # code of the data type in the header of an IDX file
_GZIP_MAGIC = b"\x1f\x8b"
_HOW_TO_INSTALL = (
    "install Debian's package dataset-fashion-mnist, or get the four files of Fashion-MNIST and "
    f"name their folder in the variable {FOLDER_VARIABLE}"
)


def load(folder: str | os.PathLike[str] | None = None) -> Dataset:
    """Read the four files from ``folder``.

    If it is None, the folder is $CHECKINS_FASHION_MNIST or, if that is not set, ``DEBIAN_FOLDER``.
    A row is a picture of 28 × 28 values in [0, 1].
    """
    data_folder = _find_folder(folder)
    features, labels = _read_pictures(data_folder, "train", CLIENTS)
    pictures, classes = _read_pictures(data_folder, "t10k", HOLDOUT)
    holdout: dict[str, NDArray[Any]] = {"holdout_features": pictures, "holdout_labels": classes}
    return Dataset.one_row_each(NAME, features, labels, CLASSES, **holdout)


def read_idx(path: Path, *, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return the unsigned bytes of one IDX file.

    Raises InvalidValue if the file has another data type, or another shape than ``shape``, or if it
    is shorter or longer than its header says.
    """
    name, header_bytes, data_bytes = str(path), 4 + 4 * len(shape), prod(shape)
    try:
        with path.open("rb") as file:
            # Read one byte more than expected, to detect a file that is too long.
            content = _decompressed(file).read(header_bytes + data_bytes + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InvalidValue("file", name, "is a damaged gzip file: download it again") from error
    except OSError as error:
        raise InvalidValue("file", name, f"cannot be read: {error.strerror or error}") from error
    magic = bytes((0, 0, _IDX_UNSIGNED_BYTE, len(shape)))
    if content[:4] != magic:
        first_bytes = content[:4].hex() or "nothing"
        why = f"begins with {first_bytes}, must begin with {magic.hex()}"
        raise InvalidValue("file", name, why)
    sizes = content[4:header_bytes].ljust(header_bytes - 4, b"\0")
    header_shape = tuple(np.frombuffer(sizes, ">u4").tolist())
    if len(content) < header_bytes or header_shape != shape:
        raise InvalidValue("file", name, f"has a header with shape {header_shape}: must be {shape}")
    if len(content) != header_bytes + data_bytes:
        comparison = "shorter" if len(content) < header_bytes + data_bytes else "longer"
        raise InvalidValue("file", name, f"is {comparison} than its header says: download it again")
    return np.frombuffer(content, dtype=np.uint8, offset=header_bytes).reshape(shape)


def _decompressed(file: IO[bytes]) -> IO[bytes]:
    """Return the file, decompressed if it begins with the magic number of gzip."""
    is_gzipped = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    file.seek(0)
    return cast(IO[bytes], gzip.GzipFile(fileobj=file)) if is_gzipped else file


def _find_folder(folder: str | os.PathLike[str] | None) -> Path:
    chosen_folder = folder if folder is not None else os.environ.get(FOLDER_VARIABLE) or None
    data_folder = DEBIAN_FOLDER if chosen_folder is None else Path(chosen_folder)
    if not data_folder.is_dir():
        raise InvalidValue("folder", str(data_folder), f"is not a folder: {_HOW_TO_INSTALL}")
    return data_folder


def _read_pictures(
    data_folder: Path, subset: str, count: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    path = _find_file(data_folder, f"{subset}-images-idx3-ubyte")
    images = read_idx(path, shape=(count, SIDE, SIDE))
    path = _find_file(data_folder, f"{subset}-labels-idx1-ubyte")
    labels = read_idx(path, shape=(count,))
    if not np.max(labels) < CLASSES:
        why = f"holds the label {np.max(labels)}: must be 0 to {CLASSES - 1}"
        raise InvalidValue("file", str(path), why)
    return np.divide(images, np.float32(255.0), dtype=np.float32), labels.astype(np.int64)


def _find_file(data_folder: Path, name: str) -> Path:
    for path in (data_folder / name, data_folder / f"{name}.gz"):
        if path.is_file():
            return path
    why = f"has neither {name} nor {name}.gz: {_HOW_TO_INSTALL}"
    raise InvalidValue("folder", str(data_folder), why)
