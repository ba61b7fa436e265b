"""Flower has every symbol that ``checkins.flower`` uses, with the signature that it uses.

A new version of Flower that changes one of them fails here, and not in a run.
"""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest

from checkins.cli.commands.flower_node import SUPERNODE_OPTIONS
from checkins.flower.gate import QUIET
from checkins.flower.strategy import RandomCheckIns

FLOWER = Path(__file__).resolve().parents[2] / "src/checkins/flower"
SYMBOLS = {
    "flwr.app": {
        "Array",
        "ArrayRecord",
        "ConfigRecord",
        "Context",
        "DEFAULT_TTL",
        "Error",
        "Message",
        "MessageType",
        "Metadata",
        "MetricRecord",
        "RecordDict",
    },
    "flwr.app.message": {"make_message"},
    "flwr.clientapp": {"ClientApp"},
    "flwr.common.config": {"flatten_dict", "fuse_dicts", "parse_config_args"},
    "flwr.common.logger": {"log"},
    "flwr.common.serde": {"recorddict_from_proto", "recorddict_to_proto"},
    "flwr.proto.recorddict_pb2": {"RecordDict"},
    "flwr.serverapp": {"Grid"},
    "flwr.serverapp.strategy": {"Result", "Strategy"},
    "flwr.supercore.object_ref": {"load_app"},
    "flwr.supercore.privacy_accounting": {"PrivacySpent"},
    "flwr.supernode.cli": {"flower_supernode"},
}
"""Every name that a module of ``checkins.flower`` imports from Flower."""

PARAMETERS = {
    "flwr.app.message:make_message": ["metadata", "content"],
    "flwr.app:Metadata": [
        *("run_id", "message_id", "src_node_id", "dst_node_id", "reply_to_message_id"),
        *("group_id", "created_at", "ttl", "message_type"),
    ],
    "flwr.app:Context": ["run_id", "node_id", "node_config", "state", "run_config"],
    "flwr.app:Error": ["code", "reason"],
    "flwr.app:Message.__init__": [
        *("content", "dst_node_id", "message_type", "ttl", "group_id", "reply_to")
    ],
    "flwr.serverapp.strategy:Strategy.start": [
        *("grid", "initial_arrays", "num_rounds", "timeout", "train_config"),
        *("evaluate_config", "evaluate_fn"),
    ],
    "flwr.supercore.privacy_accounting:PrivacySpent": [
        *("epsilon", "delta", "num_releases", "accounting_method")
    ],
    "flwr.common.config:fuse_dicts": ["main_dict", "override_dict"],
    "flwr.common.config:parse_config_args": ["config"],
    "flwr.supercore.object_ref:load_app": ["module_attribute_str", "error_type", "project_dir"],
}
"""The parameters that are passed, by the name of the function or class."""

ATTRIBUTES = {
    "flwr.app:Array": {"numpy", "stype"},
    "flwr.app:Message": {"content", "error", "has_content", "has_error"},
    "flwr.app:Metadata": {"dst_node_id", "message_type", "reply_to_message_id", "src_node_id"},
    "flwr.app:RecordDict": {"array_records"},
    "flwr.proto.node_pb2:NodeInfo": {"last_activated_at", "node_id", "public_key"},
    "flwr.serverapp:Grid": {
        *("get_node_ids", "get_nodes", "pull_messages", "push_messages", "send_and_receive")
    },
    "flwr.serverapp.strategy:Result": {"arrays", "evaluate_metrics_serverapp"},
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
    parameters = inspect.signature(attrgetter(name)(import_module(module))).parameters
    assert [each for each in PARAMETERS[path] if each not in parameters] == []


@pytest.mark.parametrize("path", ATTRIBUTES)
def test_flower_has_the_attributes(path: str) -> None:
    module, _, name = path.partition(":")
    found = getattr(import_module(module), name)
    fields = getattr(getattr(found, "DESCRIPTOR", None), "fields_by_name", {})  # of protobuf
    has = {*dir(found), *inspect.get_annotations(found), *fields}
    assert sorted(ATTRIBUTES[path] - has) == []


def test_a_strategy_has_no_further_abstract_methods() -> None:
    strategy = import_module("flwr.serverapp.strategy").Strategy
    assert strategy.__abstractmethods__ <= set(dir(RandomCheckIns))
    assert not RandomCheckIns.__abstractmethods__


def test_the_supernode_takes_the_options_that_a_gate_passes_on() -> None:
    module = import_module("flwr.supernode.cli.flower_supernode")
    known = module._parse_args_run_supernode()._option_string_actions
    assert [option for option in SUPERNODE_OPTIONS.values() if option not in known] == []


def test_flower_reads_the_variables_that_keep_a_node_quiet() -> None:
    constants, telemetry = map(
        import_module, ("flwr.supercore.constant", "flwr.supercore.telemetry")
    )
    assert constants.FLWR_DISABLE_UPDATE_CHECK in QUIET
    assert 'getenv("FLWR_TELEMETRY_ENABLED"' in inspect.getsource(telemetry)
    assert "FLWR_TELEMETRY_ENABLED" in QUIET
