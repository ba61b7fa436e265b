"""The site builds without a network, its links lead somewhere, and it asks no other host."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.accessibility import barriers
from tests.support.browser import open_file, overflow
from tools import site

PAGES_OF_EVERY_KIND = (
    "index",
    "protocol",  # diagrams
    "theory/pure",  # formulas
    "comparison",  # wide tables
    "tutorial",  # output of commands
    "reference/checkins.accounting",
    "read",
)


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the pages, built once."""
    return site.build(tmp_path_factory.mktemp("site"))


def test_every_markdown_file_of_the_documentation_is_a_page(html: Path) -> None:
    for name in site.sources():
        stem = name.removesuffix("README.md") + "index" if "README" in name else name[:-3]
        assert (html / f"{stem}.html").exists(), name


def test_diagrams_and_formulas_are_drawn_when_the_site_is_built(html: Path) -> None:
    text = (html / "protocol.html").read_text(encoding="utf-8")
    assert text.count('<figure class="diagram"') == 3
    assert not [page for page in html.rglob("*.html") if "language-mermaid" in page.read_text()]
    assert not [page for page in html.rglob("*.html") if "language-math" in page.read_text()]


def test_the_reference_documents_the_names_of_the_package(html: Path) -> None:
    text = (html / "reference/checkins.accounting.html").read_text(encoding="utf-8")
    assert all(f'id="{name}"' in text for name in ("certify", "design", "calibrate"))
    assert "Theorem" in (html / "reference/checkins.protocol.html").read_text(encoding="utf-8")


def test_every_opened_page_asks_no_other_host_and_fits_a_phone(html: Path, browser: Any) -> None:
    pages = sorted(set(html.rglob("*.html")) - {html / "404.html"})  # whose paths need a server
    wide = {}
    with open_file(browser, pages[0], width=390) as visit:
        for page in pages:
            visit.page.goto(page.as_uri())
            if (over := overflow(visit.page)) > 0:
                wide[str(page.relative_to(html))] = over
    assert visit.asked == []
    assert wide == {}


@pytest.mark.parametrize("dark", [False, True])
def test_no_page_has_a_barrier_for_a_screen_reader_or_a_keyboard(
    html: Path, browser: Any, dark: bool
) -> None:
    found = {}
    with open_file(browser, html / "index.html", width=1280, dark=dark) as visit:
        for page in PAGES_OF_EVERY_KIND:
            visit.page.goto((html / f"{page}.html").as_uri())
            visit.page.wait_for_function("document.readyState === 'complete'")
            found[page] = barriers(visit.page)
    assert {page: listed for page, listed in found.items() if listed} == {}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('<a href="missing.html">', "missing.html does not exist"),
        ('<a href="index.html#nowhere">', "names no heading"),
        ('<script src="https://cdn.example/x.js"></script>', "loads https://cdn.example/x.js"),
        ('<link rel="stylesheet" href="//cdn.example/x.css">', "loads //cdn.example/x.css"),
    ],
)
def test_a_fault_of_a_page_is_found(html: Path, tmp_path: Path, text: str, fault: str) -> None:
    shutil.copy(html / "404.html", tmp_path / "index.html")
    (tmp_path / "page.html").write_text(text)
    found = [one for one in site.faults(tmp_path) if one.startswith("page.html")]
    assert len(found) == 1
    assert fault in found[0]


def test_a_page_that_is_not_in_the_navigation_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = tmp_path / "extra.md"
    extra.write_text("# Extra\n")
    pages = site.sources() | {"extra.md": extra}
    monkeypatch.setattr(site, "sources", lambda: pages)
    with pytest.raises(site.Broken, match=r"does not list extra\.md"):
        site.write_pages(tmp_path / "built")


def test_the_list_for_language_models_names_every_page_of_the_navigation(html: Path) -> None:
    text = (html / "llms.txt").read_text(encoding="utf-8")
    assert all(f"({path[:-3]}.html)" in text for _, path in site.listed())
    said = dict(re.findall(r"^- \[.*?\]\((.*?)\): (.*)$", text, re.MULTILINE))
    assert [page for page, words in said.items() if len(words) < 25] == []
