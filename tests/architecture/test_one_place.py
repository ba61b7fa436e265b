"""Some knowledge is in one module only. docs/architecture.md lists the rules of the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import TopologicalSorter

import grimp
import pytest

from tests.architecture.test_repository import ROOT

SOURCE = ROOT / "src" / "checkins"
SQL = re.compile(
    r"^\s*(SELECT .* FROM|INSERT INTO|UPDATE \w+ SET|DELETE FROM|CREATE TABLE)\b", re.S
)
SEARCHES = {"bisect", "brenth", "brentq", "minimize_scalar", "newton", "ridder", "root_scalar"}

Finding = Callable[[ast.Module], bool]


@cache
def modules() -> dict[str, ast.Module]:
    """Parse all modules, once and not while tests are collected."""
    return {
        str(path.relative_to(SOURCE)): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(SOURCE.rglob("*.py"))
    }


def names_of_calls(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            yield function.attr if isinstance(function, ast.Attribute) else ast.unparse(function)


def makes_a_certificate(tree: ast.Module) -> bool:
    return "Certificate" in names_of_calls(tree)


def contains_sql(tree: ast.Module) -> bool:
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return any(isinstance(text, str) and SQL.match(text) for text in texts)


def imports_a_root_search(tree: ast.Module) -> bool:
    return any(
        isinstance(node, ast.ImportFrom)
        and node.module == "scipy.optimize"
        and SEARCHES & {alias.name for alias in node.names}
        for node in ast.walk(tree)
    )


def computes_the_gaussian_profile(tree: ast.Module) -> bool:
    """Whether a module evaluates the terms of [BW18, Theorem 8], in logarithms."""
    return "log_ndtr" in names_of_calls(tree)


def steers_by_the_name_of_an_error(tree: ast.Module) -> bool:
    """Whether an exception handler compares ``error.name`` with a text."""
    return any(
        isinstance(compared, ast.Compare)
        and ast.unparse(compared.left) == f"{handler.name}.name"
        and any(isinstance(other, ast.Constant) for other in compared.comparators)
        for handler in ast.walk(tree)
        if isinstance(handler, ast.ExceptHandler) and handler.name
        for compared in ast.walk(handler)
    )


@pytest.mark.parametrize(
    ("found", "allowed", "planted"),
    [
        (makes_a_certificate, r"accounting/", "one = certificate.Certificate(1.0)"),
        (contains_sql, r"service/store/", "run('SELECT token FROM clients')"),
        (imports_a_root_search, r"accounting/solve\.py", "from scipy.optimize import brentq"),
        (computes_the_gaussian_profile, r"accounting/exact/gaussian\.py", "y = log_ndtr(x)"),
        (
            steers_by_the_name_of_an_error,
            r"(?!)",
            "try: f()\nexcept E as error:\n    if error.name == 'slots': pass",
        ),
    ],
    ids=["certificates", "SQL", "root searches", "BW18 Theorem 8", "names of errors"],
)
def test_it_is_in_one_place(found: Finding, allowed: str, planted: str) -> None:
    """And the same text planted in another module would be found."""
    assert [
        name for name, tree in modules().items() if found(tree) and not re.match(allowed, name)
    ] == []
    assert found(ast.parse(planted))


def test_no_import_cycle_is_hidden_by_a_local_import() -> None:
    """The graph has the imports inside functions too, and not those for types alone."""
    graph = grimp.build_graph("checkins", cache_dir=None, exclude_type_checking_imports=True)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(list(TopologicalSorter(imports).static_order())) == len(graph.modules)
