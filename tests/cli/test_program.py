"""The program as a process: how it starts, how it ends, and what it writes where."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest

import checkins
from checkins.cli import main, terminal
from tests.support.program import CHECKINS, output_of, run_python

pytestmark = pytest.mark.slow

PURE = "account --protocol fixed --slots 100 --participation 1 --local-epsilon 1 --delta 1e-6"


def start(words: str, **options) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [CHECKINS, *words.split()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_the_version_is_the_packages() -> None:
    process = start("--version")
    assert process.communicate() == (f"checkins {checkins.__version__}\n", "")
    assert process.returncode == 0


def test_the_package_is_the_program_too() -> None:
    assert run_python("-m", "checkins", "--version").stdout == f"checkins {checkins.__version__}\n"


def test_json_stands_alone_on_standard_output() -> None:
    process = start(f"{PURE} --adjacency add-remove --json")
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert isinstance(json.loads(out), dict)


def test_a_mistake_leaves_standard_output_empty() -> None:
    process = start(f"{PURE} --adjacency neither --json")
    out, err = process.communicate()
    assert (process.returncode, out) == (2, "")
    assert err == "checkins: --adjacency neither: must be add-remove or replace-one\n"


def test_a_closed_pipe_prints_no_error() -> None:
    with start(f"{PURE} --adjacency add-remove --json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


INTERRUPTED = """
import os, signal, sys
from checkins.cli import main, terminal

printed = terminal.spinner

def interrupted(*arguments, **options):
    os.kill(os.getpid(), signal.SIGINT)
    return printed(*arguments, **options)

terminal.spinner = interrupted
sys.argv = ["checkins", "paper", "table1"]
main.main()
"""


def interrupted() -> subprocess.CompletedProcess[str]:
    """`checkins paper table1`, interrupted while it works."""
    return run_python("-c", INTERRUPTED)


@pytest.mark.usefixtures("default_interrupt")
def test_an_interrupt_is_quiet() -> None:
    done = interrupted()
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.usefixtures("ignored_interrupt")
def test_an_interrupt_that_was_ignored_at_the_start_stays_ignored() -> None:
    done = interrupted()
    assert (done.returncode, done.stderr) == (0, "")
    assert "Table 1" in done.stdout


def test_output_without_greek_is_output_all_the_same() -> None:
    process = start("paper theorems", env=os.environ | {"PYTHONIOENCODING": "ascii"})
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert "Thm 4.2" in out


def test_help_does_not_wait_for_the_accountant() -> None:
    code = "import sys; from checkins.cli.main import run; run(['--help']); print(*sys.modules)"
    loaded = set(output_of(code).splitlines()[-1].split())
    assert not loaded & {"numpy", "scipy", "matplotlib", "dp_accounting", "tomlkit"}


def test_account_loads_only_what_it_uses() -> None:
    """0.6 s of a processor, most of it for numpy and scipy."""
    words = f"{PURE} --adjacency add-remove".split()
    code = f"import sys; from checkins.cli.main import run; run({words!r}); print(*sys.modules)"
    loaded = set(output_of(code).splitlines()[-1].split())
    unused = {"checkins.campaign", "checkins.ledger", "checkins.randomizers", "checkins.tasks"}
    unused |= {"asyncio", "dp_accounting", "httpx", "jax", "matplotlib", "pandas", "pydantic"}
    unused |= {"tomlkit"}
    assert not loaded & (unused | {"scipy.optimize", "scipy.stats"})


def test_help_is_quick_since_it_loads_little() -> None:
    """It loads few modules; numpy and scipy alone are 600 more."""
    code = "import sys; from checkins.cli.main import run; run(['--help']); print(len(sys.modules))"
    assert int(output_of(code).splitlines()[-1]) < 450


def test_without_arguments_it_explains_itself() -> None:
    process = start("")
    out, err = process.communicate()
    assert (process.returncode, out) == (2, "")
    assert "Usage: checkins" in err
    assert "calibrate" in err


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("line one\nline two")

    monkeypatch.setattr(terminal, "spinner", fail)


@pytest.mark.usefixtures("broken")
def test_an_internal_error_is_one_line_and_exit_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["paper", "table1"]) == 1
    assert capsys.readouterr().err == (
        "checkins: internal error: ZeroDivisionError: line one line two;"
        " please report it (CHECKINS_DEBUG=1 prints a traceback)\n"
    )


@pytest.mark.usefixtures("broken")
def test_a_traceback_is_shown_on_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHECKINS_DEBUG", "1")
    assert main.run(["paper", "table1"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_exit_codes_tell_usage_errors_from_failures(capsys: pytest.CaptureFixture[str]) -> None:
    from checkins.errors import ComputationFailed, InvalidValue, NotCovered

    assert terminal.print_error(InvalidValue("slots", 0, "must be more")) == 2
    assert terminal.print_error(NotCovered("slots", 0, "must be more")) == 2
    assert terminal.print_error(ComputationFailed("no safe bound")) == 1
    assert terminal.print_error(MemoryError()) == 1
    assert terminal.print_error(OSError(28, "No space left on device", "x.png")) == 1
    assert capsys.readouterr().err.count("\n") == 5


def test_signals_have_their_usual_number() -> None:
    assert terminal.EXIT_INTERRUPTED == 128 + signal.SIGINT
