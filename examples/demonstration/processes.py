"""Run the programs of the demo, each in its own process group, and end them all at the end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

CHECKINS = Path(sys.executable).with_name("checkins")
PORT = 8470
GRACE_S = 10.0
"""Time in seconds that a program has to exit after a signal, before the next signal."""
LOOK_S = 0.1
"""Time in seconds between two checks of a program."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Failed(Exception):
    """A program of the demo failed."""


class Interrupted(Exception):
    """The demo received a signal to stop."""


class Interruption:
    """Store a signal to stop, and raise ``Interrupted`` when the demo next pauses.

    An exception while a program is being started could leave that program running.
    """

    def __init__(self) -> None:
        self.number: int | None = None

    @contextmanager
    def heard(self) -> Iterator[Interruption]:
        """Store signals while the block runs. A signal that was ignored stays ignored."""
        heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._remember) for number in heard}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.number = number

    def pause(self, seconds: float = LOOK_S) -> None:
        """Wait. Raise ``Interrupted`` if a signal to stop has arrived."""
        time.sleep(seconds)
        if self.number is not None:
            raise Interrupted


class Program:
    """A process of ``checkins`` with these arguments. Leaving its context ends the process."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        self.name = f"checkins {arguments[0]}"
        self._out, self._err = (folder / f"{arguments[0]}.{kind}" for kind in ("out", "err"))
        self._command = [str(CHECKINS), *map(str, arguments)]

    def __enter__(self) -> Program:
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is None:
                os.killpg(self.process.pid, number)
            try:
                self.process.wait(timeout=GRACE_S)
            except subprocess.TimeoutExpired:
                continue
            return

    @property
    def output(self) -> str:
        """Everything that the program has printed so far."""
        return self._out.read_text(encoding="utf-8")

    @property
    def ended(self) -> bool:
        """Whether the program has exited."""
        return self.process.poll() is not None

    def failure(self) -> Failed:
        """Return an error with the end of the program's standard error."""
        stderr = self._err.read_text(encoding="utf-8", errors="replace").strip()[-1500:]
        return Failed(f"{self.name} ended with exit code {self.process.returncode}.\n{stderr}")

    def finished(self, interruption: Interruption, *, within_s: float) -> str:
        """Wait until the program exits and return what it printed."""
        deadline = time.monotonic() + within_s
        while not self.ended:
            if time.monotonic() > deadline:
                raise Failed(f"{self.name} has not ended after {within_s:g} s.")
            interruption.pause()
        return self.output


def free_port() -> int:
    """Return the default port, or 0 for any free port if the default one is in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", PORT))
        except OSError:
            return 0
    return PORT
