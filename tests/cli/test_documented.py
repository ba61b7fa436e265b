"""docs/command-line.md knows every command and option."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from checkins.cli.main import PROGRAM

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "command-line.md").read_text("utf-8")


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, (*path, name))


ALL = dict(commands(PROGRAM))


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_and_option_is_documented(path: tuple[str, ...]) -> None:
    name = " ".join(("checkins", *path))
    assert f"<!-- generated: {name} --help -->" in PAGE, f"{name} has no help there"
    block = re.search(rf"^\$ {name} --help$(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert block is not None
    for parameter in ALL[path].params:
        if getattr(parameter, "hidden", False):
            continue  # an earlier name
        for option in parameter.opts:
            if option.startswith("--"):
                assert re.search(rf"(?<![\w-]){option}(?![\w-])", block[1]), option


def test_every_option_of_a_design_is_explained_in_words() -> None:
    words = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    for path in (("account",), ("calibrate",)):
        for parameter in ALL[path].params:
            for option in parameter.opts:
                if option.startswith("--") and option != "--help":
                    assert f"`{option}" in words, option
