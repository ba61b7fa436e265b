"""The help of every command ends with examples, and a shell can complete command lines."""

from __future__ import annotations

import shlex
import subprocess

import click
import pytest

from checkins.cli.main import COMMANDS, COMPLETION_VARIABLE, EXAMPLES, PROGRAM
from tests.support.program import CHECKINS

CONTEXT = click.Context(PROGRAM)
LINES = [(name, line) for name, lines in EXAMPLES.items() for line in lines]


def test_every_command_has_examples() -> None:
    assert set(EXAMPLES) == {*COMMANDS, "checkins"}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_shows_the_examples_in_eighty_columns(name: str) -> None:
    command = PROGRAM.get_command(CONTEXT, name)
    assert command is not None
    text = command.get_help(click.Context(command, info_name=f"checkins {name}"))
    assert all(part in text for line in EXAMPLES[name] for part in line.split("\n"))
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(("name", "line"), LINES)
def test_an_example_has_options_that_exist(name: str, line: str) -> None:
    words = shlex.split(line.replace("\\\n", " ").removeprefix('eval "$(').removesuffix(')"'))
    assert words[0] == "checkins"
    command = PROGRAM.get_command(CONTEXT, words[1])
    assert command is not None
    command.make_context(words[1], words[2:], resilient_parsing=False)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("checkins acc", "account"),
        ("checkins account --proto", "--protocol"),
        ("checkins account --protocol av", "averaged"),
        ("checkins account --adjacency ", "add-remove"),
        ("checkins completion f", "fish"),
        ("checkins check ", "file"),
    ],
)
def test_a_shell_completes_commands_options_and_values(words: str, offered: str) -> None:
    answer = subprocess.run(
        [CHECKINS],
        env={
            COMPLETION_VARIABLE: "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.stderr == ""
    assert any(offered in line.split(",") for line in answer.stdout.splitlines())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script(shell: str) -> None:
    script = subprocess.run([CHECKINS, "completion", shell], capture_output=True, text=True)
    assert script.returncode == 0
    assert COMPLETION_VARIABLE in script.stdout


def test_the_script_of_bash_is_valid_for_bash() -> None:
    script = subprocess.run([CHECKINS, "completion", "bash"], capture_output=True, text=True).stdout
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
