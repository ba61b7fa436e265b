"""Nothing that is read can run: no pickle, no evaluation of text, anywhere in the package."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import checkins

SOURCE = Path(checkins.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle", "yaml"}
"""yaml: its plain ``load`` builds any object; nothing here needs it."""
FUNCTIONS = {"eval", "exec", "compile", "__import__"}
LOADS = {"load", "save", "savez", "savez_compressed"}


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name.split(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module.split(".")[0]


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def dangers(tree: ast.AST) -> Iterator[str]:
    yield from sorted(MODULES & set(imported(tree)))
    for call in calls(tree):
        if isinstance(call.func, ast.Name) and call.func.id in FUNCTIONS:
            yield f"line {call.lineno}: {call.func.id}"
        elif _of_numpy(call):
            told = [word.value for word in call.keywords if word.arg == "allow_pickle"]
            if not any(isinstance(value, ast.Constant) and value.value is False for value in told):
                yield f"line {call.lineno}: say allow_pickle=False"


def test_nothing_here_can_run_what_it_reads() -> None:
    assert len(FILES) > 50
    found = [
        f"{file.relative_to(SOURCE)}: {danger}"
        for file in FILES
        for danger in dangers(ast.parse(file.read_text(encoding="utf-8")))
    ]
    assert found == []


def _of_numpy(call: ast.Call) -> bool:
    function = call.func
    return (
        isinstance(function, ast.Attribute)
        and function.attr in LOADS
        and isinstance(function.value, ast.Name)
        and function.value.id in ("np", "numpy")
    )


def test_the_search_finds_what_it_looks_for() -> None:
    text = "import pickle\nfrom yaml import load\nnp.load(file)\neval(text)\n"
    assert list(dangers(ast.parse(text + "np.load(file, allow_pickle=False)\n"))) == [
        "pickle",
        "yaml",
        "line 3: say allow_pickle=False",
        "line 4: eval",
    ]
