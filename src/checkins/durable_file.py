"""Write files so that they survive a crash.

After a crash, a replaced file has either its whole old content or its whole new content.
``write_all`` does not flush the file: call ``os.fsync`` after it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def replace_content(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Replace the content of a file. After the return, the new content survives a crash."""
    with replacing(path, mode=mode) as file:
        file.write(content)


@contextmanager
def replacing(path: Path, *, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Yield a new file that replaces the file at ``path`` if the block ends without an error.

    The new file has the permissions ``mode``. If ``path`` is a link, its target is replaced. A
    device or a pipe cannot be replaced, so the block writes to it directly.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        with path.open("wb") as file:
            yield file
        return
    temporary = target.with_name(target.name + ".part")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    except OSError as error:
        error.filename = str(path)
        raise
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def write_all(descriptor: int, content: bytes) -> None:
    """Write with one system call. Raise OSError if only a part of the content was written."""
    if os.write(descriptor, content) != len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def truncate(descriptor: int, size: int) -> None:
    """Cut a file to ``size`` bytes, and flush it to the disk."""
    os.ftruncate(descriptor, size)
    os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Flush the folder itself, so that files that were created or renamed survive a crash."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
