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
from checkins.cli import errors, examples
from checkins.optional_imports import missing_package

COMMANDS = {
    **{"account": "account", "calibrate": "account", "init": "plan", "plan": "plan"},
    **{"check": "check", "simulate": "simulate", "audit": "audit", "serve": "serve"},
    **{"join": "join", "swarm": "join", "export": "export", "backup": "export"},
    **{"allow-list": "operators", "operators": "operators", "signing-key": "signing_key"},
    **{"verify": "check", "paper": "paper", "completion": "completion"},
}
"""Maps each command to its module in ``checkins.cli.commands``, in the order of the help."""
COMPLETION_VARIABLE = "_CHECKINS_COMPLETE"
"""Environment variable by which the script of `checkins completion` asks for completions."""


def _print_version(context: click.Context, _: click.Parameter, requested: bool) -> None:
    if requested:
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
    """The program `checkins`. It imports the module of a command only if the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"checkins.cli.commands.{COMMANDS[cmd_name]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        command.epilog = examples.epilog(cmd_name)
        return command


PROGRAM = Program(
    "checkins",
    help="Plan, run and audit private training by random check-ins, and certify its epsilon.",
    epilog=examples.epilog("checkins"),
    params=[VERSION],
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run(arguments: Sequence[str]) -> int:
    """Run one command with its arguments. Return the exit code, also after an error."""
    try:
        code = _invoke(list(arguments))
        sys.stdout.flush()
    except BrokenPipeError:
        return _discard_output()
    except (KeyboardInterrupt, click.Abort):
        return errors.EXIT_INTERRUPTED
    except Exception as error:
        return errors.print_error(error)
    return code


def _invoke(arguments: list[str]) -> int:
    try:
        with PROGRAM.make_context("checkins", arguments) as context:
            PROGRAM.invoke(context)
    except click.exceptions.Exit as requested:
        return requested.exit_code
    except ModuleNotFoundError as error:
        raise missing_package(f"checkins {arguments[0]}", error) or error from None
    return 0


def main() -> None:
    """Run the command of ``sys.argv`` and exit. The script calls it through ``__main__``."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # print ? for letters that the encoding lacks
    if not sys.warnoptions and os.environ.get("CHECKINS_DEBUG") != "1":
        warnings.simplefilter("ignore")
    if instruction := os.environ.get(COMPLETION_VARIABLE):
        from click.shell_completion import shell_complete

        sys.exit(shell_complete(PROGRAM, {}, "checkins", COMPLETION_VARIABLE, instruction))
    code = run(sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C no longer changes the exit code
    sys.exit(code)


def _discard_output() -> int:
    """Discard further output after the reader of a pipe, as in `checkins ... | head`, closed it.

    Return the exit code.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return errors.EXIT_FAILURE
