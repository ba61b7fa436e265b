"""Random bytes that tests choose; the library itself knows the operating system's only."""

from __future__ import annotations

import random


class Seeded:
    """Bytes that a seed determines."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.count = 0

    def bytes(self, count: int) -> bytes:
        self.count += count
        return self.random.randbytes(count)


class Scripted:
    """The given pieces in turn, each asked for by its length; then those of a seed."""

    def __init__(self, *pieces: bytes, seed: int = 0) -> None:
        self.pieces, self.rest = list(pieces), Seeded(seed)

    def bytes(self, count: int) -> bytes:
        if not self.pieces:
            return self.rest.bytes(count)
        piece = self.pieces.pop(0)
        assert len(piece) == count, f"asked for {count} bytes where {len(piece)} were scripted"
        return piece


def little(value: int, size: int) -> bytes:
    return value.to_bytes(size, "little")
