"""Show at which commit each figure was measured, and which measured files have changed since.

python tools/figures.py                show every figure
python tools/figures.py --check        show changed figures; exit 1 if a figure has no commit
python tools/figures.py --strict       also exit 1 if a figure has changed; for use before a release
python tools/figures.py --record NAME  record the current commit for a table in docs/

A figure is a table or file of measurements. If its code has changed, the figure may still be right,
so this is only a notice. A figure without a commit is an error. The figures are listed in
figure_list.py. sources.py finds the files that each figure measures.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.figure_list import FIGURES, RECORDS, RESULTS, Figure
from tools.measured import ROOT, NoCommit, Record, commit_here, measuring
from tools.sources import NoSource, Sources

SHOWN = re.compile(r"^(?P<said>.*?) ?<!-- figure: (?P<name>[\w-]+) -->$", re.MULTILINE)
NAMED = 3
"""Number of changed files that a line names. Further files are only counted."""


@dataclass(slots=True)
class Findings:
    """The lines that the check prints."""

    unchanged: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def record_of(figure: Figure, root: Path = ROOT) -> Record:
    """Return the record of a figure. Raise ValueError if something in it is missing."""
    file = root / figure.kept
    held: Any = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return Record.of(held.get(figure.key))


def new_record(name: str, *, commit: str, root: Path = ROOT) -> Record:
    """Return the record of a figure that is about to be measured."""
    figure = by_name(name)
    files = Sources(root).digests(figure.sources, apart=figure.apart)
    return measuring(files, commit=commit, root=root)


def by_name(name: str) -> Figure:
    """Return the figure with this name. Raise KeyError if figure_list.py does not have it."""
    for figure in FIGURES:
        if figure.name == name:
            return figure
    raise KeyError(f"no figure {name} in tools/figure_list.py")


def keep(name: str, record: Record, root: Path = ROOT) -> None:
    """Write a record to bench/measured.json, in the order of figure_list.py."""
    file = root / RECORDS
    held = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    held[name] = record.as_json()
    order = [figure.name for figure in FIGURES]
    held = {known: held[known] for known in sorted(held, key=order.index)}
    file.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")


def line_of(name: str, record: Record) -> str:
    """Return the line that a page shows below a figure."""
    return f"{record.sentence()} <!-- figure: {name} -->"


def checked(figures: Sequence[Figure] = FIGURES, root: Path = ROOT) -> Findings:
    """Compare every record with the code, and every page with its records."""
    found, records, sources = Findings(), {}, Sources(root)
    for figure in figures:
        try:
            record = record_of(figure, root)
            now = sources.digests(figure.sources, apart=figure.apart)
        except (ValueError, NoSource) as problem:
            found.wrong.append(f"{figure.name}: {problem} ({figure.kept}): run `{figure.again}`")
            continue
        records[figure.name] = record
        verb = "kept since" if record.kept_since else "measured at"
        at = f"{figure.name}: {verb} {record.commit[:7]}"
        if differ := record.changed(now):
            found.changed.append(f"{at}; {_some(differ)} changed since: run `{figure.again}`")
        else:
            found.unchanged.append(f"{at}; nothing that it measures has changed")
    found.wrong += _on_pages(figures, records, root)
    found.wrong += _without_a_figure(figures, root)
    return found


def _some(paths: Sequence[str]) -> str:
    if len(paths) <= NAMED + 1:
        return ", ".join(paths)
    return f"{', '.join(paths[:NAMED])} and {len(paths) - NAMED} more"


def _on_pages(figures: Sequence[Figure], records: dict[str, Record], root: Path) -> list[str]:
    """Return errors for pages that show no commit or a wrong commit for a figure."""
    wrong = []
    for page in sorted({figure.shown for figure in figures}):
        file = root / page
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        said = {match["name"]: match["said"] for match in SHOWN.finditer(text)}
        here = [figure.name for figure in figures if figure.shown == page]
        for name in here:
            record = records.get(name)
            if record is not None and record.mark not in said.get(name, ""):
                wrong.append(f"{page}: does not show {name} with its commit {record.commit[:7]}")
        wrong += [f"{page}: no figure {name} is listed" for name in said if name not in here]
    return wrong


def _without_a_figure(figures: Sequence[Figure], root: Path) -> list[str]:
    """Return errors for tables and files of measurements that are not listed."""
    results = root / RESULTS
    text = results.read_text(encoding="utf-8") if results.is_file() else ""
    wrong = [
        f"{RESULTS}: the table '{section.splitlines()[0]}' does not say at which commit it was"
        " measured"
        for section in text.split("\n## ")[1:]
        if not SHOWN.search(section)
    ]
    kept = {root / figure.kept for figure in figures}
    wrong += [
        f"{file.relative_to(root)}: kept, and not in tools/figure_list.py"
        for file in sorted((root / "bench").rglob("*.json"))
        if file not in kept
    ]
    return wrong


def recorded_by_hand(name: str, commit: str | None, root: Path = ROOT) -> None:
    """Write the record of a figure that was measured by hand, and show it on its page."""
    figure = by_name(name)
    if figure.kept != RECORDS or figure.shown == RESULTS:
        raise KeyError(f"{name} is recorded by what measures it: run `{figure.again}`")
    record = new_record(name, commit=commit_here(commit, root), root=root)
    page = root / figure.shown
    text = page.read_text(encoding="utf-8")
    shown = [match for match in SHOWN.finditer(text) if match["name"] == name]
    if not shown:
        raise KeyError(f"{figure.shown} has no line that ends in <!-- figure: {name} -->")
    start, end = shown[0].span()
    keep(name, record, root)
    page.write_text(text[:start] + line_of(name, record) + text[end:], encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--record", metavar="NAME")
    parser.add_argument("--commit", help="with --record, where there is no git history")
    asked = parser.parse_args(arguments)
    if asked.record:
        try:
            recorded_by_hand(asked.record, asked.commit)
        except (KeyError, NoCommit) as problem:
            parser.error(str(problem.args[0]))
        return 0
    found = checked()
    if not (asked.check or asked.strict):
        print("\n".join(found.unchanged))
    for line in found.changed:
        print(f"figures: {line}")
    for line in found.wrong:
        print(f"figures: {line}", file=sys.stderr)
    if found.changed:
        print(f"figures: the code of {len(found.changed)} of {len(FIGURES)} has changed since")
    return int(bool(found.wrong or (asked.strict and found.changed)))


if __name__ == "__main__":
    sys.exit(main())
