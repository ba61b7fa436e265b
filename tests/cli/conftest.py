"""The program, run in this process: fast enough to try every mistake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from checkins.cli.main import run


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def checkins(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Outcome]:
    """Call it as the shell would; one string is split at spaces."""
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments: str) -> Outcome:
        words = arguments[0].split() if len(arguments) == 1 else list(arguments)
        capsys.readouterr()
        code = run(words)
        printed = capsys.readouterr()
        return Outcome(code, printed.out, printed.err)

    return call
