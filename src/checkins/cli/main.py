"""The script `checkins`: its commands, and the one place where a failure ends the process."""

from __future__ import annotations

import io
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated

import typer

from checkins import __version__
from checkins.cli import failures, paper
from checkins.cli.account import account
from checkins.cli.audit import audit
from checkins.cli.backup import backup
from checkins.cli.calibrate import calibrate
from checkins.cli.check import check
from checkins.cli.export import export
from checkins.cli.init import init
from checkins.cli.join import join
from checkins.cli.plan import plan
from checkins.cli.serve import serve
from checkins.cli.simulate import simulate
from checkins.cli.swarm import swarm
from checkins.cli.verify import verify

app = typer.Typer(
    name="checkins",
    help="What training by random check-ins costs the people whose data it uses.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("account")(account)
app.command("calibrate")(calibrate)
app.command("init")(init)
app.command("plan")(plan)
app.command("check")(check)
app.command("simulate")(simulate)
app.command("audit")(audit)
app.command("serve")(serve)
app.command("join")(join)
app.command("swarm")(swarm)
app.command("export")(export)
app.command("backup")(backup)
app.command("verify")(verify)
app.add_typer(paper.app, name="paper")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"checkins {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


def run(arguments: Sequence[str]) -> int:
    """Run one command; return the exit code."""
    try:
        ended = typer.main.get_command(app).main(
            args=list(arguments), prog_name="checkins", standalone_mode=False
        )
        sys.stdout.flush()
    except BrokenPipeError:
        return _reader_has_left()
    except (KeyboardInterrupt, typer.Abort):
        return failures.INTERRUPTED
    except Exception as error:
        return failures.tell(error)
    return ended if isinstance(ended, int) else 0


def main() -> None:
    """Entry point of the script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Greek still gets the numbers
    if not sys.warnoptions and os.environ.get("CHECKINS_DEBUG") != "1":
        warnings.simplefilter("ignore")
    code = run(sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing is left to stop
    sys.exit(code)


def _reader_has_left() -> int:
    """`checkins ... | head`: stop writing, and say nothing about it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return failures.FAILURE
