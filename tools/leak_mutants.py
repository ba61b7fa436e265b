"""Plant leaks in the code, one at a time, and check that the audit finds each of them.

python tools/leak_mutants.py              audit all leaks, and correct code in the same way
python tools/leak_mutants.py NAME ...     audit only these leaks
python tools/leak_mutants.py --list       print names and descriptions of all leaks
python tools/leak_mutants.py --save       audit all leaks and write docs/planted-leaks.json
python tools/leak_mutants.py --table      print docs/planted-leaks.json as a Markdown table

A leak is a text replacement in a copy of src/. A separate process imports the copy and audits it.
The leaks are in leak_mutant_list.py, the audits in checkins.audit.leak_tests.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SAVED = ROOT / "docs" / "planted-leaks.json"
TIMEOUT_S = 1800
"""Time limit of one leak test, in seconds."""
CORRECT = "correct code"


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one leak test on one version of the code."""

    leak: str
    what: str
    leak_test: str
    claimed: float
    measured: float
    delta: float
    confidence: float
    statistic: str
    runs: int
    counts: str
    """How often the best event occurred in runs with the canary, and in runs without it."""
    contradicted: bool

    @property
    def as_expected(self) -> bool:
        return self.contradicted == (self.leak != CORRECT)

    def line(self) -> str:
        verdict = "contradicted" if self.contradicted else "consistent"
        mark = "" if self.as_expected else "   <-- WRONG"
        return (
            f"{verdict:12} {self.leak:28} {self.leak_test:15} measured {self.measured:6.3f}"
            f" of {self.claimed:.3f} at delta {self.delta:g} by {self.statistic}{mark}"
        )


def run_leak_test_on(
    source: Path, leak_test: str, *, runs: int | None = None, confidence: float | None = None
) -> dict[str, Any]:
    """Return the result of a leak test that imports the code in ``source``."""
    environment = os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), "--leak-test", leak_test]
    command += [] if runs is None else ["--runs", str(runs)]
    command += [] if confidence is None else ["--confidence", repr(confidence)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    if done.returncode != 0:
        raise RuntimeError(f"leak test {leak_test} failed: {done.stderr[-2000:]}")
    said: dict[str, Any] = json.loads(done.stdout)
    if Path(said["imported"]) != source / "checkins":
        raise RuntimeError(f"the leak test ran {said['imported']}, not the copy in {source}")
    return said


def audited(
    leak: Any,
    *,
    runs: int | None = None,
    leak_tests: Iterable[str] = (),
    confidence: float | None = None,
) -> list[Row]:
    """Run all leak tests of a planted leak. If ``leak`` is None, test correct code."""
    name, what = (CORRECT, "") if leak is None else (leak.name, leak.what)
    with _copy(leak) as source:
        wanted = leak_tests or leak.leak_tests
        return [
            _row(name, what, run_leak_test_on(source, leak_test, runs=runs, confidence=confidence))
            for leak_test in wanted
        ]


def _row(name: str, what: str, said: dict[str, Any]) -> Row:
    fields = ("leak_test", "claimed", "measured", "delta", "confidence", "statistic", "runs")
    bound = said["bound"]
    counts = "{hits:,} of {of_hits:,}, {alarms:,} of {of_alarms:,}".format(**bound)
    return Row(name, what, *(said[field] for field in fields), counts, said["contradicted"])


def audited_live(leak: Any, plan: Any = None) -> Row:
    """Audit a leaky coordinator over HTTP. If ``leak`` is None, audit a correct one."""
    from checkins.audit.live import LiveSettings, audit_live

    plan = plan or LiveSettings(campaigns=2, canaries=150, concurrency=2)
    with _copy(leak) as source, coordinator(source) as (url, operator):
        found = audit_live(url, plan, operator_token=operator)
    name, what = (CORRECT, "") if leak is None else (leak.name, leak.what)
    contradicted = found.measured > found.claimed
    return Row(
        *(name, what, "live", found.claimed, found.measured, found.delta, found.confidence),
        *("guessed coins", found.canaries, found.evidence, contradicted),
    )


@contextmanager
def _copy(leak: Any) -> Iterator[Path]:
    """Yield a copy of src/ with the planted leak. If ``leak`` is None, the copy is correct."""
    from tools.mutants import plant

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder).resolve() / "src"
        shutil.copytree(ROOT / "src", source)  # compiled files stay valid: file times are copied
        if leak is not None:
            plant(leak.as_mutant, source / "checkins")
        yield source


@contextmanager
def coordinator(source: Path) -> Iterator[tuple[str, str]]:
    """Run `checkins serve` with the code in ``source``. Yield its URL and operator token."""
    serve = "import sys; from checkins.cli.main import main; main()"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", serve, "serve", "--json", "--port", "0", "--rate", "0"]
        command += ["--store", f"sqlite:///{folder}/store.db", "--log-file", f"{folder}/log"]
        environment = os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
        environment["XDG_STATE_HOME"] = f"{folder}/state"
        environment.pop("CHECKINS_OPERATOR_TOKEN", None)
        with subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                line = process.stdout.readline() if process.stdout else ""
                if not line:
                    raise RuntimeError("the coordinator does not start")
                told = json.loads(line)
                yield told["url"].rstrip("/"), told["operator_token"]
            finally:
                process.terminate()
                process.wait(timeout=60)


