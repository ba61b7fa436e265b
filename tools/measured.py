"""Record at which commit a figure was measured, with a digest of every measured file.

The commit is information for readers. It is not compared, because it may be rebased, and a shallow
clone may lack it. The digests are compared; sources.py computes them.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
VARIABLE = "CHECKINS_COMMIT"
COMMIT = re.compile(r"[0-9a-f]{7,40}")
LIBRARIES = ("numpy", "scipy", "jax")


class NoCommit(Exception):
    """There is no git history here and no commit was given."""


@dataclass(frozen=True, slots=True)
class Record:
    """The record of a figure: commit, digests of measured files, and machine.

    ``kept_since`` is True if the figure is older than its record. ``commit`` is then the first
    commit that contains the figure. ``date`` is the day of the measurement, or of that commit;
    empty in records of older versions. ``uncommitted`` are measured files that differed from the
    commit. ``on`` describes the machine.
    """

    commit: str
    files: dict[str, str]
    on: str = ""
    uncommitted: tuple[str, ...] = ()
    kept_since: bool = False
    date: str = ""

    @classmethod
    def of(cls, held: Any) -> Record:
        """Read a record from JSON. Raise ValueError if something is missing or malformed."""
        if not isinstance(held, dict):
            raise ValueError("has no record of the commit it was measured at")
        commit, files = held.get("commit"), held.get("files")
        if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
            raise ValueError(f"has no commit: {commit!r} is not 7 to 40 hexadecimal digits")
        if not isinstance(files, dict) or not files:
            raise ValueError("has no digests of the files it measures")
        uncommitted = tuple(held.get("uncommitted", ()))
        on, kept_since = held.get("on", ""), held.get("kept_since", False)
        return cls(commit, files, on, uncommitted, kept_since, held.get("date", ""))

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"commit": self.commit, "on": self.on}
        if self.date:
            found["date"] = self.date
        if self.kept_since:
            found["kept_since"] = True
        if self.uncommitted:
            found["uncommitted"] = list(self.uncommitted)
        return {**found, "files": self.files}

    def sentence(self) -> str:
        """Return the sentence that a page shows below the figure."""
        on = f" ({self.on})" if self.on else ""
        if self.kept_since:
            return f"Kept since {self.mark}{on}; the commit it was measured at was not recorded."
        if not self.uncommitted:
            return f"Measured at {self.mark}{on}."
        count = len(self.uncommitted)
        files = "a file that was" if count == 1 else f"{count} files that were"
        return f"Measured at {self.mark}{on}, with changes to {files} not committed."

    @property
    def mark(self) -> str:
        """The commit as a page shows it."""
        return f"`{self.commit[:7]}`"

    def changed(self, now: dict[str, str]) -> list[str]:
        """Return the measured files whose digests differ from ``now``, in the order of ``now``."""
        differ = [path for path, digest in now.items() if self.files.get(path) != digest]
        return differ + [path for path in self.files if path not in now]


def measuring(files: dict[str, str], *, commit: str, root: Path = ROOT) -> Record:
    """Return the record of a figure that is measured now. ``files`` are the digests."""
    today = datetime.now(UTC).date().isoformat()
    return Record(commit, files, machine(), _uncommitted(commit, files, root), date=today)


def commit_here(given: str | None = None, root: Path = ROOT) -> str:
    """Return the given commit, or ``CHECKINS_COMMIT`` of the environment, or git's HEAD."""
    said = given or os.environ.get(VARIABLE) or _head(root)
    if said is None:
        raise NoCommit(
            f"no git history here: say --commit or set {VARIABLE} to what `git rev-parse HEAD`"
            " prints where these files come from"
        )
    if not COMMIT.fullmatch(said):
        raise NoCommit(f"commit {said!r}: must be 7 to 40 hexadecimal digits")
    return said


def machine() -> str:
    """Return the versions of Python and libraries, and the machine type."""
    found = [f"Python {platform.python_version()}"]
    for library in LIBRARIES:
        try:
            found.append(f"{library} {version(library)}")
        except PackageNotFoundError:
            continue
    return ", ".join([*found, platform.machine()])


def _head(root: Path) -> str | None:
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(top.strip()).resolve() != root.resolve():
        return None  # no repository, or these files lie inside another repository
    head = _git(root, "rev-parse", "HEAD")
    return None if head is None else head.strip()


def _uncommitted(commit: str, files: Iterable[str], root: Path) -> tuple[str, ...]:
    head = _head(root)
    if head is None or not head.startswith(commit):
        return ()
    said = _git(root, "status", "--porcelain", "--untracked-files=all", "--", *files) or ""
    return tuple(sorted(line[3:] for line in said.splitlines()))


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None
