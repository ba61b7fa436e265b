"""Timing and tables that the benchmarks share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Result = TypeVar("Result")


def timed(run: Callable[[], Result], *, repeats: int = 3) -> tuple[Result, float]:
    """Return the result of ``run``, and the seconds of its fastest repetition."""
    quickest = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        result = run()
        quickest = min(quickest, time.perf_counter() - started)
    return result, quickest


@dataclass(frozen=True, slots=True)
class Section:
    """A table of results, with a promise and whether it holds.

    ``kept`` names figures from stored files, which were measured at other commits.
    ``measured_here`` is False if the table shows only such figures.
    """

    title: str
    promise: str
    holds: bool
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    kept: Sequence[str] = ()
    measured_here: bool = True

    def markdown(self, measured: Sequence[str] = ()) -> str:
        """Return the section as Markdown, with the lines that name its commits."""
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
