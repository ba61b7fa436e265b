"""`checkins completion`: print a script with which a shell completes command lines."""

from __future__ import annotations

from click.shell_completion import BashComplete, FishComplete, ZshComplete

from checkins.cli import params, terminal
from checkins.cli.main import COMPLETION_VARIABLE, PROGRAM
from checkins.cli.params import GivenOptions, argument
from checkins.cli.terminal import UsageError, printable

SCRIPTS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@params.command(argument("shell", "bash|zsh|fish"))
def completion(given: GivenOptions) -> None:
    """Print a script with which a shell completes command lines.

    Write its output into the start-up file of the shell, or evaluate it there: ~/.bashrc,
    ~/.zshrc, or ~/.config/fish/completions/checkins.fish.
    """
    shell = str(given.values["shell"])
    if shell not in SCRIPTS:
        raise UsageError(f"{printable(shell)}: must be bash, zsh or fish")
    script = SCRIPTS[shell](PROGRAM, {}, "checkins", COMPLETION_VARIABLE)
    terminal.show_plain(script.source())
