"""Plant known bugs one at a time; the tests must notice each of them.

python tools/mutants.py              all of them
python tools/mutants.py NAME ...     some of them
python tools/mutants.py --list       their names and what each one does

A bug is a change of text in a copy of src/. When the text it changes is gone, the list is stale
and this fails too. The bugs are in mutant_list.py.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LONGEST_S = 300


@dataclass(frozen=True, slots=True)
class Change:
    """One text in one file becomes another."""

    file: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """A bug, and the tests that must fail because of it."""

    name: str
    what: str
    changes: tuple[Change, ...]
    tests: tuple[str, ...]


class Stale(Exception):
    """A bug that cannot be planted any more."""


def plant(mutant: Mutant, source: Path) -> None:
    """Change the copy of src/ that lies in ``source``."""
    for change in mutant.changes:
        path = source / change.file
        text = path.read_text(encoding="utf-8")
        if text.count(change.before) != 1:
            found = text.count(change.before)
            raise Stale(f"{mutant.name}: its text stands {found} times in {change.file}, not once")
        path.write_text(text.replace(change.before, change.after), encoding="utf-8")


def run_tests(tests: Sequence[str], source: Path) -> subprocess.CompletedProcess[str]:
    """Run tests against the code in ``source`` instead of src/."""
    environment = os.environ | {
        "PYTHONPATH": str(source),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_PROFILE": "mutants",
    }
    for name in [name for name in environment if name.startswith("PYTEST_")]:
        del environment[name]  # this run is its own, even inside another one
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST_S,
    )


def caught(mutant: Mutant) -> str | None:
    """The first test that noticed the bug, or None."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        plant(mutant, source / "checkins")
        done = run_tests(mutant.tests, source)
    if done.returncode == 0:
        return None
    if done.returncode != 1:
        raise Stale(f"{mutant.name}: pytest ended with {done.returncode}\n{done.stdout[-2000:]}")
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].split(" - ")[0] if failed else "a test failed"


def main() -> int:
    from tools.mutant_list import MUTANTS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", action="store_true")
    asked = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if not asked.names or mutant.name in asked.names]
    if unknown := set(asked.names) - {mutant.name for mutant in MUTANTS}:
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}; see --list")
    if asked.list:
        print("\n".join(f"{mutant.name}: {mutant.what}" for mutant in chosen))
        return 0
    survived = 0
    for mutant in chosen:
        by = caught(mutant)
        survived += by is None
        print(f"{'SURVIVED' if by is None else 'caught  '} {mutant.name:32} {by or ''}", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} planted bugs were caught")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
