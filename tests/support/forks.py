"""Processes of tests, forked from one process that has imported every module.

`checkins serve` takes two seconds of a processor to start, nearly all of it for imports. Here a
parent loads the modules once and forks for each start. What is forked is a process as any other:
it has a pid, a process group, memory and files of its own, and can be killed. Tests of the start
itself and of the processes that a coordinator starts use the real command.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import FastAPI

    from checkins.service.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "checkins.cli.main"
LOADED = (
    PROGRAM,
    "checkins.service.server",
    "checkins.service.startup",
    "checkins.cli.commands.serve",
    "checkins.cli.commands.join",
    "checkins.swarm",
    "tests.support.crashing_devices",
    "tests.support.store",
)
"""Modules that the parent of forked processes imports."""
LOADED_WITH_FLOWER = ("checkins.flower.apps", "checkins.flower.trainer")
"""Modules that it imports too in the environment of Flower."""
LONGEST_REQUEST = 200_000
PR_SET_PDEATHSIG = 1


class Forked:
    """A forked process, with the part of the interface of ``subprocess.Popen`` that tests use.

    Calls ``main`` of ``module`` with these arguments. ``stdout`` is a pipe; standard error goes to
    a file. Without ``with_epsilons`` a coordinator does not start the process for epsilons. With
    ``forked_workers`` its workers are forked too, and share no metrics.
    """

    def __init__(
        self,
        arguments: Sequence[str | int | Path],
        *,
        module: str = PROGRAM,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stderr: IO[bytes] | IO[str] | None = None,
        with_epsilons: bool = False,
        forked_workers: bool = False,
    ) -> None:
        told, tell = os.pipe()
        out, write = os.pipe()
        request = {
            "module": module,
            "arguments": [str(argument) for argument in arguments],
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "with_epsilons": with_epsilons,
            "forked_workers": forked_workers,
        }
        errors = 2 if stderr is None else stderr.fileno()
        parent = _parent()
        socket.send_fds(parent, [json.dumps(request).encode()], [tell, write, errors])
        os.close(tell)
        os.close(write)
        self._told = os.fdopen(told, "rb", buffering=0)
        self.stdout: IO[str] = os.fdopen(out, encoding="utf-8")
        self.pid = int(self._line())
        self.returncode: int | None = None

    def _line(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            more = self._told.read(1)
            if not more:
                raise AssertionError("the parent of forked processes has died")
            line += more
        return line

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self.returncode = int(self._line())
            self._told.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> str:
        """Return its standard output after its end."""
        until = None if timeout is None else time.monotonic() + timeout
        said = b""
        while True:
            left = None if until is None else max(0.0, until - time.monotonic())
            if not select.select([self.stdout], [], [], left)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            more = os.read(self.stdout.fileno(), 65_536)
            if not more:
                break
            said += more
        self.wait(None if until is None else max(0.0, until - time.monotonic()))
        self.stdout.close()
        return said.decode()

    def __enter__(self) -> Forked:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.wait()
        self.stdout.close()


@functools.cache
def _parent() -> socket.socket:
    """Start the parent of forked processes, which ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * LONGEST_REQUEST)
    process = subprocess.Popen(
        [sys.executable, "-P", __file__, str(theirs.fileno())],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
        start_new_session=True,
    )
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _fork_on_request(control: socket.socket) -> None:
    """Import every module, then fork a process for each request until the socket is closed."""
    sys.path.insert(0, str(ROOT))
    flower = LOADED_WITH_FLOWER if importlib.util.find_spec("flwr") else ()
    for module in (*LOADED, *flower):
        importlib.import_module(module)
    gc.freeze()  # a collection in a fork would copy every page
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, LONGEST_REQUEST, 3)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not message:
            break
        if os.fork() == 0:
            control.close()
            _watch(json.loads(message), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def _watch(request: dict[str, object], tell: int, out: int, errors: int) -> None:
    """Fork the requested process; send its pid, and its exit code after its end."""
    _die_with_parent()
    process = os.fork()
    if process == 0:
        os.close(tell)
        _be(request, out, errors)
    os.close(out)
    os.close(errors)
    os.write(tell, b"%d\n" % process)
    _, status = os.waitpid(process, 0)
    with contextlib.suppress(BrokenPipeError):
        os.write(tell, b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _be(request: dict[str, object], out: int, errors: int) -> None:
    """Run the requested module in this process."""
    code: object = 1
    try:
        _die_with_parent()
        os.setsid()
        os.dup2(out, 1)
        os.dup2(errors, 2)
        os.closerange(3, max(out, errors) + 1)
        os.chdir(str(request["cwd"]))
        os.environ.clear()
        os.environ.update(request["env"])  # type: ignore[call-overload]
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
        server = importlib.import_module("checkins.service.server")
        if not request["with_epsilons"]:
            server.create_app = _create_app  # the command has no option for it
        if request["forked_workers"]:
            server.start_worker = _ForkedWorker  # nor for this
        module = str(request["module"])
        sys.argv = [module, *request["arguments"]]  # type: ignore[misc]
        importlib.import_module(module).main()
        code = 0
    except SystemExit as left:
        code = left.code
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


class _ForkedWorker:
    """A forked worker, with the part of ``subprocess.Popen`` that a coordinator uses."""

    def __init__(self, settings: Settings, listener: socket.socket) -> None:
        parent = os.getpid()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid:
            return
        code: object = 1
        try:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)  # in place of the handlers of the parent
            run_worker = importlib.import_module("checkins.service.server").run_worker
            run_worker(settings, listener, parent_id=parent)
        except SystemExit as left:
            code = left.code
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code if isinstance(code, int) else 1)

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self, timeout: float) -> int:
        until = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() >= until:
                raise subprocess.TimeoutExpired(f"worker {self.pid}", timeout)
            time.sleep(0.01)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _create_app(settings: Settings) -> FastAPI:
    """The app of a coordinator that computes no epsilons."""
    from checkins.service.app import create_app
    from tests.support.store import NoEpsilonProcesses

    return create_app(settings, epsilon_processes=NoEpsilonProcesses(settings.store))


def _die_with_parent() -> None:
    """End this process with its parent, where the system supports it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    _fork_on_request(socket.socket(fileno=int(sys.argv[1])))
