"""The program `checkins`: run a command and return the exit code of the process."""

from __future__ import annotations

import io
import os
import signal
import sys
import warnings
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Annotated

import typer

from checkins import __version__
from checkins.cli import errors

COMMANDS = {
    **{"account": "account", "calibrate": "account", "init": "plan", "plan": "plan"},
    **{"check": "check", "simulate": "simulate", "audit": "audit", "serve": "serve"},
    **{"join": "join", "swarm": "swarm", "export": "export", "backup": "export"},
    **{"verify": "verify", "paper": "paper"},
}
"""The module of each command. The help lists the commands in this order."""


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"checkins {__version__}")
        raise typer.Exit


def _program(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


def program(commands: Iterable[str] = COMMANDS) -> typer.Typer:
    """Return the program with these commands. Only their modules are imported."""
    app = typer.Typer(
        name="checkins",
        help="Plan, run and audit private training by random check-ins, and certify its epsilon.",
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_program)
    for name in commands:
        module = import_module(f"checkins.cli.commands.{COMMANDS[name]}")
        if name == "paper":
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(getattr(module, name))
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command and return the exit code."""
    wanted = [name for name in arguments[:1] if name in COMMANDS] or COMMANDS
    try:
        ended = typer.main.get_command(program(wanted)).main(
            args=list(arguments), prog_name="checkins", standalone_mode=False
        )
        sys.stdout.flush()
    except BrokenPipeError:
        return _close_stdout()
    except (KeyboardInterrupt, typer.Abort):
        return errors.INTERRUPTED
    except Exception as error:
        return errors.report(error)
    return ended if isinstance(ended, int) else 0


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
