"""R_j: the slots that one client draws from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from checkins import validate
from checkins.errors import InvalidValue


@dataclass(frozen=True, slots=True)
class FixedWindow:
    """The same slots whenever the client wakes: all of a campaign's, or a client's own R_j.

    A slot that has passed by then means that the client abstains: it still draws from all of them.
    """

    slots: Sequence[int]

    def __post_init__(self) -> None:
        if not isinstance(self.slots, range):
            object.__setattr__(self, "slots", tuple(self.slots))
        if len(self.slots) == 0:
            raise InvalidValue("window", self.slots, "must hold at least one slot")
        listed = self.slots if isinstance(self.slots, tuple) else ()
        validate.count(slots=min(self.slots))
        if any(a >= b for a, b in pairwise(listed)):
            raise InvalidValue("window", self.slots, "must be in order, each slot once")

    @classmethod
    def whole(cls, slots: int) -> FixedWindow:
        """R_j = [m], as in the paper."""
        return cls(range(1, slots + 1))

    def __len__(self) -> int:
        return len(self.slots)

    def slot(self, pick: int, *, now: int) -> int:
        """The slot at position ``pick``."""
        return self.slots[pick]


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """R_j = {j, ..., j + length − 1} for a client that wakes at slot j (section 4.2)."""

    length: int

    def __post_init__(self) -> None:
        validate.count(window=self.length)

    def __len__(self) -> int:
        return self.length

    def slot(self, pick: int, *, now: int) -> int:
        """The slot at position ``pick`` of the window that begins ``now``."""
        return now + pick


Window = FixedWindow | SlidingWindow