def table(saved: dict[str, Any]) -> str:
    """Return the saved results as Markdown, with the commit at which they were measured."""
    from tools.figures import line_of
    from tools.measured import Record

    correct = {row["leak_test"]: row for row in saved["rows"] if row["leak"] == CORRECT}
    lines = [
        "| leak | what it does | leak test | δ | ε certified | ε measured | by | counts"
        " | correct code |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in saved["rows"]:
        if row["leak"] == CORRECT:
            continue
        lines.append(
            f"| {row['leak']} | {row['what']} | {row['leak_test']} | {row['delta']:g}"
            f" | {_up(row['claimed'])} | **{_down(row['measured'])}** | {row['statistic']}"
            f" | {row['counts']} | {_down(correct[row['leak_test']]['measured'])} |"
        )
    lines += ["", "Planted bugs of `make mutants` that do not leak, or not measurably:", ""]
    by_reason: dict[str, list[str]] = {}
    for name, reason in saved["no_leak"].items():
        by_reason.setdefault(reason, []).append(f"`{name}`")
    lines += [f"- {', '.join(names)}: {reason}." for reason, names in by_reason.items()]
    lines += ["", line_of("planted-leaks", Record.of(saved.get("measured")))]
    return "\n".join(lines)


def _up(epsilon: float) -> str:
    return f"{math.ceil(100 * epsilon) / 100:.2f}"


def _down(epsilon: float) -> str:
    return f"{math.floor(100 * epsilon) / 100:.2f}"


def _audits(names: list[str], workers: int, runs: int | None) -> Iterator[Row]:
    from tools.leak_mutant_list import LEAKS, LIVE

    chosen = [leak for leak in LEAKS if not names or leak.name in names]
    leak_tests = sorted({leak_test for leak in chosen for leak_test in leak.leak_tests})
    with ThreadPoolExecutor(workers) as pool:
        correct = [
            pool.submit(audited, None, leak_tests=[leak_test], runs=runs)
            for leak_test in leak_tests
        ]
        leaky = [pool.submit(audited, leak, runs=runs) for leak in chosen]
        for work in (*correct, *leaky):
            yield from work.result()
    live = [leak for leak in LIVE if not names or leak.name in names]
    for leak in (None, *live) if live else ():
        yield audited_live(leak)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--runs", type=int)
    parser.add_argument("--commit", help="with --save, where there is no git history")
    parser.add_argument("--leak-test", help=argparse.SUPPRESS)
    parser.add_argument("--confidence", type=float, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.leak_test:
        return _leak_test(asked.leak_test, asked.runs, asked.confidence)
    if asked.table:
        print(table(json.loads(SAVED.read_text(encoding="utf-8"))))
        return 0
    from tools.leak_mutant_list import LEAKS, LIVE, NO_LEAK

    if unknown := set(asked.names) - {leak.name for leak in (*LEAKS, *LIVE)}:
        parser.error(f"no such leak: {', '.join(sorted(unknown))}; see --list")
    if asked.list:
        for leak in (*LEAKS, *LIVE):
            print(f"{leak.name}: {leak.what}")
        return 0
    measured = _record(parser, asked.commit) if asked.save else {}
    rows = []
    for row in _audits(asked.names, asked.workers, asked.runs):
        rows.append(row)
        print(row.line(), flush=True)
    wrong = [row for row in rows if not row.as_expected]
    leaks = {row.leak for row in rows} - {CORRECT}
    found = leaks - {row.leak for row in wrong}
    print(f"{len(found)} of {len(leaks)} planted leaks were contradicted, correct code was not")
    if asked.save and not asked.names and not wrong:
        every = [asdict(row) for row in rows]
        saved = {"measured": measured, "rows": every, "no_leak": NO_LEAK}
        SAVED.write_text(json.dumps(saved, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 1 if wrong else 0


def _record(parser: argparse.ArgumentParser, commit: str | None) -> dict[str, Any]:
    """Return the commit and the digests of the audited code, to save with the results."""
    from tools.figures import new_record
    from tools.measured import NoCommit, commit_here

    try:
        return new_record("planted-leaks", commit=commit_here(commit)).as_json()
    except NoCommit as problem:
        parser.error(str(problem))


def _leak_test(name: str, runs: int | None, confidence: float | None) -> int:
    """Run one leak test on the code that this process imports."""
    import checkins
    from checkins.audit.leak_tests import CONFIDENCE, run_leak_test

    said = run_leak_test(name, runs=runs, confidence=confidence or CONFIDENCE).as_dict()
    said["imported"] = str(Path(checkins.__file__).resolve().parent)
    print(json.dumps(said))
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
