"""Write files that survive a crash: the only module that flushes ledgers, states and results.

A file that is replaced has its old content or its new content, never a part of one. An append
returns once its bytes are on the disk.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def replace_content(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Replace the content of a file; file, name and folder are durable once it returns."""
    with replacing(path, mode=mode) as file:
        file.write(content)


@contextmanager
def replacing(path: Path, *, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Yield a file whose content replaces that of ``path`` if the block ends without an error.

    ``mode`` are the permissions of the new file. A link is followed. A device or a pipe cannot be
    replaced, and is written directly.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        with path.open("wb") as file:
            yield file
        return
    part = target.with_name(target.name + ".part")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    except OSError as error:
        error.filename = str(path)
        raise
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def write_whole(descriptor: int, content: bytes) -> None:
    """Write with one call, not yet durable; raise ``OSError`` if the disk takes only a part."""
    if os.write(descriptor, content) != len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def truncate(descriptor: int, size: int) -> None:
    """Cut a file to a size, durably."""
    os.ftruncate(descriptor, size)
    os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the names of the files in a folder durable."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
