"""Plant bugs that leak, one at a time; the audit must contradict the certificate of each.

python tools/liars.py              all of them, and honest code under the same audits
python tools/liars.py NAME ...     some of them
python tools/liars.py --list       their names and what each one does
python tools/liars.py --save       all of them, and docs/liars.json with what was measured
python tools/liars.py --table      the table of docs/liars.json as Markdown

A bug is a change of text in a copy of src/, audited by a process of its own that imports the copy.
The bugs are in liar_list.py, the audits in checkins.audit.machines.battery.
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
SAVED = ROOT / "docs" / "liars.json"
LONGEST_S = 1800
HONEST = "honest code"


@dataclass(frozen=True, slots=True)
class Row:
    """What one drill measured on one piece of code."""

    liar: str
    what: str
    drill: str
    claimed: float
    measured: float
    delta: float
    confidence: float
    statistic: str
    runs: int
    seen: str
    """How often the event that shows most happened, with the canary and without it."""
    contradicted: bool

    @property
    def as_it_should_be(self) -> bool:
        return self.contradicted == (self.liar != HONEST)

    def line(self) -> str:
        verdict = "contradicted" if self.contradicted else "consistent"
        mark = "" if self.as_it_should_be else "   <-- WRONG"
        return (
            f"{verdict:12} {self.liar:28} {self.drill:10} measured {self.measured:6.3f}"
            f" of {self.claimed:.3f} at delta {self.delta:g} by {self.statistic}{mark}"
        )


def drilled(
    source: Path, drill: str, *, runs: int | None = None, confidence: float | None = None
) -> dict[str, Any]:
    """What a drill says of the code in ``source``, by a process that imports it."""
    environment = os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), "--drill", drill]
    command += [] if runs is None else ["--runs", str(runs)]
    command += [] if confidence is None else ["--confidence", repr(confidence)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST_S,
    )
    if done.returncode != 0:
        raise RuntimeError(f"drill {drill} failed: {done.stderr[-2000:]}")
    said: dict[str, Any] = json.loads(done.stdout)
    if Path(said["imported"]) != source / "checkins":
        raise RuntimeError(f"the drill ran {said['imported']}, not the copy in {source}")
    return said


def audited(
    liar: Any,
    *,
    runs: int | None = None,
    drills: Iterable[str] = (),
    confidence: float | None = None,
) -> list[Row]:
    """Every drill of a liar, or of honest code if ``liar`` is None."""
    name, what = (HONEST, "") if liar is None else (liar.name, liar.what)
    with _copy(liar) as source:
        wanted = drills or liar.drills
        return [
            _row(name, what, drilled(source, drill, runs=runs, confidence=confidence))
            for drill in wanted
        ]


def _row(name: str, what: str, said: dict[str, Any]) -> Row:
    fields = ("drill", "claimed", "measured", "delta", "confidence", "statistic", "runs")
    bound = said["bound"]
    seen = "{hits:,} of {of_hits:,}, {alarms:,} of {of_alarms:,}".format(**bound)
    return Row(name, what, *(said[field] for field in fields), seen, said["contradicted"])


def audited_live(liar: Any, plan: Any = None) -> Row:
    """A coordinator with a bug, or an honest one, audited over HTTP by honest code."""
    from checkins.audit.live import LivePlan, audit_live

    plan = plan or LivePlan(campaigns=2, canaries=150, at_once=2)
    with _copy(liar) as source, coordinator(source) as (url, operator):
        found = audit_live(url, plan, operator=operator)
    name, what = (HONEST, "") if liar is None else (liar.name, liar.what)
    contradicted = found.measured > found.claimed
    return Row(
        *(name, what, "live", found.claimed, found.measured, found.delta, found.confidence),
        *("guessed coins", found.canaries, found.by, contradicted),
    )


@contextmanager
def _copy(liar: Any) -> Iterator[Path]:
    """A copy of src/ with the bug in it."""
    from tools.mutants import plant

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder).resolve() / "src"
        shutil.copytree(ROOT / "src", source)  # compiled files too: a copy keeps times, so they fit
        if liar is not None:
            plant(liar.as_mutant, source / "checkins")
        yield source


@contextmanager
def coordinator(source: Path) -> Iterator[tuple[str, str]]:
    """`checkins serve` with the code in ``source``: its address and its operator's token."""
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
    """What was saved, as Markdown, with the commit it was measured at."""
    from tools.figures import line_of
    from tools.measured import Record

    honest = {row["drill"]: row for row in saved["rows"] if row["liar"] == HONEST}
    lines = [
        "| bug | what it does | audit | δ | ε certified | ε measured | by | seen | honest code |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in saved["rows"]:
        if row["liar"] == HONEST:
            continue
        lines.append(
            f"| {row['liar']} | {row['what']} | {row['drill']} | {row['delta']:g}"
            f" | {_up(row['claimed'])} | **{_down(row['measured'])}** | {row['statistic']}"
            f" | {row['seen']} | {_down(honest[row['drill']]['measured'])} |"
        )
    lines += ["", "Bugs of `make mutants` that do not leak, or not measurably:", ""]
    lines += [f"- `{name}`: {why}." for name, why in saved["no_leak"].items()]
    lines += ["", line_of("liars", Record.of(saved.get("measured")))]
    return "\n".join(lines)


def _up(epsilon: float) -> str:
    return f"{math.ceil(100 * epsilon) / 100:.2f}"


def _down(epsilon: float) -> str:
    return f"{math.floor(100 * epsilon) / 100:.2f}"


def _audits(names: list[str], workers: int, runs: int | None) -> Iterator[Row]:
    from tools.liar_list import LIARS, LIVE

    chosen = [liar for liar in LIARS if not names or liar.name in names]
    drills = sorted({drill for liar in chosen for drill in liar.drills})
    with ThreadPoolExecutor(workers) as pool:
        honest = [pool.submit(audited, None, drills=[drill], runs=runs) for drill in drills]
        lying = [pool.submit(audited, liar, runs=runs) for liar in chosen]
        for work in (*honest, *lying):
            yield from work.result()
    live = [liar for liar in LIVE if not names or liar.name in names]
    for liar in (None, *live) if live else ():
        yield audited_live(liar)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--runs", type=int)
    parser.add_argument("--commit", help="with --save, where there is no git history")
    parser.add_argument("--drill", help=argparse.SUPPRESS)
    parser.add_argument("--confidence", type=float, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.drill:
        return _drill(asked.drill, asked.runs, asked.confidence)
    if asked.table:
        print(table(json.loads(SAVED.read_text(encoding="utf-8"))))
        return 0
    from tools.liar_list import LIARS, LIVE, NO_LEAK

    if unknown := set(asked.names) - {liar.name for liar in (*LIARS, *LIVE)}:
        parser.error(f"no such liar: {', '.join(sorted(unknown))}; see --list")
    if asked.list:
        for liar in (*LIARS, *LIVE):
            print(f"{liar.name}: {liar.what}")
        return 0
    measured = _record(parser, asked.commit) if asked.save else {}
    rows = []
    for row in _audits(asked.names, asked.workers, asked.runs):
        rows.append(row)
        print(row.line(), flush=True)
    wrong = [row for row in rows if not row.as_it_should_be]
    liars = {row.liar for row in rows} - {HONEST}
    found = liars - {row.liar for row in wrong}
    print(f"{len(found)} of {len(liars)} liars were contradicted, honest code was not")
    if asked.save and not asked.names and not wrong:
        every = [asdict(row) for row in rows]
        saved = {"measured": measured, "rows": every, "no_leak": NO_LEAK}
        SAVED.write_text(json.dumps(saved, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 1 if wrong else 0


def _record(parser: argparse.ArgumentParser, commit: str | None) -> dict[str, Any]:
    """What is saved beside the rows: the commit, and digests of the code as it is audited."""
    from tools.figures import new_record
    from tools.measured import NoCommit, commit_here

    try:
        return new_record("liars", commit=commit_here(commit)).as_json()
    except NoCommit as problem:
        parser.error(str(problem))


def _drill(name: str, runs: int | None, confidence: float | None) -> int:
    """In a process of its own: one drill on the code that is imported here."""
    import checkins
    from checkins.audit.machines.battery import CONFIDENCE, judge

    said = judge(name, runs=runs, confidence=confidence or CONFIDENCE).as_dict()
    said["imported"] = str(Path(checkins.__file__).resolve().parent)
    print(json.dumps(said))
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
