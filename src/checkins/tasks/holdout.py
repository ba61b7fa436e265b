"""Who is in a public holdout: a rule on a client's own id, so nobody's place depends on others."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from checkins.errors import InvalidValue


def in_holdout(ids: Iterable[str], *, share: float, purpose: str) -> NDArray[np.bool_]:
    """Which of ``ids`` the public rule puts into the holdout: on average this share of them.

    An id is in when the first 64 bits of SHA-256("``purpose``:id"), as a fraction of 2^64, lie
    below ``share``. Adding or removing a person moves nobody else.

    >>> in_holdout(["ann", "bob", "cid"], share=0.5, purpose="example").tolist()
    [False, False, True]
    """
    if not 0.0 <= share < 1.0:
        raise InvalidValue("holdout", share, "must be a share of the clients: 0 or more, below 1")
    bound = int(share * 2**64)
    prefix = sha256(f"{purpose}:".encode())

    def member(client: str) -> bool:
        digest = prefix.copy()
        digest.update(client.encode())
        return int.from_bytes(digest.digest()[:8], "big") < bound

    return np.fromiter(map(member, ids), dtype=np.bool_)
