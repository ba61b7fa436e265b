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
from checkins.cli import terminal
from checkins.optional_imports import missing_package

EXAMPLES = {
    "checkins": (
        "checkins account --protocol fixed --slots 100 --participation 1 \\\n"
        "    --noise-at server --noise-multiplier 1 --delta 1e-6 \\\n"
        "    --adjacency add-remove",
        "checkins init --task patients --out campaign.toml",
        "checkins simulate campaign.toml",
    ),
    "account": (
        "checkins account --protocol fixed --slots 1000 --participation 1 \\\n"
        "    --local-epsilon 1 --delta 1e-6 --adjacency add-remove",
        "checkins account campaign.toml",
    ),
    "calibrate": (
        "checkins calibrate --protocol fixed --slots 1000 --participation 1 \\\n"
        "    --noise-at server --epsilon 0.5 --solve noise-multiplier \\\n"
        "    --delta 1e-6 --adjacency add-remove",
    ),
    "init": ("checkins init --task patients --out campaign.toml",),
    "plan": (
        "checkins plan --task patients --population 15000..20000 --epsilon 0.5 \\\n"
        "    --delta 1e-6 --adjacency add-remove --out campaign.toml",
    ),
    "check": ("checkins check campaign.toml", "checkins check campaign.toml --json"),
    "simulate": (
        "checkins simulate campaign.toml --seeds 5 --baselines all --out out",
        "checkins simulate campaign.toml --data visits.csv \\\n"
        "    --client-column person --label-column outcome",
    ),
    "audit": ("checkins audit campaign.toml", "checkins audit campaign.toml --seconds 60"),
    "serve": (
        "checkins serve campaign.toml --start +60",
        "checkins serve campaign.toml --allow-list keys.txt --host 0.0.0.0 \\\n"
        "    --tls-cert fullchain.pem --tls-key privkey.pem",
    ),
    "join": (
        "checkins join https://campaigns.example --data my-visits.csv \\\n"
        "    --state ~/.checkins --most-epsilon 3",
        "checkins join https://campaigns.example --flower . \\\n"
        '    --train-config "lr=0.1" --state ~/.checkins',
    ),
    "swarm": ("checkins swarm http://127.0.0.1:8470 --clients 2000",),
    "flower-node": (
        "checkins flower-node campaign.toml --superlink superlink.example:8000 \\\n"
        "    --key ~/.ssh/node --state ~/.checkins-flower",
    ),
    "export": ("checkins export http://127.0.0.1:8470 --out model.safetensors",),
    "backup": ("checkins backup --store sqlite:///checkins.db --out checkins-copy.db",),
    "allow-list": (
        "checkins allow-list https://campaigns.example --add keys.txt \\\n"
        "    --operator-token-file operator.token",
    ),
    "operators": (
        "checkins operators https://campaigns.example --add alice \\\n"
        "    --out alice.token --operator-token-file operator.token",
    ),
    "signing-key": ("checkins signing-key --out signing.key",),
    "verify": (
        "checkins verify http://127.0.0.1:8470",
        "checkins verify out/small-campaign --closed",
    ),
    "paper": ("checkins paper table1", "checkins paper theorems --json"),
    "completion": ('eval "$(checkins completion bash)"',),
}
"""Maps each command to complete command lines, which a user can copy and adapt."""


def epilog(command: str) -> str:
    """Return the examples of a command as the last part of its help."""
    lines = "\n".join(f"  $ {example}" for example in EXAMPLES[command])
    lines = lines.replace("\\\n", "\\\n  ")
    return f"\b\nExamples:\n{lines}"


COMMANDS = {
    **{"account": "account", "calibrate": "account", "init": "plan", "plan": "plan"},
    **{"check": "check", "simulate": "simulate", "audit": "audit", "serve": "serve"},
    **{"join": "join", "swarm": "join", "flower-node": "flower_node"},
    **{"export": "export", "backup": "export"},
    **{"allow-list": "operators", "operators": "operators", "signing-key": "operators"},
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
        command.epilog = epilog(cmd_name)
        return command


PROGRAM = Program(
    "checkins",
    help="Plan, run and audit private training by random check-ins, and certify its epsilon.",
    epilog=epilog("checkins"),
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
        return terminal.EXIT_INTERRUPTED
    except Exception as error:
        return terminal.print_error(error)
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
    return terminal.EXIT_FAILURE
