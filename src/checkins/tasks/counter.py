"""Simulation draws by their number: draw j of client i of a seed, without the draws before it.

A hundred million clients need not stand in memory: what one of them holds is computed from
(seed, index) when it checks in. For simulated data only: these draws protect nobody, and the noise
of a report never comes from here.
"""

from __future__ import annotations

from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from checkins.errors import InvalidValue

MOST_CLIENTS = 2**48
MOST_DRAWS = 2**16
"""Draws of one client; a client and a draw number together fill 64 bits."""

_BLOCK = 2**15  # words at once: they stay in a processor's cache

# The odd constant and the finalizer of SplitMix64 [SLF14]: a bijection of 64-bit words.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX = ((30, np.uint64(0xBF58476D1CE4E5B9)), (27, np.uint64(0x94D049BB133111EB)))


def uniforms(seed: int, stream: str, clients: NDArray[np.int64], draws: int) -> NDArray[np.float64]:
    """Numbers in (0, 1), one row for each client: the same whichever clients are asked together.

    Different (seed, stream) give unrelated numbers.

    >>> rows = uniforms(7, "example", np.array([3, 10**12]), 2)
    >>> bool(np.all(rows[1] == uniforms(7, "example", np.array([10**12]), 2)))
    True
    """
    if not 1 <= draws <= MOST_DRAWS:
        raise InvalidValue("draws", draws, f"must be 1 to {MOST_DRAWS:,}")
    indices = np.asarray(clients)
    if indices.ndim != 1 or not np.issubdtype(indices.dtype, np.integer):
        raise InvalidValue("clients", indices.dtype.name, "must be one axis of whole numbers")
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < MOST_CLIENTS:
        raise InvalidValue(
            "clients", [int(indices.min()), int(indices.max())], "must be 0 to 2^48 - 1"
        )
    keys = _keys(seed, stream)
    rows = np.empty((len(indices), draws))
    block = max(1, _BLOCK // draws)
    for start in range(0, len(indices), block):
        part = slice(start, start + block)
        rows[part] = _block(keys, indices[part].astype(np.uint64), draws)
    return rows


def _block(
    keys: tuple[np.uint64, np.uint64], clients: NDArray[np.uint64], draws: int
) -> NDArray[np.float64]:
    numbers = np.arange(draws, dtype=np.uint64)
    words: NDArray[np.uint64] = np.add(clients[:, None] * np.uint64(MOST_DRAWS), numbers)
    words *= _STEP
    for key in keys:  # twice: one pass is weak where counters differ in few bits
        words += key
        for shift, factor in _MIX:
            words ^= words >> np.uint64(shift)
            words *= factor
        words ^= words >> np.uint64(31)
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def _keys(seed: int, stream: str) -> tuple[np.uint64, np.uint64]:
    digest = sha256(f"checkins:{stream}:{int(seed)}".encode()).digest()
    first, second = np.frombuffer(digest[:16], dtype="<u8").astype(np.uint64)
    return first, second
