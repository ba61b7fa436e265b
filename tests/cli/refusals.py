"""How a command refuses: one line on stderr, nothing on stdout."""

from __future__ import annotations

from typing import Any


def refused(outcome: Any, starts: str = "", *, says: str = "", code: int = 2) -> None:
    assert outcome.code == code, outcome
    assert outcome.out == ""
    assert outcome.err.count("\n") == 1, outcome.err
    assert "internal error" not in outcome.err
    assert outcome.err.startswith(f"checkins: {starts}"), outcome.err
    assert says in outcome.err
