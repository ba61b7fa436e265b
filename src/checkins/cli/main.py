"""The program `checkins`: run a command and return the exit code of the process."""

from __future__ import annotations

import io
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module

import click

from checkins import __version__
from checkins.cli import errors

COMMANDS = {
    **{"account": "account", "calibrate": "account", "init": "plan", "plan": "plan"},
    **{"check": "check", "simulate": "simulate", "audit": "audit", "serve": "serve"},
    **{"join": "join", "swarm": "join", "export": "export", "backup": "export"},
    **{"verify": "check", "paper": "paper"},
}
"""The module of each command. The help lists the commands in this order."""


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        print(f"checkins {__version__}")
        context.exit()


VERSION = click.Option(
    ["--version"],
    help="Print the version.",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
)


class Program(click.Group):
    """The program. It imports the module of a command only when the command is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"checkins.cli.commands.{COMMANDS[cmd_name]}")
        found: click.Command = getattr(module, cmd_name)
        return found


PROGRAM = Program(
    "checkins",
    help="Plan, run and audit private training by random check-ins, and certify its epsilon.",
    params=[VERSION],
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return the exit code."""
    try:
        code = _invoke(list(arguments))
        sys.stdout.flush()
    except BrokenPipeError:
        return _close_stdout()
    except (KeyboardInterrupt, click.Abort):
        return errors.INTERRUPTED
    except Exception as error:
        return errors.report(error)
    return code


def _invoke(arguments: list[str]) -> int:
    try:
        with PROGRAM.make_context("checkins", arguments) as context:
            PROGRAM.invoke(context)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    return 0


def main() -> None:
    """Entry point of the script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="replace"
            )  # a terminal that has no Greek letters shows ? instead
    if not sys.warnoptions and os.environ.get("CHECKINS_DEBUG") != "1":
        warnings.simplefilter("ignore")
    code = run(sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process is ending
    sys.exit(code)


def _close_stdout() -> int:
    """Discard further output, because the reader closed the pipe, as in `checkins ... | head`."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return errors.FAILURE
