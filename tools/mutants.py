"""Plant known bugs, one at a time, and check that the tests notice each of them.

python tools/mutants.py              plant all bugs
python tools/mutants.py NAME ...     plant only these bugs
python tools/mutants.py --list       print the name and the description of each bug

A bug is a text replacement in a copy of src/. The files that are not changed are links to src/. If
the text to replace does not exist, this script fails. mutant_list.py lists the bugs with the tests
that must fail. Name a single test (``file.py::test_name``) and not a whole file, because every bug
runs its tests.

One process imports the libraries once. It forks a process for every bug, which imports the copy of
src/ and the tests, and runs pytest. Tests of ``tests/flower`` run with the Python of .venv-flower.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePath

ROOT = Path(__file__).resolve().parent.parent
FLOWER_TESTS, FLOWER_PYTHON = "tests/flower/", ROOT / ".venv-flower/bin/python"
"""Tests that need the environment of Flower, and its Python."""
LONGEST_S = 300
OPTIONS = (
    *("-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # plugins are imported before pytest runs
)
LIBRARIES = (
    *("pytest", "_hypothesis_pytestplugin", "hypothesis.stateful", "hypothesis.extra.numpy"),
    *("schemathesis.pytest.plugin", "anyio.pytest_plugin", "numpy", "scipy.stats", "scipy.signal"),
    *("dp_accounting.pld.privacy_loss_distribution", "mpmath", "tomlkit", "safetensors.numpy"),
    *("click", "rich.console", "rich.table", "httpx", "asyncio", "tempfile"),
    *("fastapi", "uvicorn", "sqlalchemy.ext.asyncio", "alembic.command", "prometheus_client"),
    *("sqlalchemy.dialects.sqlite", "sqlite3", "xdist.plugin", "pdb", "doctest"),
)
"""Libraries that tests import. They must not start threads, as jax does, because of the fork."""


@dataclass(frozen=True, slots=True)
class Change:
    """Replace one text in one file by another.

    ``file`` is relative to src/checkins, or a file of clients/.
    """

    file: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """A planted bug, and the tests that must fail because of it."""

    name: str
    what: str
    changes: tuple[Change, ...]
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """The exit code and the output of a run of pytest."""

    code: int | None
    output: str


class Stale(Exception):
    """A bug cannot be planted, because the source code has changed."""


def plant(mutant: Mutant, source: Path) -> None:
    """Plant the bug in the copy of src/ in the folder ``source``."""
    for change in mutant.changes:
        path = planted_path(source, change.file)
        text = path.read_text(encoding="utf-8")
        if text.count(change.before) != 1:
            found = text.count(change.before)
            raise Stale(f"{mutant.name}: its text stands {found} times in {change.file}, not once")
        path.write_text(text.replace(change.before, change.after), encoding="utf-8")
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
            compiled.unlink()  # it was compiled from the old text


def planted_path(source: Path, file: str) -> Path:
    """Return the copy of a file, given the copy of the folder src/checkins."""
    is_client = file.startswith("clients/")
    return source.parents[1] / file if is_client else source / file


def run_tests(tests: Sequence[str], source: Path) -> Ended:
    """Run tests in new processes, with the code in ``source`` instead of src/."""
    of_flower = [test for test in tests if test.startswith(FLOWER_TESTS)]
    if of_flower:
        ended = _run_in_flower_environment(of_flower, source)
        others = [test for test in tests if test not in of_flower]
        return run_tests(others, source) if others and ended.code == 0 else ended
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(list(LIBRARIES))
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        process = processes.Process(target=_pytest, args=(list(tests), str(source), str(output)))
        process.start()
        process.join(LONGEST_S)
        if process.is_alive():
            process.kill()
            process.join()
            raise TimeoutError(f"{', '.join(tests)}: no end after {LONGEST_S} s")
        return Ended(process.exitcode, output.read_text(errors="replace"))


def _run_in_flower_environment(tests: list[str], source: Path) -> Ended:
    if not FLOWER_PYTHON.exists():
        raise Stale("there is no .venv-flower: run make flower")
    environment = {name: os.environ[name] for name in os.environ if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [FLOWER_PYTHON, "-m", "pytest", *OPTIONS, *tests],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(source), "HYPOTHESIS_PROFILE": "mutants"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    return Ended(done.returncode, done.stdout)


def _pytest(tests: list[str], source: str, output: str) -> None:
    """Run pytest in the forked process, with checkins imported from ``source``."""
    file = os.open(output, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    if imported := [name for name in sys.modules if name.split(".")[0] in ("checkins", "tests")]:
        print(f"imported too early: {', '.join(imported)}", flush=True)
        os._exit(3)
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        del os.environ[name]  # this run is independent of a surrounding run of pytest
    os.environ |= {"PYTHONPATH": source, "HYPOTHESIS_PROFILE": "mutants"}
    os.chdir(ROOT)
    sys.path.insert(0, source)
    gc.freeze()  # the garbage collector need not visit objects of the libraries
    import pytest

    code = pytest.main([*OPTIONS, *tests])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def link_source(folder: Path, changed: Iterable[str]) -> Path:
    """Create trees like src/ and clients/ in ``folder``; return that of src/.

    They have copies of the files ``changed``, and links otherwise.
    """
    paths = {
        PurePath(file if file.startswith("clients/") else f"src/checkins/{file}")
        for file in changed
    }
    for top in ("src", "clients"):
        own = {path.relative_to(top) for path in paths if path.parts[0] == top}
        _link(ROOT / top, folder / top, own | {parent for file in own for parent in file.parents})
    return folder / "src"


def _link(original: Path, copy: Path, own: Collection[PurePath]) -> None:
    """Link the entries of ``original``. Copy the paths in ``own`` instead."""
    copy.mkdir()
    for entry in original.iterdir():
        inside = {path.relative_to(entry.name) for path in own if entry.name in path.parts[:1]}
        if not inside and entry.name != "__pycache__":  # Python writes there, so it is not linked
            (copy / entry.name).symlink_to(entry)
        elif entry.is_dir():
            _link(entry, copy / entry.name, inside)
        else:
            shutil.copyfile(entry, copy / entry.name)


def caught(mutant: Mutant) -> str | None:
    """Return the first test that failed, or None if no test noticed the bug."""
    with tempfile.TemporaryDirectory() as folder:
        source = link_source(Path(folder), [change.file for change in mutant.changes])
        plant(mutant, source / "checkins")
        done = run_tests(mutant.tests, source)
    if done.code == 0:
        return None
    if done.code != 1:
        raise Stale(f"{mutant.name}: pytest ended with {done.code}\n{done.output[-2000:]}")
    failed = [line for line in done.output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if not failed:
        raise Stale(
            f"{mutant.name}: pytest ended with 1, but no test failed\n{done.output[-2000:]}"
        )
    return failed[0].split(" - ")[0]


def main() -> int:
    from tools.mutant_list import MUTANTS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if not asked.names or mutant.name in asked.names]
    if unknown := set(asked.names) - {mutant.name for mutant in MUTANTS}:
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}; see --list")
    if asked.list:
        print("\n".join(f"{mutant.name}: {mutant.what}" for mutant in chosen))
        return 0
    survived = 0
    with ThreadPoolExecutor(asked.workers) as pool:
        for mutant, by in zip(chosen, pool.map(caught, chosen), strict=True):
            survived += by is None
            verdict = "SURVIVED" if by is None else "caught  "
            print(f"{verdict} {mutant.name:32} {by or ''}", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} planted bugs were caught")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
