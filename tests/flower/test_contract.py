"""Flower has every symbol that ``checkins.flower`` uses, with the signature that it uses.

A new version of Flower that changes one of them fails here, and not in a run.
"""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from pathlib import Path

import pytest

FLOWER = Path(__file__).resolve().parents[2] / "src/checkins/flower"
SYMBOLS = {
    "flwr.app": {
        "Array",
        "ArrayRecord",
        "ConfigRecord",
        "Context",
        "DEFAULT_TTL",
        "Message",
        "MessageType",
        "Metadata",
        "RecordDict",
    },
    "flwr.app.message": {"make_message"},
    "flwr.clientapp": {"ClientApp"},
    "flwr.common.config": {"flatten_dict", "fuse_dicts", "parse_config_args"},
    "flwr.common.serde": {"recorddict_from_proto", "recorddict_to_proto"},
    "flwr.proto.recorddict_pb2": {"RecordDict"},
    "flwr.supercore.object_ref": {"load_app"},
}
"""Every name that a module of ``checkins.flower`` imports from Flower."""

PARAMETERS = {
    "flwr.app.message:make_message": ["metadata", "content"],
    "flwr.app:Metadata": [
        *("run_id", "message_id", "src_node_id", "dst_node_id", "reply_to_message_id"),
        *("group_id", "created_at", "ttl", "message_type"),
    ],
    "flwr.app:Context": ["run_id", "node_id", "node_config", "state", "run_config"],
    "flwr.common.config:fuse_dicts": ["main_dict", "override_dict"],
    "flwr.common.config:parse_config_args": ["config"],
    "flwr.supercore.object_ref:load_app": ["module_attribute_str", "error_type", "project_dir"],
}
"""The parameters that are passed, by the name of the function or class."""

ATTRIBUTES = {
    "flwr.app:Array": {"numpy", "stype"},
    "flwr.app:Message": {"content", "error", "has_content", "has_error"},
    "flwr.app:RecordDict": {"array_records"},
    "flwr.clientapp:ClientApp": {"__call__", "train"},
}
"""The attributes of classes that are used."""


def imported(tree: ast.AST) -> set[tuple[str, str]]:
    return {
        (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("flwr")
        for alias in node.names
    }


def test_every_symbol_that_is_used_is_listed() -> None:
    files = sorted(FLOWER.glob("**/*.py"))
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    whole = [
        alias.name
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name.partition(".")[0] == "flwr"
    ]
    assert whole == [], "import names from Flower's modules, so that they can be listed"
    used = set().union(*(imported(tree) for tree in trees))
    assert used == {(module, name) for module, names in SYMBOLS.items() for name in names}


@pytest.mark.parametrize("module", SYMBOLS)
def test_flower_has_the_symbols(module: str) -> None:
    found = import_module(module)
    assert [name for name in sorted(SYMBOLS[module]) if not hasattr(found, name)] == []


@pytest.mark.parametrize("path", PARAMETERS)
def test_flower_takes_the_parameters(path: str) -> None:
    module, _, name = path.partition(":")
    parameters = inspect.signature(getattr(import_module(module), name)).parameters
    assert [each for each in PARAMETERS[path] if each not in parameters] == []


@pytest.mark.parametrize("path", ATTRIBUTES)
def test_flower_has_the_attributes(path: str) -> None:
    module, _, name = path.partition(":")
    found = getattr(import_module(module), name)
    has = {*dir(found), *inspect.get_annotations(found)}
    assert sorted(ATTRIBUTES[path] - has) == []
