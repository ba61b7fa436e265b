"""Error messages and exit codes of the commands. A failure prints one line on standard error.

Exit code 2 means that the arguments or an input file are wrong. Exit code 1 means that the result
is negative (such as a budget that is exceeded), or that the program or the machine failed. Exit
code 130 means that the command was interrupted. A traceback is printed only if
``CHECKINS_DEBUG=1`` is set.
"""

from __future__ import annotations

import os
import sys
import traceback

import click
from click.exceptions import Exit, NoArgsIsHelpError

from checkins.errors import (
    CheckinsError,
    ComputationFailed,
    InvalidCell,
    InvalidData,
    InvalidValue,
    MissingPackage,
    TrainingFailed,
)

EXIT_USAGE, EXIT_FAILURE, EXIT_INTERRUPTED = 2, 1, 130
MAX_VALUE_CHARACTERS = 60
"""Number of characters after which an error message cuts off a value that it quotes."""


class UsageError(CheckinsError):
    """The command cannot run with these arguments. The message is printed as it is."""


def printable(value: object) -> str:
    """Return a value as one line of printable characters, at most ``MAX_VALUE_CHARACTERS`` long.

    >>> printable("1\\n2"), printable(""), printable("9" * 100)[-5:]
    ('1\\\\n2', "''", '99...')
    """
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(value))
    if len(text) > MAX_VALUE_CHARACTERS:
        text = text[: MAX_VALUE_CHARACTERS - 3] + "..."
    return text or "''"


def describe_data_error(error: InvalidData) -> str:
    """Return what is wrong with a data file. Name the cell if the error is about one cell."""
    cell = f"{error.name} = {printable(error.value)}: " if isinstance(error, InvalidCell) else ""
    return f"{cell}{error.expected}"


def warn(message: str) -> None:
    """Print a message as one line on standard error."""
    print(f"checkins: {one_line(message)}", file=sys.stderr)


def print_failure(problem: str) -> Exit:
    """Print a negative result on standard error. Return the exception that exits with code 1."""
    warn(problem)
    return Exit(EXIT_FAILURE)


def print_error(error: BaseException) -> int:
    """Print an error on standard error. Return the exit code of the process."""
    if isinstance(error, NoArgsIsHelpError):
        print(error.message, file=sys.stderr)
        return EXIT_USAGE
    line, code = _message_and_exit_code(error)
    if os.environ.get("CHECKINS_DEBUG") == "1":
        traceback.print_exception(error)
    print(f"checkins: {line}", file=sys.stderr)
    return code


def _message_and_exit_code(error: BaseException) -> tuple[str, int]:
    """Return the line that is printed for an error, and the exit code of the process."""
    if isinstance(error, click.ClickException):
        command = getattr(getattr(error, "ctx", None), "command_path", "checkins")
        message = one_line(error.format_message()).rstrip(".")
        end = "" if message.endswith(("?", ")")) else "."
        return f"{message}{end} See {command} --help", EXIT_USAGE
    if isinstance(error, UsageError | InvalidValue | MissingPackage):
        return one_line(str(error)), EXIT_USAGE
    if isinstance(error, ComputationFailed):
        return one_line(str(error)), EXIT_FAILURE
    if isinstance(error, TrainingFailed):
        end = "a dummy was reported in place of its update, and the participation has ended"
        return one_line(f"{error}; {end}"), EXIT_FAILURE
    if isinstance(error, MemoryError):
        return "out of memory: this machine has too little memory for the command", EXIT_FAILURE
    if isinstance(error, OSError):
        return one_line(f"{error.filename or 'input or output'}: {error.strerror}"), EXIT_FAILURE
    description = one_line(f"{type(error).__name__}: {error}")
    note = "please report it (CHECKINS_DEBUG=1 prints a traceback)"
    return f"internal error: {description}; {note}", EXIT_FAILURE


def one_line(text: str) -> str:
    """Return a text on one line, with control characters replaced by spaces."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
