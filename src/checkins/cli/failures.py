"""How a failure is told: one line on standard error, and an exit code.

2 is the caller's to mend, 1 is ours or the machine's, 130 is an interrupt. No traceback, unless
``CHECKINS_DEBUG=1`` asks for it.
"""

from __future__ import annotations

import os
import sys
import traceback

from checkins.errors import CheckinsError, ComputationFailed, InvalidValue

USAGE, FAILURE, INTERRUPTED = 2, 1, 130
LONGEST_VALUE = 60


class Refused(CheckinsError):
    """What was asked cannot be answered as asked; the message is the whole line."""


def quoted(value: object) -> str:
    """A value as it was typed, on one line and not longer than a line.

    >>> quoted("1\\n2"), quoted(""), quoted("9" * 100)[-5:]
    ('1\\\\n2', "''", '99...')
    """
    text = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in str(value))
    if len(text) > LONGEST_VALUE:
        text = text[: LONGEST_VALUE - 3] + "..."
    return text or "''"


def tell(error: BaseException) -> int:
    """Print what went wrong on standard error; return the exit code."""
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error, file=sys.stderr)
        return USAGE
    line, code = _explained(error)
    if os.environ.get("CHECKINS_DEBUG") == "1":
        traceback.print_exception(error)
    print(f"checkins: {line}", file=sys.stderr)
    return code


def _explained(error: BaseException) -> tuple[str, int]:
    usage_message = getattr(error, "format_message", None)  # typer's own errors, of any version
    if callable(usage_message):
        command = getattr(getattr(error, "ctx", None), "command_path", "checkins")
        message = one_line(str(usage_message())).rstrip(".")
        return f"{message}; see {command} --help", USAGE
    if isinstance(error, Refused | InvalidValue):
        return one_line(str(error)), USAGE
    if isinstance(error, ComputationFailed):
        return one_line(str(error)), FAILURE
    if isinstance(error, MemoryError):
        return "out of memory: the request is too large for this machine", FAILURE
    if isinstance(error, OSError):
        return one_line(f"{error.filename or 'input or output'}: {error.strerror}"), FAILURE
    what = one_line(f"{type(error).__name__}: {error}")
    return f"internal error: {what}; please report it (CHECKINS_DEBUG=1 shows more)", FAILURE


def one_line(text: str) -> str:
    """A message on one line, whatever it quotes."""
    return " ".join("".join(s if s.isprintable() else " " for s in text).split())
