"""The ClientApp and the configs that the owner of a device names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.clientapp import ClientApp

from checkins.errors import InvalidValue
from checkins.flower.apps import (
    check_client_app,
    load_client_app,
    parse_config,
    read_run_config,
)

APP = """
from flwr.clientapp import ClientApp

app = ClientApp()
empty = ClientApp()
other = 3

@app.train()
def train(message, context):
    return None
"""
PYPROJECT = """
[project]
name = "my-app"
version = "1.0"

[tool.flwr.app]
publisher = "me"

[tool.flwr.app.components]
clientapp = "my_flower_app:app"

[tool.flwr.app.config]
epochs = 3
optimizer.rate = 0.5
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path = list(sys.path)
    (tmp_path / "my_flower_app.py").write_text(APP, encoding="utf-8")
    (tmp_path / "broken_app.py").write_text("1 / 0\n", encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    yield tmp_path
    sys.path[:] = path
    for name in ("my_flower_app", "broken_app"):
        sys.modules.pop(name, None)


def test_a_folder_names_the_app_in_its_pyproject(folder: Path) -> None:
    assert isinstance(load_client_app(str(folder)), ClientApp)


def test_a_module_is_found_in_the_current_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert load_client_app("my_flower_app:app") is load_client_app(".")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my_flower_app", 'must be "module:object"'),
        ("my_flower_app:nothing", "cannot be imported"),
        ("no_such_module:app", "cannot be imported: ModuleNotFoundError"),
        ("broken_app:app", "cannot be imported: ZeroDivisionError"),
        ("my_flower_app:other", "must be a ClientApp"),
        ("my_flower_app:empty", "has neither a client_fn nor an @app.train()"),
    ],
)
def test_what_is_no_app_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(InvalidValue) as caught:
        load_client_app(name)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[tool.flwr]\napp = 3\n", "[tool]\nflwr = 1\n", "["])
def test_a_folder_without_a_flower_app_is_refused(folder: Path, text: str) -> None:
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    with pytest.raises(InvalidValue, match=r"flower = "):
        load_client_app(str(folder))


def test_given_values_replace_the_defaults_of_the_app(folder: Path) -> None:
    assert read_run_config(str(folder), {}) == {"epochs": 3, "optimizer.rate": 0.5}
    given = {"epochs": 1}
    assert read_run_config(str(folder), given) == {"epochs": 1, "optimizer.rate": 0.5}
    with pytest.raises(InvalidValue, match="which has no epoch"):
        read_run_config(str(folder), {"epoch": 1})


def test_without_defaults_any_value_may_be_given(tmp_path: Path) -> None:
    assert read_run_config(str(tmp_path), {"a": 1}) == {"a": 1}


def test_configs_are_read_as_by_the_commands_of_flower(tmp_path: Path) -> None:
    assert parse_config("node_config", None) == {}
    assert parse_config("node_config", "partition-id=0 b=true") == {"partition-id": 0, "b": True}
    file = tmp_path / "node.toml"
    file.write_text("rate = 0.5\n", encoding="utf-8")
    assert parse_config("node_config", str(file)) == {"rate": 0.5}


@pytest.mark.parametrize("text", ["", "rate", "rate=fast", "no-such-file.toml"])
def test_configs_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="train_config"):
        parse_config("train_config", text)


def test_only_apps_that_train_are_devices() -> None:
    with pytest.raises(InvalidValue, match="must be a ClientApp"):
        check_client_app("app")
