"""A clock for several processes: it shows the time that a test has written into a file."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from checkins import durable_file


@dataclass(frozen=True)
class FileClock:
    """``path`` contains the time. ``path.waits`` contains the time for which a process waits."""

    path: Path

    def now(self) -> float:
        return float(self.path.read_text())

    def set(self, now_s: float) -> None:
        durable_file.replace_content(self.path, repr(now_s).encode())

    def sleep_until(self, moment_s: float) -> None:
        durable_file.replace_content(self.path.with_suffix(".waits"), repr(moment_s).encode())
        while self.now() < moment_s:
            time.sleep(0.1)

    @property
    def waits_until(self) -> float:
        """The time for which the last process that slept waits, or waited."""
        waits = self.path.with_suffix(".waits")
        return float(waits.read_text()) if waits.exists() else 0.0
