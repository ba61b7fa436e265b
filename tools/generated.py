"""Fill the generated blocks of the Markdown files, or check that they are up to date.

A fenced block after a marker line is filled with the output of a command:

    <!-- generated: checkins account --help -->
    ```console
    $ checkins account --help
    ...
    ```

A ``console`` block shows the command and its output. Any other block shows only the output. For a
command that fails, the marker has its exit code: ``<!-- generated, exit 2: checkins ... -->``.
If a command prints Markdown, its output is placed between two markers, without a fence:

    <!-- generated text: python tools/api.py routes -->
    ...
    <!-- end of generated text -->

    python tools/generated.py            fill every block
    python tools/generated.py --check    change nothing; exit 1 if a block is out of date

Run times, version numbers and the last digits of a float differ between machines. A block that
differs only in these is not changed.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 80
TERMINAL = {
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    "COLUMNS": str(COLUMNS),
    "TERM": "dumb",
    "NO_COLOR": "1",
    "FORCE_COLOR": "",
    "PYTHONIOENCODING": "utf-8",
}
"""The environment of every command. An empty value removes the variable."""
MAX_S = 300
"""Longest time of a command, in seconds."""

BLOCK = re.compile(
    r"^<!-- generated(?:, exit (?P<exit>\d+))?: (?P<command>.+?) -->\n"
    r"```(?P<language>\w+)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
TEXT = re.compile(
    r"^<!-- generated text: (?P<command>.+?) -->\n(?P<body>.*?)^<!-- end of generated text -->$",
    re.MULTILINE | re.DOTALL,
)
MARKER = re.compile(r"^<!-- generated\b.*$", re.MULTILINE)
VARYING = re.compile(
    r"""(?P<label>\bseconds\b["\s:=│|]*)[\d.]+(?:e[+-]?\d+)?"""  # run times, by their label
    r"""|\b\d+\.\d+\.\d+\S*?(?=[\s",;)]|$)"""  # version numbers
)

LAST_DIGITS = re.compile(r"(\d\.\d{7})\d+")


class CannotRun(Exception):
    """The command does not exist, or its exit code is not the expected one."""


@dataclass(frozen=True, slots=True)
class Result:
    text: str
    stale: tuple[str, ...]
    failed: tuple[str, ...]


def run(command: str, expected_exit: int) -> str:
    """Return the output of a command on a terminal with 80 columns and no colours."""
    words = shlex.split(command)
    ours = words[0] == "checkins" or (words[0] == "python" and words[1].startswith("tools/"))
    with tempfile.TemporaryFile() as printed:
        code = _run_fork(words, printed) if ours else _run_process(words, printed)
        printed.seek(0)
        output = printed.read().decode("utf-8").strip("\n")
    if code != expected_exit:
        last = (output.strip().splitlines() or ["no output"])[-1]
        raise CannotRun(f"exit {code} instead of {expected_exit}: {last}")
    return "\n".join(line.rstrip() for line in output.splitlines()) + "\n"


def _run_process(words: list[str], printed: IO[bytes]) -> int:
    try:
        return subprocess.run(
            words,
            cwd=ROOT,
            env={name: value for name, value in (os.environ | TERMINAL).items() if value},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            timeout=MAX_S,
            check=False,
        ).returncode
    except FileNotFoundError:
        raise CannotRun("no such command: run `make setup`, or it is not written yet") from None
    except subprocess.TimeoutExpired:
        raise CannotRun(f"took more than {MAX_S} seconds") from None


def _run_fork(words: list[str], printed: IO[bytes]) -> int:
    """Run a command of this repository in a fork, so that modules are imported only once."""
    for name in ("checkins.cli.main", "checkins.accounting", "checkins.campaign"):
        importlib.import_module(name)
    child = os.fork()
    if child == 0:
        signal.alarm(MAX_S)
        os.chdir(ROOT)
        os.environ.update(TERMINAL)
        del os.environ["FORCE_COLOR"]
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
        os._exit(_exit_code(words))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _exit_code(words: list[str]) -> int:
    """Run the command in this process and return its exit code."""
    sys.argv = words if words[0] == "checkins" else words[1:]
    with (
        open(1, "w", encoding="utf-8", closefd=False) as sys.stdout,
        open(2, "w", encoding="utf-8", closefd=False) as sys.stderr,
    ):
        try:
            if words[0] == "checkins":
                importlib.import_module("checkins.cli.main").main()
            else:
                runpy.run_path(words[1], run_name="__main__")
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
            return 1
    return 0


def shown(command: str) -> str:
    """Return the command as a user types it, with line breaks before options.

    >>> print(shown("checkins account --delta 1e-6"))
    $ checkins account --delta 1e-6
    """
    first, *options = re.split(r" (?=--)", f"$ {command}")
    lines = [first]
    for option in options:
        if len(lines[-1]) + len(option) + 3 <= COLUMNS:  # a space here, " \\" at the end
            lines[-1] += f" {option}"
        else:
            lines[-1] += " \\"
            lines.append(f"    {option}")
    return "\n".join(lines)


def masked(text: str) -> str:
    """Return the text with ``*`` in place of values that differ between runs.

    >>> masked('"seconds": 0.0123, "versions": {"numpy": "2.4.6"}')
    '"seconds": *, "versions": {"numpy": "*"}'
    """
    return LAST_DIGITS.sub(r"\1", VARYING.sub(lambda found: (found["label"] or "") + "*", text))


def refill(text: str) -> Result:
    """Return the text with all blocks filled, and the commands that changed or failed."""
    stale: list[str] = []
    failed: list[str] = []

    def fill(block: re.Match[str]) -> str:
        command, found = block["command"], block.groupdict()
        try:
            body = run(command, int(found.get("exit") or 0))
        except CannotRun as problem:
            failed.append(f"{command}: {problem}")
            return block[0]
        if "language" not in found:
            body = f"\n{body}\n"  # Markdown needs an empty line after an HTML comment
        elif block["language"] == "console":
            body = f"{shown(command)}\n{body}"
        if masked(body) == masked(block["body"]):
            return block[0]
        stale.append(command)
        start, end = block.start("body") - block.start(), block.end("body") - block.start()
        return block[0][:start] + body + block[0][end:]

    filled = TEXT.sub(fill, BLOCK.sub(fill, text))
    if len(MARKER.findall(text)) != len(BLOCK.findall(text)) + len(TEXT.findall(text)):
        failed.append(
            "a `generated` marker is not followed by a fenced block with a language, or a"
            " `generated text` marker by its end"
        )
    return Result(filled, tuple(stale), tuple(failed))


def markdown_files() -> list[Path]:
    """Return the Markdown files at the root, in docs, in examples and in bench."""
    return sorted(
        path
        for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "bench/**/*.md")
        for path in ROOT.glob(pattern)
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when stale")
    parser.add_argument("files", nargs="*", type=Path, help="default: every Markdown file")
    options = parser.parse_args(arguments)
    trouble = False
    for path in options.files or markdown_files():
        result = refill(path.read_text(encoding="utf-8"))
        for command in result.stale:
            print(f"{path.name}: {'stale' if options.check else 'filled'}: {command}")
        for problem in result.failed:
            print(f"{path.name}: {problem}", file=sys.stderr)
        if result.stale and not options.check:
            path.write_text(result.text, encoding="utf-8")
        trouble |= bool(result.failed) or (options.check and bool(result.stale))
    if trouble and options.check:
        print("generated blocks are stale or cannot be run: `make docs` refills them")
    return int(trouble)


if __name__ == "__main__":
    sys.exit(main())
