"""Run the program `checkins` in this process, and Python code in processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import PATIENCE_S

CHECKINS = Path(sys.executable).with_name("checkins")
"""The installed command."""


@dataclass(frozen=True)
class Outcome:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


@pytest.fixture
def checkins(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Outcome]:
    """Call the program as the shell does, in this process; one string is split at spaces."""
    from checkins.cli.main import run

    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments: str) -> Outcome:
        words = arguments[0].split() if len(arguments) == 1 else list(arguments)
        capsys.readouterr()
        code = run(words)
        printed = capsys.readouterr()
        return Outcome(code, printed.out, printed.err)

    return call


def refused(outcome: Outcome, starts: str = "", *, says: str = "", code: int = 2) -> None:
    """Check that a command was refused with one line on stderr and nothing on stdout."""
    assert outcome.code == code, outcome
    assert outcome.out == ""
    assert outcome.err.count("\n") == 1, outcome.err
    assert "internal error" not in outcome.err
    assert outcome.err.startswith(f"checkins: {starts}"), outcome.err
    assert says in outcome.err


def run_python(*words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments, for five minutes at most; capture its output."""
    how = {"capture_output": True, "text": True, "timeout": PATIENCE_S, **options}
    return subprocess.run([sys.executable, *words], check=False, **how)


def output_of(code: str, *arguments: str | Path, **options: Any) -> str:
    """Run Python code in a process that must succeed; return its standard output."""
    done = run_python("-c", code, *arguments, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout
