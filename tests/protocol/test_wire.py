"""What service and client exchange is declared once, and is what the service publishes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints, is_typeddict

import pytest
from hypothesis import given
from hypothesis import strategies as st

import checkins
from checkins.protocol import wire
from checkins.service.runs import cached_responses
from tools import api

SOURCE = Path(checkins.__file__).parent


@pytest.fixture(scope="module")
def published() -> dict[str, Any]:
    return api.document()


UNPUBLISHED = {"RunView", "StateEvent", "ReleaseEvent", "ProblemDocument"}
"""Shapes that OpenAPI does not name: a part of another shape, data of events, refusals."""
SHAPES = [value for value in vars(wire).values() if is_typeddict(value)]


def schemas_of(published: dict[str, Any]) -> dict[str, Any]:
    """Return the schemas of responses and of the bodies of requests."""
    bodies = [
        operation["requestBody"]["content"].get("application/json", {}).get("schema", {})
        for operations in published["paths"].values()
        for operation in operations.values()
        if "requestBody" in operation
    ]
    named = {schema["title"]: schema for schema in bodies if "title" in schema}
    return named | published["components"]["schemas"]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_a_shape_has_the_keys_that_the_service_publishes(
    shape: Any, published: dict[str, Any]
) -> None:
    schema = schemas_of(published).get(shape.__name__)
    assert (schema is None) == (shape.__name__ in UNPUBLISHED)
    if schema is not None:
        assert list(get_type_hints(shape)) == list(schema["properties"]) == schema["required"]


def test_a_refusal_has_the_keys_that_the_service_publishes(published: dict[str, Any]) -> None:
    refusals = [
        answer["content"][wire.PROBLEM_TYPE]["schema"]
        for operations in published["paths"].values()
        for operation in operations.values()
        for answer in operation["responses"].values()
        if wire.PROBLEM_TYPE in answer.get("content", {})
    ]
    assert refusals
    for schema in refusals:
        assert list(get_type_hints(wire.ProblemDocument)) == list(schema["properties"])


SIDES = ("service", "client", "swarm", "audit", "cli")
MODULES = sorted(path for side in SIDES for path in (SOURCE / side).rglob("*.py"))
NO_MESSAGES = {"PrivacyLoss"}
"""Classes that are never sent, although a shape has the same keys: the sum of an odometer."""
WORDS = {value for name, value in vars(wire).items() if isinstance(value, str) and name.isupper()}
"""Every path, media type and pattern of the wire."""


def constants(path: Path) -> Iterator[str]:
    """The literal strings of a module, and the literal parts of its formatted strings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documentation = {
        id(statement.value) for statement in ast.walk(tree) if isinstance(statement, ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in documentation:
            if isinstance(node.value, str):
                yield node.value
            elif isinstance(node.value, bytes):
                yield node.value.decode("latin-1")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_other_module_spells_a_path_or_a_media_type(path: Path) -> None:
    spelt = {text for text in constants(path) if text in WORDS}
    assert spelt == set()
    assert not any(text.startswith(wire.PROBLEM_URN) for text in constants(path))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_other_module_declares_a_shape(path: Path) -> None:
    """A class or dictionary with the keys of a shape is that shape, named by ``wire``."""
    keys = {frozenset(get_type_hints(shape)) for shape in SHAPES if len(get_type_hints(shape)) > 1}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            named = {
                statement.target.id
                for statement in node.body
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
            }
            assert frozenset(named) not in keys or node.name in NO_MESSAGES, node.name


def test_every_response_of_the_service_is_built_as_a_shape() -> None:
    returns = {
        name: get_type_hints(getattr(cached_responses, name))["return"]
        for name in ("summary", "view", "state_event", "release_event", "progress")
    }
    assert returns == {
        "summary": wire.Summary,
        "view": wire.RunView,
        "state_event": wire.StateEvent,
        "release_event": wire.ReleaseEvent,
        "progress": wire.Progress,
    }


def test_every_path_is_one_that_the_service_publishes(published: dict[str, Any]) -> None:
    paths = {value for name, value in vars(wire).items() if name.endswith("_PATH")}
    assert len(paths) == 19
    assert paths <= published["paths"].keys()


@given(moment=st.floats(0.0, 4e9))
def test_a_time_reads_back_to_the_microsecond(moment: float) -> None:
    assert wire.parse_time(wire.format_time(moment)) == pytest.approx(moment, abs=2e-6)


def test_a_time_without_an_offset_is_refused() -> None:
    with pytest.raises(ValueError, match="offset"):
        wire.parse_time("2030-01-01T00:00:00")
