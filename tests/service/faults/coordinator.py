"""The coordinator as a process that is killed and started again: `checkins serve`, same port.

It is forked (``tests.forks``) unless a test is about the command itself and says ``real``.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.forks import Forked
from tests.postgres import free_port

CHECKINS = Path(sys.executable).with_name("checkins")
PATIENCE_S = 300.0
WITH_US = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
"""Where the system can do it, nothing that was started outlives a test that was itself killed."""
OPERATOR = "operator-token-of-the-tests"


SOAK = os.environ.get("CHECKINS_SOAK") == "1"


@dataclass(slots=True)
class Coordinator:
    """`checkins serve` in a process group of its own; ``kill`` is kill -9."""

    campaign: Path
    store: str
    workers: int = 1
    start: str = "+4"
    port: int = 0
    more: tuple[str, ...] = ()
    real: bool = SOAK
    """Started as the command, with its imports, and its campaign is priced: always in the soak."""
    told: dict[str, Any] = field(default_factory=dict)
    starts: int = 0
    _process: subprocess.Popen[str] | Forked | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.campaign.with_name("service.log")

    @property
    def output(self) -> Path:
        """What it wrote to its standard error."""
        return self.campaign.with_name("service.err")

    def _wait_for_port(self) -> None:
        """Wait until the last worker of a killed coordinator has let go of the port."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", self.port))
                    return
                except OSError:
                    assert time.monotonic() < deadline, f"port {self.port} stays in use"
            time.sleep(0.02)

    def begin(self) -> None:
        """Start it, again or for the first time, and wait until it answers."""
        self.port = self.port or free_port()
        self._wait_for_port()
        command = ["serve", str(self.campaign), "--store", self.store]
        command += ["--port", str(self.port), "--workers", str(self.workers), "--json"]
        command += ["--start", self.start, "--log-file", str(self.log), "--rate", "0"]
        command += ["--per-address", "0", *self.more]  # all devices are on one machine
        with self.output.open("ab") as errors:
            folder = self.campaign.parent
            env = {
                **os.environ,
                "CHECKINS_OPERATOR_TOKEN": OPERATOR,
                "XDG_STATE_HOME": str(folder / "state"),
            }
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
                self._process = Forked(command, cwd=folder, env=env, stderr=errors)
        self.told = json.loads(self._first_line())
        self.starts += 1

    def _first_line(self) -> str:
        process = self._running()
        assert process.stdout is not None
        alarm = threading.Timer(PATIENCE_S, process.kill)
        alarm.start()
        try:
            line = process.stdout.readline()
        finally:
            alarm.cancel()
        if not line:
            self.kill()
            raise AssertionError(
                f"the coordinator does not start: {self.output.read_text()[-2000:]}"
            )
        return line

    def kill(self) -> None:
        """kill -9 of everything: no goodbye, no last write."""
        process = self._running()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        self._gone(process)

    def kill_one_worker(self, dice: random.Random) -> bool:
        """kill -9 of one of several; the others go on, and it is started again by itself."""
        workers = self.worker_processes()
        if not workers:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(dice.choice(workers), signal.SIGKILL)
        return True

    def worker_processes(self) -> list[int]:
        """The processes that answer requests, where there are several."""
        process = self._running()
        tasks = Path(f"/proc/{process.pid}/task").glob("*/children")
        children = [int(child) for task in tasks for child in task.read_text().split()]
        return [child for child in children if b"checkins.service.server" in _command(child)]

    def stop(self) -> int:
        """Ask it to stop, as an operator would; its exit code."""
        process = self._running()
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(PATIENCE_S)
        finally:
            self.kill()

    def _running(self) -> subprocess.Popen[str] | Forked:
        assert self._process is not None, "it was not started"
        return self._process

    def _gone(self, process: subprocess.Popen[str] | Forked) -> None:
        process.wait(PATIENCE_S)
        assert process.stdout is not None
        process.stdout.close()
        self._process = None

    @contextlib.contextmanager
    def running(self) -> Iterator[Coordinator]:
        """From its first start to its end, whatever happens in between."""
        try:
            self.begin()
            yield self
        finally:
            if self._process is not None:
                self.kill()


def _command(process: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""
