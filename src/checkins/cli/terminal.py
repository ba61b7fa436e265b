"""Print results on standard output and progress on standard error. Check ``--out``."""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from checkins.cli.errors import UsageError, printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress, ProgressColumn
    from rich.table import Table
    from rich.text import Text

MOST_COLUMNS = 100
"""Largest width of printed text, because longer lines are hard to read."""


def show(*parts: RenderableType) -> None:
    """Print tables and unformatted text, at most ``MOST_COLUMNS`` wide. Brackets are not markup."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    console.width = min(console.width, MOST_COLUMNS)
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    for line in captured.get().splitlines():
        print(line.rstrip())


def plain_table(*columns: str, right: Sequence[str] = (), title: str | None = None) -> Table:
    """Create a table with a rule under its header and no other lines."""
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False
    )
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in right else "left"
        wrap = column == columns[-1]
        table.add_column(column, justify=justify, no_wrap=not wrap, overflow="fold")
    return table


def listed(
    title: str, lines: Iterable[str | Text], *, numbered: bool = False
) -> list[RenderableType]:
    """Return a title with a list below it. Return an empty list if there are no lines."""
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
    """Print one line without wrapping it, so that a path stays in one piece."""
    print(line)


def show_json(answer: Mapping[str, object]) -> None:
    """Print one JSON object. A number that is not finite becomes null."""
    print(json.dumps(finite(answer), indent=2, allow_nan=False))


def write_json(path: Path, answer: Mapping[str, object], *, indent: int = 2) -> None:
    """Write one JSON object to a file. A number that is not finite becomes null."""
    from checkins import durable_file

    text = json.dumps(finite(answer), indent=indent, allow_nan=False)
    durable_file.replace_content(path, f"{text}\n".encode())


def finite(value: object) -> object:
    """Return the value with every number that is not finite replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def progress_console(*, quiet: bool) -> Console | None:
    """Return a console on standard error. Return None if quiet or if it is not a terminal."""
    if quiet or not sys.stderr.isatty():
        return None
    from rich.console import Console

    console = Console(stderr=True)
    return None if console.is_dumb_terminal else console


@contextmanager
def working(what: str, *, quiet: bool) -> Iterator[None]:
    """Show a spinner while the block runs, if standard error is a terminal."""
    console = progress_console(quiet=quiet)
    if console is None:
        yield
        return
    from rich.live import Live
    from rich.spinner import Spinner

    with Live(Spinner("dots", f"{what} ..."), console=console, transient=True):
        yield


@contextmanager
def progress(label: str, count: str = "", *, quiet: bool) -> Iterator[Progress | None]:
    """Yield progress bars on standard error. Yield None if it is not a terminal.

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


def check_folder(out: Path) -> None:
    """Raise if the folder cannot be created or written to. Nothing is created."""
    there = out
    with _out_errors(out, "a folder"):
        while not there.exists() and there != there.parent:
            there = there.parent
        if not there.is_dir():
            raise UsageError(
                f"--out {printable(out)}: cannot be written: {printable(there)} is a file"
            )
        _try_to_write(there)


def check_file(out: Path, *, force: bool, instead: str = "") -> None:
    """Raise if the file cannot be created, or if it exists and ``force`` is not set."""
    with _out_errors(out, "a file"):
        if out.is_dir():
            raise UsageError(f"--out {printable(out)}: is a folder; name a file in it")
        if out.exists() and not force:
            raise UsageError(
                f"--out {printable(out)}: exists already; --force overwrites it{instead}"
            )
        if not out.parent.is_dir():
            folder = printable(out.parent)
            raise UsageError(
                f"--out {printable(out)}: there is no folder {folder}; create it first"
            )
        _try_to_write(out.parent)


def write_new(place: str, text: str, *, force: bool) -> None:
    """Write a text file. Raise if the file exists and ``force`` is not set."""
    from checkins import durable_file

    try:
        if Path(place).is_dir():
            raise UsageError(f"--out {place}: is a folder; name a file in it")
        if Path(place).exists() and not force:
            raise UsageError(f"--out {place}: exists already; --force overwrites it")
        durable_file.replace_content(Path(place), text.encode("utf-8"))
    except ValueError:
        raise UsageError(f"--out {printable(place)}: is not the name of a file") from None


def _try_to_write(folder: Path) -> None:
    with tempfile.TemporaryFile(dir=folder):
        pass


@contextmanager
def _out_errors(out: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"--out {printable(out)}: cannot be written: {error.strerror}") from error
    except ValueError:
        raise UsageError(f"--out {printable(out)}: is not the name of {what}") from None
