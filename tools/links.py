"""Check that the file and the heading of every relative link in the Markdown files exist."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
FENCE = re.compile(r"^(?P<ticks>```+).*?^(?P=ticks)$", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"`[^`\n]+`")
HEADING = re.compile(r"^#+ +(?P<title>.+?) *$", re.MULTILINE)
SKIPPED = {".venv", ".venv-flower", ".git", "out", "build", "dist"}


def anchor(title: str) -> str:
    """Return the anchor that a code host gives to a heading.

    >>> anchor("What is promised, and what is not")
    'what-is-promised-and-what-is-not'
    """
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def prose(path: Path) -> str:
    """Return the file without its code blocks, because brackets in code are not links."""
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def broken_links(path: Path) -> list[str]:
    """Return the link targets of this file that do not exist."""
    broken = []
    for match in LINK.finditer(INLINE_CODE.sub("", prose(path))):
        target = match["target"]
        if re.match(r"[a-z]+:", target):  # http: or mailto:, which are not checked
            continue
        file, _, fragment = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        if not there.exists():
            broken.append(target)
        elif fragment and there.suffix == ".md":
            titles = (found["title"] for found in HEADING.finditer(prose(there)))
            if fragment not in {anchor(title) for title in titles}:
                broken.append(target)
    return broken


def markdown_files() -> list[Path]:
    return sorted(
        path
        for path in ROOT.rglob("*.md")
        if not SKIPPED.intersection(path.relative_to(ROOT).parts)
        and not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
    )


def main() -> int:
    found = [
        f"{path.relative_to(ROOT)}: {target} does not exist"
        for path in markdown_files()
        for target in broken_links(path)
    ]
    print("\n".join(found) if found else "every relative link resolves")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
