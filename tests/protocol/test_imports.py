"""No import cycle is hidden in what a device runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

import pytest

import checkins

SOURCE = Path(checkins.__file__).parent
PACKAGES = ("campaign", "ledger", "protocol", "randomizers")
MODULES = sorted(path for package in PACKAGES for path in (SOURCE / package).glob("*.py"))


def imported(statement: ast.AST) -> Iterator[str]:
    if isinstance(statement, ast.ImportFrom):
        yield statement.module or ""
    elif isinstance(statement, ast.Import):
        yield from (alias.name for alias in statement.names)


def is_for_types(statement: ast.AST) -> TypeGuard[ast.If]:
    return isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_a_module_imports_the_package_at_its_top_only(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top = [*tree.body, *(node for each in tree.body if is_for_types(each) for node in each.body)]
    inner = (node for node in ast.walk(tree) if node not in top)
    names = [name for node in inner for name in imported(node)]
    assert not [name for name in names if name.partition(".")[0] == "checkins"]
