"""Where a device keeps its state: one small file, replaced whole, durable before it counts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from checkins.errors import InvalidValue

try:
    import fcntl
except ImportError:  # no such locks here: the owner sees to it that one process runs
    fcntl = None  # type: ignore[assignment]


class Keeper(Protocol):
    """Keeps the state of one device in one run."""

    def load(self) -> bytes | None: ...
    def save(self, kept: bytes) -> None: ...


class Memory:
    """Keeps nothing beyond the process: for tests and throw-away clients."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: bytes | None = None

    def load(self) -> bytes | None:
        """What was saved last."""
        return self._kept

    def save(self, kept: bytes) -> None:
        """Remember it."""
        self._kept = kept


class StateFile:
    """A file that holds either the old state or the new one, whatever happens on the way."""

    __slots__ = ("path",)

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> bytes | None:
        """What was saved last; None before that."""
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None

    def save(self, kept: bytes) -> None:
        """Durable once it returns: file, name and folder."""
        part = self.path.with_name(self.path.name + ".part")
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(kept)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, self.path)
        sync_folder(self.path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> Path:
    """A folder that only its owner reads; its own name is durable too."""
    if not folder.is_dir():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_folder(folder.resolve().parent)
    return folder


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Refuse a second process with the same state: two would draw twice."""
    with path.open("ab") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise InvalidValue(
                    "state", str(path.parent), "is in use by another participant"
                ) from error
        yield
