"""Links in the documentation lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import links


@pytest.mark.parametrize(
    "path", links.markdown_files(), ids=lambda path: str(path.relative_to(links.ROOT))
)
def test_every_relative_link_resolves(path: Path) -> None:
    assert links.broken_links(path) == []


def test_a_missing_file_and_a_missing_heading_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n[a](page.md#here) [b](page.md#there) [c](none.md) [d](https://x.example)\n"
        "```text\n[e](in-code.md)\n```\nand `[f](in-code.md)`\n"
    )
    assert links.broken_links(page) == ["page.md#there", "none.md"]


def test_every_cited_key_is_in_the_bibliography() -> None:
    root = links.ROOT
    known = set(re.findall(r"^@\w+\{(\w+),", (root / "docs/references.bib").read_text(), re.M))
    cited = {
        (str(path.relative_to(root)), key)
        for path in [*links.markdown_files(), *sorted((root / "src").rglob("*.py"))]
        for key in re.findall(r"\[([A-Z][A-Za-z]+\d\d)\b[^\]]*\]", path.read_text(encoding="utf-8"))
    }
    assert {place for place in cited if place[1] not in known} == set()
