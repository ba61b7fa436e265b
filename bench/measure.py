"""Timing and tables shared by the benches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Result = TypeVar("Result")


def timed(run: Callable[[], Result], *, repeats: int = 3) -> tuple[Result, float]:
    """What ``run`` returns, and the seconds its quickest repetition took."""
    quickest = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        result = run()
        quickest = min(quickest, time.perf_counter() - started)
    return result, quickest


@dataclass(frozen=True, slots=True)
class Section:
    """One table of figures, and the sentence that says whether its promise holds.

    ``kept`` names figures of kept files that it shows, measured at commits of their own;
    ``measured_here`` is False if it shows nothing else.
    """

    title: str
    promise: str
    holds: bool
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    kept: Sequence[str] = ()
    measured_here: bool = True

    def markdown(self, measured: Sequence[str] = ()) -> str:
        """With the lines that say at which commits it was measured."""
        lines = [
            f"## {self.title}",
            "",
            f"{self.promise} **{'Holds' if self.holds else 'FAILS'}.**",
        ]
        lines += ["", "| " + " | ".join(self.header) + " |", "|" + " --- |" * len(self.header)]
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        for line in measured:
            lines += ["", line]
        return "\n".join(lines) + "\n"
