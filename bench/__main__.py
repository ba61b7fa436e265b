"""`make bench`: run all benchmarks, print the results and write them to bench/RESULTS.md.

`python -m bench NAME ...` runs some benchmarks again and keeps the other results. Below each table
is the commit at which it was measured. At the end, the pages that show the tables are filled.
`tools/figures.py --check` reads bench/measured.json.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.measure import Section
from tools.figures import SHOWN, by_name, keep, line_of, new_record, record_of
from tools.measured import NoCommit, Record, commit_here

RESULTS = Path(__file__).with_name("RESULTS.md")

BENCHES = {
    "table": "table",
    "pure": "pure",
    "named": "named",
    "grid": "gaussian",
    "replace_one": "gaussian",
    "shared_slots": "gaussian",
    "several": "gaussian",
    "calibration": "calibration",
    "peer": "gaussian",
    "accountants": "accountants",
    "device_noise": "device_noise",
    "browser_noise": "browser_noise",
    "beside_bare": "simulator",
    "correlated": "simulator",
    "beside_peers": "simulator",
    "growth": "simulator",
    "on_device": "simulator",
    "recommendations": "recommendations",
    "flower_bytes": "flower_bytes",
    "check_ins": "service",
    "waiting": "service",
    "flower_slots": "flower_slots",
}
"""The module of each benchmark function. Only modules of chosen benchmarks are imported."""
PAGES = (
    "docs/comparison.md",
    "docs/other-accountants.md",
    *(f"docs/coming-from/{library}.md" for library in ("opacus", "jax-privacy", "dp-accounting")),
)
HEAD = (
    "# Measurements\n\n`make bench` measures these tables. Ratios differ less between machines than"
    " seconds do. Below each table is the commit at which it was measured."
    " `python tools/figures.py` lists the files that have changed since.\n"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the named benchmarks, or all. Exit with 1 if a promise does not hold here."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(BENCHES)}; default: all")
    parser.add_argument("--commit", help="what is measured, where there is no git history")
    asked = parser.parse_args(arguments)
    if unknown := [name for name in asked.names if name not in BENCHES]:
        parser.error(f"no bench {unknown[0]}; there are {', '.join(BENCHES)}")
    names = asked.names or list(BENCHES)
    try:
        commit = commit_here(asked.commit)
    except NoCommit as problem:
        parser.error(str(problem))
    # Import and record the files before the measurement, because they may change meanwhile.
    benches = {name: _function(name) for name in names}
    records = {name: new_record(name, commit=commit) for name in names}
    kept = sections(RESULTS.read_text(encoding="utf-8"))
    holds = True
    for name, bench in benches.items():
        section = bench()
        kept[name] = text_of(name, section, records[name])
        print(kept[name], flush=True)
        if section.measured_here:
            keep(name, records[name])
        ordered = [kept[known] for known in BENCHES if known in kept]
        RESULTS.write_text("\n".join([HEAD, *ordered]), encoding="utf-8")
        holds = holds and section.holds
    fill_pages()
    return 0 if holds else 1


def fill_pages() -> None:
    """Fill the pages of the documentation that show these tables."""
    subprocess.run(
        [sys.executable, "tools/generated.py", *PAGES], cwd=RESULTS.parents[1], check=True
    )


def text_of(name: str, section: Section, record: Record) -> str:
    """Return a section with the commits at which its tables and stored files were measured."""
    lines = [line_of(name, record)] if section.measured_here else []
    for other in section.kept:
        line = line_of(other, record_of(by_name(other)))
        lines.append(f"`{by_name(other).kept}`: {line}" if other != name else line)
    return section.markdown(lines)


def sections(text: str) -> dict[str, str]:
    """Return the sections of an earlier RESULTS.md by the names of their figures."""
    found = {}
    for part in text.split("\n## ")[1:]:
        if shown := SHOWN.search(part):
            found[shown["name"]] = "## " + part.rstrip("\n") + "\n"
    return found


def _function(name: str) -> Callable[[], Section]:
    function: Callable[[], Section] = getattr(
        importlib.import_module(f"bench.{BENCHES[name]}"), name
    )
    return function


if __name__ == "__main__":
    sys.exit(main())
