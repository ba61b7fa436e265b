"""`checkins serve` in a process of its own, which can be killed and started again on its port.

It is forked (``tests.support.forks``) unless a test is about the command itself and says ``real``.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.soak import SOAK
from tests.support import forks
from tests.support.campaigns import write_campaign
from tests.support.forks import Forked
from tests.support.postgres import free_port
from tests.support.program import CHECKINS
from tests.support.waiting import PATIENCE_S, wait_until

WITH_US = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
"""Prefix of a command that ends with this process, where the system supports it."""
OPERATOR = "operator-token-of-the-tests-0123456789abcdef"
UNLIMITED = ("--rate", "0", "--per-address", "0")
"""Options without limits per address: all devices of a test are on one machine."""
PRICING = b"checkins.service.workers.epsilon_process"


@dataclass(slots=True)
class Coordinator:
    """`checkins serve` in a process group of its own; ``kill`` is kill -9."""

    file: Path
    """The campaign file; the log and the standard error are written beside it."""
    store: str
    workers: int = 1
    start: str = "+4"
    port: int | None = None
    """None: one that stays free while the coordinator is killed. 0: the system picks one."""
    more: tuple[str, ...] = UNLIMITED
    real: bool = SOAK
    """Whether to start the command, with its imports and with memory of its own; always in soak."""
    with_epsilons: bool = False
    """Whether a forked coordinator computes epsilons; a real one always does."""
    forked_workers: bool = False
    """Whether the workers of a forked coordinator are forked too; they compute no epsilons then."""
    told: dict[str, Any] = field(default_factory=dict)
    """The JSON object that the coordinator printed when it started."""
    starts: int = 0
    _process: subprocess.Popen[str] | Forked | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def address(self) -> tuple[str, int]:
        assert self.port is not None
        return "127.0.0.1", self.port

    @property
    def campaign(self) -> str:
        """The id of the run that it serves."""
        return str(self.told["campaign"])

    @property
    def log(self) -> Path:
        return self.file.with_name("service.log")

    @property
    def stderr(self) -> Path:
        return self.file.with_name("service.err")

    @property
    def process(self) -> subprocess.Popen[str] | Forked:
        assert self._process is not None, "it was not started"
        return self._process

    def begin(self) -> None:
        """Start it, again or for the first time, and wait until it answers."""
        if self.port is None:
            self.port = free_port()
        if self.port:
            wait_until(self._port_is_free, f"port {self.port} is free", every_s=0.02)
        command = ["serve", str(self.file), "--store", self.store, "--json"]
        command += ["--port", str(self.port), "--workers", str(self.workers)]
        command += ["--start", self.start, "--log-file", str(self.log), *self.more]
        folder = self.file.parent
        env = {"CHECKINS_OPERATOR_TOKEN": OPERATOR, "XDG_STATE_HOME": str(folder / "state")}
        env = {**os.environ, **env}
        with self.stderr.open("ab") as errors:
            if self.real:
                self._process = subprocess.Popen(
                    [*WITH_US, str(CHECKINS), *command],
                    cwd=folder,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    start_new_session=True,
                )
            else:
                self._process = Forked(
                    command,
                    cwd=folder,
                    env=env,
                    stderr=errors,
                    with_epsilons=self.with_epsilons,
                    forked_workers=self.forked_workers,
                )
        self.told = json.loads(self._first_line())
        self.port = urlsplit(self.told["url"]).port
        self.starts += 1

    def _port_is_free(self) -> bool:
        """Whether the last worker of a killed coordinator has let go of the port."""
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(self.address)
            except OSError:
                return False
        return True

    def _first_line(self) -> str:
        assert self.process.stdout is not None
        alarm = threading.Timer(PATIENCE_S, self.process.kill)
        alarm.start()
        try:
            line = self.process.stdout.readline()
        finally:
            alarm.cancel()
        if not line:
            self.kill()
            raise AssertionError(f"the coordinator does not start: {self.complaints()}")
        return line

    def complaints(self) -> str:
        """The end of its standard error."""
        return self.stderr.read_text()[-4000:]

    def kill(self) -> None:
        """kill -9 of all its processes, without a last write."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._process = None

    def kill_one_worker(self, dice: random.Random) -> bool:
        """kill -9 of one of several workers; the coordinator starts it again."""
        workers = self.worker_processes()
        if not workers:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(dice.choice(workers), signal.SIGKILL)
        return True

    def stop(self) -> int:
        """Ask it to stop, as an operator does; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE_S)
        finally:
            self.kill()

    @contextlib.contextmanager
    def running(self) -> Iterator[Coordinator]:
        """Start it, and kill it at the end of the block if it still runs."""
        try:
            self.begin()
            yield self
        finally:
            if self._process is not None:
                self.kill()

    def worker_processes(self) -> list[int]:
        """The processes that answer requests, where there are several."""
        children = _children(self.process.pid)
        names = (b"checkins.service.server", forks.__file__.encode())
        return [child for child in children if any(name in _command(child) for name in names)]

    def processes(self) -> list[int]:
        """The process and all that it started, but for those that compute epsilons and then end."""
        found, fresh = [], [self.process.pid]
        while fresh:
            found += [pid for pid in fresh if (line := _command(pid)) and PRICING not in line]
            fresh = [child for parent in fresh for child in _children(parent)]
        return found

    def resident_bytes(self) -> int:
        """Memory that is in use now, of all processes together."""
        return sum(_status(pid, "VmRSS") for pid in self.processes())

    def peak_bytes(self) -> int:
        """The most memory that was in use since ``forget_peak``."""
        return sum(_status(pid, "VmHWM") for pid in self.processes())

    def forget_peak(self) -> None:
        for pid in self.processes():
            Path(f"/proc/{pid}/clear_refs").write_text("5")


@contextlib.contextmanager
def serving(
    folder: Path,
    text: str,
    *options: str,
    store: str | None = None,
    start: str = "now",
    real: bool = SOAK,
    with_epsilons: bool = False,
) -> Iterator[Coordinator]:
    """Serve this campaign on a free port until the block ends; it must then end with exit code 0.

    The store is a file in the folder if ``store`` is None.
    """
    allow_many_files()
    served = Coordinator(
        write_campaign(folder, text),
        store or f"sqlite:///{folder / 'store.db'}",
        start=start,
        port=0,
        more=options,
        real=real,
        with_epsilons=with_epsilons,
    )
    with served.running():
        yield served
        assert served.process.poll() is None, f"it ended by itself: {served.complaints()}"
        assert served.stop() == 0, served.complaints()


def allow_many_files(count: int = 12_000) -> None:
    """Raise the limit of open files: each of thousands of connections is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _children(pid: int) -> list[int]:
    with contextlib.suppress(FileNotFoundError):
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(one) for task in tasks for one in (task / "children").read_text().split()]
    return []


def _command(pid: int) -> bytes:
    """The command line of a process; empty if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _status(pid: int, name: str) -> int:
    with contextlib.suppress(FileNotFoundError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return 1024 * int(line.split()[1])
    return 0
