"""Show the public state of a running campaign in a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import httpx
from demonstration.processes import Failed
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from checkins import formatting

OVER = ("completed", "stopped")
"""States of a campaign that has ended."""
LINES = 10
"""Approximate number of lines of progress if standard output is not a terminal."""
Show = Callable[[dict[str, Any], dict[str, Any]], None]


class Window:
    """The public requests to the service, which need no token."""

    def __init__(self, url: str, campaign: str) -> None:
        self._campaign = f"{url}/campaigns/{campaign}"
        self._http = httpx.Client(trust_env=False, timeout=30.0)

    def __enter__(self) -> Window:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def fetch(self, page: str = "") -> bytes:
        """Fetch the campaign, or a resource below it such as /ledger."""
        try:
            return self._http.get(self._campaign + page).raise_for_status().content
        except httpx.HTTPError as error:
            raise Failed(f"the coordinator does not answer as expected: {error}") from error

    def look(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the state of the campaign and the metrics of its models."""
        return json.loads(self.fetch()), json.loads(self.fetch("/progress"))


def is_over(view: dict[str, Any], progress: dict[str, Any]) -> bool:
    """Return True if the last slot is closed and its model is evaluated."""
    measured = [point["slots"] for point in progress["curve"]]
    return view["status"] in OVER and view["slots_closed"] in measured


def progress_texts(view: dict[str, Any], progress: dict[str, Any]) -> tuple[str, str]:
    """Return two short texts: the current slot, and the metric and epsilon of the model."""
    closed, slots = view["slots_closed"], view["schedule"]["slots"]
    if view["status"] == "waiting":
        start, now = (
            datetime.fromisoformat(moment)
            for moment in (view["schedule"]["start"], view["server_time"])
        )
        left_s = max(0, round((start - now).total_seconds()))
        return f"slot 1 of {slots} in {left_s} s", "devices enrol"
    curve, spent = progress["curve"], view["spent"]
    auc = f"AUC {curve[-1]['metrics'].get('auc', float('nan')):.3f}" if curve else "AUC: none yet"
    epsilon = f"epsilon <= {formatting.up(spent['epsilon'])}" if spent else "epsilon 0"
    return f"slot {min(closed + 1, slots)} of {slots}", f"{auc}   {epsilon}"


@contextmanager
def shown() -> Iterator[Show]:
    """Yield a function that shows progress: a bar on a terminal, otherwise a few lines."""
    console = Console(highlight=False)
    if not sys.stdout.isatty() or console.is_dumb_terminal:
        yield _Lines().show
        return
    columns = (
        TextColumn("{task.fields[where]:<20}"),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[known]:<28}"),
    )
    console.width = min(console.width, 80)
    with Progress(*columns, console=console, transient=True, expand=True) as bars:
        bar = bars.add_task("", total=1, where="", known="")

        def show(view: dict[str, Any], progress: dict[str, Any]) -> None:
            where, known = progress_texts(view, progress)
            total, closed = view["schedule"]["slots"], view["slots_closed"]
            bars.update(bar, total=total, completed=closed, where=where, known=known)

        yield show


class _Lines:
    """Print about ``LINES`` lines of progress in total."""

    def __init__(self) -> None:
        self._next = 0

    def show(self, view: dict[str, Any], progress: dict[str, Any]) -> None:
        closed, slots = view["slots_closed"], view["schedule"]["slots"]
        if closed >= self._next:
            print("   ".join(progress_texts(view, progress)), flush=True)
            self._next = closed + max(1, slots // LINES)
