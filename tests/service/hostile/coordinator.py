"""`checkins serve` as a process of its own: started, watched and stopped by a test."""

from __future__ import annotations

import json
import os
import queue
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from tests.forks import Forked

PROGRAM = str(Path(sys.executable).parent / "checkins")
SOAK = os.environ.get("CHECKINS_SOAK") == "1"
OPERATOR = "operator-token-of-a-test-0123456789abcdef"
STARTS_WITHIN_S = 120.0
PRICING = b"checkins.service.workers.epsilon_process"

CAMPAIGN = """\
schema = 1
name = "{name}"
population_id = "{name}"

[budget]
epsilon = 50.0
delta = 1e-6
adjacency = "add-remove"

[protocol]
kind = "fixed"
slots = {slots}
participation = 1.0
capacity = {capacity}
repeats = 1

[randomizer]
kind = "laplace"
local_epsilon = 1.0
clip = 1.0
grid = 1e-6

[task]
data = "synthetic"
model = "logistic"
local_steps = 1
optimizer = {{ kind = "sgd", rate = 0.5, minibatch = 1 }}

[schedule]
start = {start}
slot_s = {slot_s}
choose_s = {choose_s}
"""


def campaign_text(
    name: str = "hostile",
    *,
    slots: int = 100,
    capacity: int = 4,
    slot_s: float = 3600.0,
    choose_s: float = 3000.0,
    start: datetime | None = None,
) -> str:
    """A small campaign with a budget that nothing here can use up."""
    begins = (start or datetime.now(UTC)).astimezone(UTC)
    return CAMPAIGN.format(
        name=name,
        slots=slots,
        capacity=capacity,
        slot_s=float(slot_s),
        choose_s=float(choose_s),
        start=begins.isoformat(timespec="microseconds").replace("+00:00", "Z"),
    )


@dataclass(frozen=True, slots=True)
class Coordinator:
    """A running service, and what a test may ask of its process."""

    process: subprocess.Popen[str] | Forked
    url: str
    campaign: str
    complaints: Path
    """What it wrote to standard error."""

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        assert parts.port is not None
        return parts.hostname, parts.port

    def processes(self) -> list[int]:
        """The process and all that it started, but for those that compute prices and then end."""
        found, fresh = [], [self.process.pid]
        while fresh:
            found += [pid for pid in fresh if PRICING not in _command(pid)]
            fresh = [child for parent in fresh for child in _children(parent)]
        return found

    def resident_bytes(self) -> int:
        """Memory that is in use now, of all processes together."""
        return sum(_status(pid, "VmRSS") for pid in self.processes())

    def peak_bytes(self) -> int:
        """The most that was in use since ``forget_peak``."""
        return sum(_status(pid, "VmHWM") for pid in self.processes())

    def forget_peak(self) -> None:
        for pid in self.processes():
            Path(f"/proc/{pid}/clear_refs").write_text("5")

    def stop(self) -> int:
        """End it as an operator does; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


@contextmanager
def serving(
    folder: Path, text: str, *options: str, start: str = "now", real: bool = SOAK
) -> Iterator[Coordinator]:
    """Serve this campaign on a free port until the block ends; it must then end with exit code 0.

    How often one address may ask is not limited unless asked for: all clients of a test share one.
    ``real`` starts the command, whose memory is its own alone, and prices the campaign; otherwise
    it is forked from a process that has loaded everything.
    """
    allow_many_files()
    file, complaints, token = (folder / name for name in ("campaign.toml", "stderr", "operator"))
    file.write_text(text)
    token.write_text(OPERATOR)
    token.chmod(0o600)
    if "--store" not in options:
        options = (*options, "--store", f"sqlite:///{folder / 'store.db'}")
    if "--rate" not in options:
        options = (*options, "--rate", "0")
    if "--per-address" not in options:
        options = (*options, "--per-address", "0")  # everyone is on one machine
    command = ["serve", str(file), "--json", "--host", "127.0.0.1", "--port", "0"]
    command += ["--start", start, "--operator-token-file", str(token), *options]
    env = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    with complaints.open("w") as errors, _started(command, folder, env, errors, real) as process:
        try:
            told = _first_line(process, complaints)
            running = Coordinator(process, told["url"].rstrip("/"), told["campaign"], complaints)
            yield running
            assert process.poll() is None, f"it ended by itself: {complaints.read_text()[-2000:]}"
            assert running.stop() == 0, complaints.read_text()[-2000:]
        finally:
            if process.poll() is None:
                process.kill()


def allow_many_files(count: int = 12_000) -> None:
    """Thousands of connections are as many open files, here and in the service."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _started(
    command: list[str], folder: Path, env: dict[str, str], errors: IO[str], real: bool
) -> subprocess.Popen[str] | Forked:
    if not real:
        return Forked(command, cwd=folder, env=env, stderr=errors)
    return subprocess.Popen(
        [PROGRAM, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        cwd=folder,
        env=env,
    )


def _first_line(process: subprocess.Popen[str] | Forked, complaints: Path) -> dict[str, str]:
    assert process.stdout is not None
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_drain, args=(process.stdout, lines), daemon=True).start()
    try:
        line = lines.get(timeout=STARTS_WITHIN_S)
    except queue.Empty:
        line = ""
    if not line:
        raise AssertionError(f"the service did not start: {complaints.read_text()[-4000:]}")
    told: dict[str, str] = json.loads(line)
    return told


def _drain(stream: Iterator[str], lines: queue.Queue[str]) -> None:
    for line in stream:
        lines.put(line)
    lines.put("")


def _children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(one) for task in tasks for one in (task / "children").read_text().split()]
    except FileNotFoundError:
        return []


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return PRICING  # it has ended


def _status(pid: int, name: str) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return 0
    line = next((line for line in text.splitlines() if line.startswith(f"{name}:")), "0 0")
    return 1024 * int(line.split()[1])
