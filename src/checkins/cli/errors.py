"""Error messages and exit codes. Each failure prints one line on standard error.

Exit code 2 means that the command or its input is wrong. Exit code 1 means that the result is
negative, or that the program or the machine failed. Exit code 130 means that the command was
interrupted. A traceback is printed only if ``CHECKINS_DEBUG=1`` is set.
"""

from __future__ import annotations

import os
import sys
import traceback

import click
from click.exceptions import Exit, NoArgsIsHelpError

from checkins.errors import CheckinsError, ComputationFailed, InvalidCell, InvalidData, InvalidValue

USAGE, FAILURE, INTERRUPTED = 2, 1, 130
LONGEST_VALUE = 60
"""Largest number of characters of a user's value that a message repeats."""


class UsageError(CheckinsError):
    """The command cannot run with these arguments. The message is printed unchanged."""


def missing_extra(what: str, extra: str, error: ImportError) -> UsageError:
    """Return the error for a command whose optional packages are not installed."""
    return UsageError(
        f"{what} needs the extra {extra} ({error.name} is missing): pip install 'checkins[{extra}]'"
    )


def printable(value: object) -> str:
    """Return a value as it was typed, on one line and shortened to ``LONGEST_VALUE``.

    >>> printable("1\\n2"), printable(""), printable("9" * 100)[-5:]
    ('1\\\\n2', "''", '99...')
    """
    text = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in str(value))
    if len(text) > LONGEST_VALUE:
        text = text[: LONGEST_VALUE - 3] + "..."
    return text or "''"


def describe_data_error(error: InvalidData) -> str:
    """Describe the error in a data file. Name the cell if the error is about one cell."""
    cell = f"{error.name} = {printable(error.value)}: " if isinstance(error, InvalidCell) else ""
    return f"{cell}{error.expected}"


def warn(message: str) -> None:
    """Print one line on standard error."""
    print(f"checkins: {one_line(message)}", file=sys.stderr)


def print_failure(problem: str) -> Exit:
    """Print a negative result on standard error. Return the exception that exits with code 1."""
    warn(problem)
    return Exit(FAILURE)


def report(error: BaseException) -> int:
    """Print an error on standard error and return the exit code."""
    if isinstance(error, NoArgsIsHelpError):
        print(error.message, file=sys.stderr)
        return USAGE
    line, code = _explained(error)
    if os.environ.get("CHECKINS_DEBUG") == "1":
        traceback.print_exception(error)
    print(f"checkins: {line}", file=sys.stderr)
    return code


def _explained(error: BaseException) -> tuple[str, int]:
    if isinstance(error, click.ClickException):
        command = getattr(getattr(error, "ctx", None), "command_path", "checkins")
        message = one_line(error.format_message()).rstrip(".")
        return f"{message}; see {command} --help", USAGE
    if isinstance(error, UsageError | InvalidValue):
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
    """Return a text on one line, with control characters replaced by spaces."""
    return " ".join("".join(s if s.isprintable() else " " for s in text).split())
