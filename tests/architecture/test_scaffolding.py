"""Only ``tests/support`` starts coordinators and browsers, and its page lists its modules."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

import tests.support
from tests.architecture.test_repository import ROOT

SUPPORT = ROOT / "tests" / "support"
STARTS = {"Forked", "Popen", "call", "check_call", "check_output", "run", "create_subprocess_exec"}
"""Functions that start a process."""
SERVE = re.compile(r"\bserve\b")
DRIVERS = {"playwright", "selenium", "pyppeteer"}


@cache
def trees_outside_support() -> dict[str, ast.Module]:
    """The parsed modules of all tests, by path."""
    return {
        str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if SUPPORT not in path.parents
    }


def modules_of(tree: ast.Module) -> set[str]:
    """The modules that are imported anywhere in a tree."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def texts_of(node: ast.AST) -> set[str]:
    return {
        each.value
        for each in ast.walk(node)
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    }


def starts_of(tree: ast.Module) -> list[ast.Call]:
    """The calls that start a process."""

    def name(call: ast.Call) -> str:
        function = call.func
        return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")

    return [node for node in ast.walk(tree) if isinstance(node, ast.Call) and name(node) in STARTS]


def command_lines(tree: ast.Module) -> list[list[object]]:
    """The lists and tuples of a module, as far as they are literal."""
    return [
        [each.value if isinstance(each, ast.Constant) else None for each in node.elts]
        for node in ast.walk(tree)
        if isinstance(node, ast.List | ast.Tuple)
    ]


def starts_a_coordinator(tree: ast.Module) -> bool:
    """Whether a module starts processes and builds a command line of `checkins serve`."""
    starts = starts_of(tree)
    if not starts:
        return False
    texts = set().union(*map(texts_of, starts))
    lines = command_lines(tree)
    return any("serve" in line for line in lines) or any(SERVE.search(text) for text in texts)


def test_only_the_support_starts_coordinators() -> None:
    assert [
        name for name, tree in trees_outside_support().items() if starts_a_coordinator(tree)
    ] == []


def test_only_the_support_drives_a_browser() -> None:
    imported = {name: modules_of(tree) for name, tree in trees_outside_support().items()}
    drivers = {
        name: module
        for name, modules in imported.items()
        for module in modules
        if module.partition(".")[0] in DRIVERS
    }
    assert drivers == {}


def test_only_the_support_builds_the_app_of_a_coordinator() -> None:
    made = [
        name
        for name, tree in trees_outside_support().items()
        if "checkins.service.app" in modules_of(tree)
    ]
    assert made == []


def test_no_test_assigns_to_an_attribute_of_a_class() -> None:
    """Doubles are arguments: a method that is assigned stays so for every later test."""
    assigned = [
        (name, ast.unparse(target))
        for name, tree in trees_outside_support().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id[0].isupper()
        and target.attr != "settings"  # as Hypothesis configures a state machine
    ]
    assert assigned == []


def test_the_page_of_the_support_lists_its_modules() -> None:
    listed = re.findall(r"^``(\w+)``  ", tests.support.__doc__ or "", re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in SUPPORT.glob("[!_]*.py"))


@pytest.mark.parametrize(
    "code",
    [
        "command = ['serve', path]\nsubprocess.Popen(command)",
        "subprocess.run('checkins serve x.toml', shell=True)",
        "Forked(('serve', path))",
    ],
)
def test_a_coordinator_that_is_started_elsewhere_is_found(code: str) -> None:
    assert starts_a_coordinator(ast.parse(code))
