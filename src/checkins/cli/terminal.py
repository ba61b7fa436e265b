"""Print results on standard output, progress and errors on standard error; write ``--out`` files.

A failure prints one line on standard error and decides the exit code of the program. Exit code 2
means that the arguments or an input file are wrong. Exit code 1 means that the result is negative
(such as a budget that is exceeded), or that the program or the machine failed. Exit code 130 means
that the command was interrupted. A traceback is printed only if ``CHECKINS_DEBUG=1`` is set.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

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

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress, ProgressColumn
    from rich.table import Table
    from rich.text import Text

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


MAX_COLUMNS = 100
"""Largest width of printed text, because longer lines are hard to read."""


def show(*parts: RenderableType) -> None:
    """Print tables and texts, at most ``MAX_COLUMNS`` wide. Brackets are printed as they are."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    console.width = min(console.width, MAX_COLUMNS)
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    for line in captured.get().splitlines():
        print(line.rstrip())


def plain_table(*columns: str, right: Sequence[str] = (), title: str | None = None) -> Table:
    """Create a table with a line under its header and no other lines.

    ``right`` names the columns that are aligned right. Only the last column may be wrapped.
    """
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False
    )
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in right else "left"
        is_last = column == columns[-1]
        table.add_column(column, justify=justify, no_wrap=not is_last, overflow="fold")
    return table


def align_decimals(numbers: Sequence[str]) -> list[str]:
    """Pad numbers with spaces to one width, with all decimal points in one column.

    >>> align_decimals(["0.475", "12", "1.5*"])
    [' 0.475', '12    ', ' 1.5* ']
    """
    whole_parts = [re.match(r"[^.e*]*", number)[0] for number in numbers]  # type: ignore[index]
    left = max(map(len, whole_parts), default=0)
    indented = [
        " " * (left - len(whole)) + number
        for whole, number in zip(whole_parts, numbers, strict=True)
    ]
    width = max(map(len, indented), default=0)
    return [number.ljust(width) for number in indented]


def bullet_list(
    title: str, lines: Iterable[str | Text], *, numbered: bool = False
) -> list[RenderableType]:
    """Return a title and a list with bullets, or with numbers if ``numbered``.

    Return nothing to print, an empty list, if there are no lines.
    """
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    items = list(lines)
    if not items:
        return []
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for number, line in enumerate(items, start=1):
        mark = f"({number})" if numbered else "-"
        table.add_row(mark, Text(line) if isinstance(line, str) else line)
    return [f"{title}:", Padding(table, (0, 0, 1, 2))]


def show_plain(line: str) -> None:
    """Print one line without wrapping it, so that a path in it is not cut."""
    print(line)


def show_json(content: Mapping[str, object]) -> None:
    """Print one JSON object. A number that is not finite becomes null."""
    print(json.dumps(non_finite_as_none(content), indent=2, allow_nan=False))


def write_json(path: Path, content: Mapping[str, object], *, indent: int = 2) -> None:
    """Write one JSON object to a file. A number that is not finite becomes null."""
    from checkins import durable_file

    text = json.dumps(non_finite_as_none(content), indent=indent, allow_nan=False)
    durable_file.replace_content(path, f"{text}\n".encode())


def non_finite_as_none(value: object) -> object:
    """Return the value with every number that is not finite replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): non_finite_as_none(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [non_finite_as_none(item) for item in value]
    return value


def progress_console(*, quiet: bool) -> Console | None:
    """Return a console on standard error. Return None if quiet or if that is not a terminal."""
    if quiet or not sys.stderr.isatty():
        return None
    from rich.console import Console

    console = Console(stderr=True)
    return None if console.is_dumb_terminal else console


@contextmanager
def spinner(activity: str, *, quiet: bool) -> Iterator[None]:
    """Show a spinner while the block runs, if standard error is a terminal."""
    console = progress_console(quiet=quiet)
    if console is None:
        yield
        return
    from rich.live import Live
    from rich.spinner import Spinner

    with Live(Spinner("dots", f"{activity} ..."), console=console, transient=True):
        yield


@contextmanager
def progress(label: str, count: str = "", *, quiet: bool) -> Iterator[Progress | None]:
    """Yield progress bars on standard error. Yield None if quiet or if that is not a terminal.

    ``label`` and ``count`` are rich's format strings for the texts before and after a bar.
    """
    console = progress_console(quiet=quiet)
    if console is None:
        yield None
        return
    from rich.progress import BarColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

    columns: list[str | ProgressColumn] = [label, BarColumn(bar_width=None), count]
    columns += [TimeElapsedColumn(), TimeRemainingColumn(compact=True)]
    with Progress(*columns, console=console, transient=True, expand=True) as bars:
        yield bars


def check_out_folder(out: Path) -> None:
    """Raise if the folder of ``--out`` cannot be created or written to. Create nothing."""
    existing = out
    with _as_out_errors(out, "a folder"):
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
        if not existing.is_dir():
            raise UsageError(
                f"--out {printable(out)}: cannot be written: {printable(existing)} is a file"
            )
        _try_to_write(existing)


def check_out_file(out: Path, *, force: bool, other_advice: str = "") -> None:
    """Raise if the file of ``--out`` cannot be created, or if it exists and ``force`` is False.

    ``other_advice`` is added to the error about an existing file.
    """
    with _as_out_errors(out, "a file"):
        if out.is_dir():
            raise UsageError(f"--out {out}: is a folder; name a file in it")
        if out.exists() and not force:
            raise UsageError(f"--out {out}: exists already; --force overwrites it{other_advice}")
        if not out.parent.is_dir():
            raise UsageError(f"--out {out}: there is no folder {out.parent}; create it first")
        _try_to_write(out.parent)


def write_new(path: str, text: str, *, force: bool) -> None:
    """Write the text file of ``--out``. Raise if it exists and ``force`` is False."""
    from checkins import durable_file

    check_out_file(Path(path), force=force)
    with _as_out_errors(Path(path), "a file"):
        durable_file.replace_content(Path(path), text.encode("utf-8"))


def _try_to_write(folder: Path) -> None:
    """Raise if no file can be written in the folder."""
    with tempfile.TemporaryFile(dir=folder):
        pass


@contextmanager
def _as_out_errors(out: Path, kind: str) -> Iterator[None]:
    """Convert errors of the file system into errors that name ``--out``, a file or a folder."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"--out {printable(out)}: cannot be written: {error.strerror}") from error
    except ValueError:
        raise UsageError(f"--out {printable(out)}: is not the name of {kind}") from None
