"""Generated blocks are filled, and stale ones are noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import generated


def page(command: str, body: str = "", *, language: str = "text", marker: str = "generated") -> str:
    return f"before\n\n<!-- {marker}: {command} -->\n```{language}\n{body}```\n\nafter\n"


def test_a_block_is_filled_with_what_the_command_prints() -> None:
    result = generated.refill(page("python -c 'print(6 * 7)'"))
    assert result.text == page("python -c 'print(6 * 7)'", "42\n")
    assert result.stale == ("python -c 'print(6 * 7)'",)


def test_filling_twice_changes_nothing() -> None:
    once = generated.refill(page("python -c 'print(6 * 7)'", language="console"))
    assert "$ python -c 'print(6 * 7)'\n42\n" in once.text
    assert generated.refill(once.text) == generated.Result(once.text, (), ())


def test_a_different_run_time_or_version_is_not_stale() -> None:
    command = "python -c 'print(\"seconds: 0.25, scipy 1.17.1\")'"
    assert generated.refill(page(command, "seconds: 9.99, scipy 1.16.0\n")).stale == ()


def test_a_different_epsilon_is_stale() -> None:
    command = "python -c 'print(\"epsilon 0.1266\")'"
    assert generated.refill(page(command, "epsilon 0.1267\n")).stale == (command,)


def test_a_missing_command_is_named_and_its_block_left_alone() -> None:
    text = page("no-such-command --at all", "old\n")
    result = generated.refill(text)
    assert result.text == text
    assert "no such command" in result.failed[0]


def test_a_refusal_is_shown_when_the_marker_expects_it() -> None:
    command = "python -c 'raise SystemExit(2)'"
    assert "exit 2 instead of 0" in generated.refill(page(command)).failed[0]
    assert generated.refill(page(command, marker="generated, exit 2")).failed == ()


def test_a_marker_without_a_block_is_an_error() -> None:
    assert generated.refill("<!-- generated: checkins -->\n\nno block\n").failed


def test_a_long_command_is_broken_before_an_option() -> None:
    command = "checkins account " + " ".join(f"--option-{i} {i}" for i in range(12))
    lines = generated.shown(command).splitlines()
    assert max(map(len, lines)) <= generated.COLUMNS
    assert all(line.endswith(" \\") for line in lines[:-1])
    assert all(line.startswith("    --") for line in lines[1:])
    joined = " ".join(line.removesuffix(" \\").strip() for line in lines)
    assert joined == f"$ {command}"


def test_check_says_what_is_stale_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "page.md"
    file.write_text(page("python -c 'print(1)'", "2\n"))
    assert generated.main(["--check", str(file)]) == 1
    assert "page.md: stale: python -c 'print(1)'" in capsys.readouterr().out
    assert file.read_text() == page("python -c 'print(1)'", "2\n")
    assert generated.main([str(file)]) == 0
    assert generated.main(["--check", str(file)]) == 0
