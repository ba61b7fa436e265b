"""The code in the documentation runs."""

from __future__ import annotations

import doctest
import re
import shlex
from contextlib import suppress
from pathlib import Path

import click
import pytest

from checkins.cli.main import PROGRAM
from tools.generated import markdown_files

ROOT = Path(__file__).resolve().parents[2]
COMMAND = re.compile(r"^(?:\$ )?(checkins (?:.*\\\n)*.*)$", re.MULTILINE)
FENCE = re.compile(r"^```(?P<language>\w+)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(path: Path, language: str) -> list[tuple[int, str]]:
    """Line number and text of each fenced block in this language."""
    text = path.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, found.start("code")) + 1, found["code"])
        for found in FENCE.finditer(text)
        if found["language"] == language
    ]


def files_with(language: str) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in markdown_files() if blocks(path, language)]


@pytest.mark.parametrize("name", files_with("python"))
def test_every_python_block_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}  # one per file, not one per block
    for line, code in blocks(ROOT / name, "python"):
        if ">>> " in code:
            example = doctest.DocTestParser().get_doctest(code, namespace, name, name, line - 1)
            outcome = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(
                example, clear_globs=False
            )
            assert outcome.failed == 0, f"{name}:{line}: output differs, see above"
            namespace = example.globs
        else:
            exec(compile("\n" * (line - 1) + code, name, "exec"), namespace)


@pytest.mark.parametrize("name", files_with("console"))
def test_console_blocks_show_our_own_commands(name: str) -> None:
    for line, code in blocks(ROOT / name, "console"):
        assert re.match(r"\$ (checkins|make)\b", code), f"{name}:{line}: {code.splitlines()[0]}"


@pytest.mark.parametrize("name", sorted({*files_with("console"), *files_with("sh")}))
def test_every_command_of_a_page_exists_and_accepts_its_options(
    name: str,
) -> None:
    context = click.Context(PROGRAM)
    for line, code in blocks(ROOT / name, "console") + blocks(ROOT / name, "sh"):
        for found in COMMAND.finditer(code):
            words = shlex.split(found[1].replace("\\\n", " "), comments=True)[1:]
            if words[0].startswith("-"):  # checkins --help
                continue
            command = PROGRAM.get_command(context, words[0])
            assert command is not None, f"{name}:{line}: {found[1]}"
            with suppress(click.exceptions.Exit):  # checkins account --help
                command.make_context(words[0], words[1:])
