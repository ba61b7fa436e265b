"""Where output goes: results to standard output, everything else to standard error."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.live import Live
from rich.spinner import Spinner

MOST_COLUMNS = 100
"""Wider lines are hard to read."""


def show(*parts: RenderableType) -> None:
    """Print for people, as wide as the terminal and no wider than reads well."""
    console = Console(highlight=False)
    console.width = min(console.width, MOST_COLUMNS)
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    for line in captured.get().splitlines():
        print(line.rstrip())


def show_plain(line: str) -> None:
    """Print one line as it is, however long: a path stays in one piece."""
    print(line)


def show_json(answer: Mapping[str, object]) -> None:
    """Print one JSON object; a number that is not finite is null."""
    print(json.dumps(finite(answer), indent=2, allow_nan=False))


@contextmanager
def working(what: str, *, quiet: bool) -> Iterator[None]:
    """A spinner on standard error while something takes time, for people at a terminal."""
    console = Console(stderr=True)
    if quiet or not sys.stderr.isatty() or console.is_dumb_terminal:
        yield
        return
    with Live(Spinner("dots", f"{what} ..."), console=console, transient=True):
        yield


def finite(value: object) -> object:
    """The same values with null for every number that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
