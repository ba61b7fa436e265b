"""Fashion-MNIST: 60,000 pictures of clothes, one per client, and 10,000 held-out test pictures.

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
from checkins.tasks.data.dataset import Dataset

NAME = "fashion-mnist"
VARIABLE = "CHECKINS_FASHION_MNIST"
PACKAGED = Path("/usr/share/datasets/fashion-mnist")
"""Folder in which Debian's package dataset-fashion-mnist installs the files."""

CLIENTS, HOLDOUT, SIDE, CLASSES = 60_000, 10_000, 28, 10
_UNSIGNED_BYTE = 0x08
_GZIP = b"\x1f\x8b"
_REMEDY = (
    "install Debian's package dataset-fashion-mnist, or get the four files of Fashion-MNIST and "
    f"name their folder in the variable {VARIABLE}"
)


def load(folder: str | os.PathLike[str] | None = None) -> Dataset:
    """Read the four files from ``folder``, else from $CHECKINS_FASHION_MNIST, else ``PACKAGED``.

    A row is a picture of 28 × 28 values in [0, 1].
    """
    place = _place(folder)
    features, labels = _pictures(place, "train", CLIENTS)
    held, held_labels = _pictures(place, "t10k", HOLDOUT)
    public: dict[str, NDArray[Any]] = {"holdout_features": held, "holdout_labels": held_labels}
    return Dataset.one_row_each(NAME, features, labels, CLASSES, **public)


def read_idx(path: Path, *, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return the unsigned bytes of one IDX file.

    Raises InvalidValue if the file has another type or shape, or if it is shorter or longer than
    its header says.
    """
    name, header, size = str(path), 4 + 4 * len(shape), prod(shape)
    try:
        with path.open("rb") as raw:
            # Read one byte more than expected, to detect a file that is too long.
            content = _plain(raw).read(header + size + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InvalidValue("file", name, "is a damaged gzip file: download it again") from error
    except OSError as error:
        raise InvalidValue("file", name, f"cannot be read: {error.strerror or error}") from error
    magic = bytes((0, 0, _UNSIGNED_BYTE, len(shape)))
    if content[:4] != magic:
        begins = content[:4].hex() or "nothing"
        raise InvalidValue("file", name, f"begins with {begins}, must begin with {magic.hex()}")
    header_shape = tuple(np.frombuffer(content[4:header].ljust(header - 4, b"\0"), ">u4").tolist())
    if len(content) < header or header_shape != shape:
        raise InvalidValue("file", name, f"has shape {header_shape} by its header: must be {shape}")
    if len(content) != header + size:
        kind = "shorter" if len(content) < header + size else "longer"
        raise InvalidValue("file", name, f"is {kind} than its header says: download it again")
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)


def _plain(raw: IO[bytes]) -> IO[bytes]:
    """Return the file, decompressed if it begins with the magic number of gzip."""
    zipped = raw.read(len(_GZIP)) == _GZIP
    raw.seek(0)
    return cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if zipped else raw


def _place(folder: str | os.PathLike[str] | None) -> Path:
    given = folder if folder is not None else os.environ.get(VARIABLE) or None
    place = PACKAGED if given is None else Path(given)
    if not place.is_dir():
        raise InvalidValue("folder", str(place), f"is not a folder: {_REMEDY}")
    return place


def _pictures(place: Path, part: str, count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    images = read_idx(_file(place, f"{part}-images-idx3-ubyte"), shape=(count, SIDE, SIDE))
    path = _file(place, f"{part}-labels-idx1-ubyte")
    labels = read_idx(path, shape=(count,))
    if not np.max(labels) < CLASSES:
        why = f"holds the label {np.max(labels)}: must be 0 to {CLASSES - 1}"
        raise InvalidValue("file", str(path), why)
    return np.divide(images, np.float32(255.0), dtype=np.float32), labels.astype(np.int64)


def _file(place: Path, name: str) -> Path:
    for path in (place / name, place / f"{name}.gz"):
        if path.is_file():
            return path
    raise InvalidValue("folder", str(place), f"has neither {name} nor {name}.gz: {_REMEDY}")
