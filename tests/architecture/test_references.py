"""Texts refer only to what is in the repository, and a class name has one meaning in a package."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

from tests.architecture.test_repository import ROOT, text_files

FOLDERS = "docs|src|tests|tools|examples|bench|hooks|constraints"
PATH = re.compile(rf"(?<![\w/.~$}}-])(?:{FOLDERS})/[\w./-]*\w\.(?:py|md|toml|txt|bib|sh)\b")
DOCUMENT = re.compile(r"(?<![\w/.-])[A-Z][A-Z-]{2,}\.md\b")
NOTES = re.compile(r"\bMATH\b(?:\.md|-D)?,? *[A-D]?\d*")
LABEL = re.compile(r"\b(?:thm|lem|cor|prop|defn|sec|eq|tab|fig|alg):[a-z]\w*")
INVARIANT = re.compile(r"\b[Ii]nvariants? (\d+)(?:(?:–| to |, | and )(\d+))*|test_invariant_(\d+)_")
INVENTED = ("tests/tools/", "CHANGELOG.md", "tests/architecture/test_references.py")
"""Files with names of files that are invented for a test, or of the past."""
INVARIANTS = (ROOT / "docs" / "invariants.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """Code and documents; JSON records name the files of the commit that they were made at."""
    return {
        name: text
        for name, text in text_files().items()
        if name.endswith((".py", ".md", ".toml")) and not name.startswith(INVENTED)
    }


def found(texts: dict[str, str], pattern: re.Pattern[str]) -> list[tuple[str, str]]:
    return [(name, hit[0]) for name, text in texts.items() for hit in pattern.finditer(text)]


def test_every_path_in_a_text_exists(texts: dict[str, str]) -> None:
    missing = [(name, path) for name, path in found(texts, PATH) if not (ROOT / path).exists()]
    assert [each for each in missing if "NAME" not in each[1]] == []


def test_every_document_that_is_named_is_in_the_repository(texts: dict[str, str]) -> None:
    documents = {Path(name).name for name in texts} | {"CHANGELOG.md"}
    assert [each for each in found(texts, DOCUMENT) if each[1] not in documents] == []
    assert found(texts, NOTES) == []


def test_no_text_has_a_label_of_the_papers_source(texts: dict[str, str]) -> None:
    assert found(texts, LABEL) == []


def test_every_invariant_that_is_named_is_listed(texts: dict[str, str]) -> None:
    listed = set(re.findall(r"^## (\d+)\. ", INVARIANTS, re.MULTILINE))
    named = {number for _, hit in found(texts, INVARIANT) for number in re.findall(r"\d+", hit)}
    assert len(listed) == 16
    assert named <= listed


def test_every_invariant_names_a_test_that_exists(texts: dict[str, str]) -> None:
    tests = {
        name
        for path, text in texts.items()
        if path.startswith("tests/")
        for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)
    }
    for section in re.split(r"^## ", INVARIANTS, flags=re.MULTILINE)[1:]:
        guards = re.findall(r"\[`(test_\w+)`\]", section)
        assert guards, section
        assert set(guards) <= tests, set(guards) - tests


def test_every_rule_of_the_code_names_a_contract_or_a_test_that_exists(
    texts: dict[str, str],
) -> None:
    page = texts["docs/architecture.md"].split("## Rules of the code")[1].split("## ")[0]
    contracts = re.findall(r'contract "([^"]+)"', page)
    assert contracts
    assert all(f'name = "{name}"' in texts["pyproject.toml"] for name in contracts)
    guards = re.findall(r"\[`(test_\w+)`\]\(\.\./([\w/.]+)\)", page)
    assert guards
    assert [name for name, path in guards if f"def {name}(" not in (ROOT / path).read_text()] == []


def test_a_walk_links_to_as_many_files_as_its_page_says(texts: dict[str, str]) -> None:
    head, *walks = texts["docs/architecture.md"].split("\n### Walk ")
    table = re.findall(r"^\| .* \| (\d+) \| (\d+) \| (\d+) \|$", head, re.MULTILINE)
    linked = [len(set(re.findall(r"\]\(\.\./(src/[^)#]+)\)", walk))) for walk in walks]
    assert [int(straight) for straight, _, _ in table] == linked
    assert len(linked) == 3
    assert all(int(straight) <= int(every) < int(before) for straight, every, before in table)


TWO_MEANINGS = {"protocol": {"Outcome", "Phase", "RecordReport"}}
"""Public class names that two modules of a package define: remove a name here once it is unique."""


def test_no_public_class_name_has_two_meanings_in_a_package(texts: dict[str, str]) -> None:
    modules: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for name, text in texts.items():
        if re.match(r"src/checkins/\w+/.*\.py$", name):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    modules[name.split("/")[2]][node.name] += 1
    double = {
        package: {name for name, count in classes.items() if count > 1}
        for package, classes in modules.items()
    }
    assert {package: names for package, names in double.items() if names} == TWO_MEANINGS
