"""The help of every command ends with examples, and a shell can complete command lines."""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
from pathlib import Path

import click
import pytest

from checkins.cli.main import COMMANDS, COMPLETION_VARIABLE, EXAMPLES, PROGRAM
from tests.support.program import CHECKINS

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "demo.toml"
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


def in_terminal(*words: str, **environment: str) -> str:
    """Return what a command writes to a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [CHECKINS, *words],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", **environment},
    ):
        os.close(theirs)
        text = b""
        with open(ours, "rb", buffering=0) as read:
            while True:
                try:
                    text += read.read(65_536)
                except OSError:  # how Linux says that the other end is closed
                    return text.decode()


@pytest.mark.slow
def test_a_terminal_gets_no_colours_if_no_color_is_set() -> None:
    text = in_terminal("check", str(EXAMPLE), NO_COLOR="1")
    assert "epsilon <=" in text
    assert re.search(r"\x1b\[[\d;]*(?:3[0-8]|9[0-7])[\d;]*m", text) is None
    plain = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text)
    assert max(map(len, plain.splitlines())) <= 80
