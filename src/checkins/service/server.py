"""Serving: one process, or a parent with several workers on one socket."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from checkins.errors import ComputationFailed, InvalidValue
from checkins.service import logs, metrics
from checkins.service.app import create_app
from checkins.service.connections import guarded
from checkins.service.runner import Runner
from checkins.service.settings import Settings

LEAVE_S = 10
"""Within so many seconds of being asked to stop a coordinator has left, workers included, whatever
its clients and its store do."""
GRACE_S = 5
"""Of them, for requests in flight; the rest is for the store (``runner.LEAVE_STORE_S``)."""
KILL_S = LEAVE_S - 0.5
"""A worker that has not left by then is killed by its parent."""
PARENT_LOOK_S = 0.5
WORKER_RESTART_S = 0.5


class Coordinator(uvicorn.Server):
    """uvicorn, which answers its long polls before it waits for them to end."""

    def __init__(self, settings: Settings, *, ready: Callable[[], None] | None = None) -> None:
        self.app = create_app(settings)
        runner: Runner = self.app.state.runner
        super().__init__(
            uvicorn.Config(
                self.app,
                http=guarded(
                    settings.limits,
                    trusted_proxies=settings.trusted_proxies,
                    opened=runner.metrics.connections,
                    refused=runner.metrics.refused,
                ),
                loop="uvloop",
                ws="none",
                backlog=4096,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=GRACE_S,
                proxy_headers=False,
                server_header=False,
                date_header=False,
                **logs.UVICORN,
            )
        )
        self._ready = ready
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def runner(self) -> Runner:
        runner: Runner = self.app.state.runner
        return runner

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn does, but a signal that was obeyed is not raised again: the exit code is 0.

        SIGINT stays ignored where it was ignored at the start, as in a background job.
        """
        before = signal.getsignal(signal.SIGINT)
        with super().capture_signals():
            if before is signal.SIG_IGN:
                signal.signal(signal.SIGINT, before)
            yield
            self._captured_signals.clear()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """As uvicorn does; also while it still waits for the store to start."""
        super().handle_exit(sig, frame)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.runner.release_waiters)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        gc.collect()
        gc.freeze()  # what is loaded stays: looking through it again and again costs half the rate
        gc.set_threshold(20_000, 20, 50)
        if self.started and not self.should_exit and self._ready is not None:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.runner.release_waiters()
        await super().shutdown(sockets)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 picks a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise InvalidValue(
            "port",
            port,
            f"cannot be used on {host}: {error.strerror}; give another --port or --host",
        ) from error
    listener.listen(4096)
    return listener


def serve(
    settings: Settings,
    listener: socket.socket,
    *,
    ready: Callable[[], None],
    until_done: str | None = None,
) -> None:
    """Serve in this process until asked to stop, or until the run ``until_done`` is over."""
    _raise_file_limit()
    with logs.configure(settings.log_file):
        coordinator = Coordinator(settings, ready=ready)
        _run(coordinator, listener, _end_with(coordinator, until_done))
    if not coordinator.started:
        raise ComputationFailed("the coordinator could not start: its log says why")


def _run(
    coordinator: Coordinator, listener: socket.socket, watch: Coroutine[Any, Any, None]
) -> None:
    """Serve until asked to stop, or until ``watch`` says so; if ``watch`` dies, that is raised."""

    async def main() -> None:
        watching = asyncio.create_task(watch)
        watching.add_done_callback(lambda _: _leave_if_dead(coordinator, watching))
        try:
            await coordinator.serve(sockets=[listener])
        finally:
            watching.cancel()
            await asyncio.wait({watching})
        if not watching.cancelled():
            watching.result()

    with asyncio.Runner(loop_factory=coordinator.config.get_loop_factory()) as runner:
        runner.run(main())


def _leave_if_dead(coordinator: Coordinator, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        coordinator.should_exit = True


async def _end_with(coordinator: Coordinator, run: str | None) -> None:
    """Leave once a run and those that follow it are over."""
    while run is not None:
        await asyncio.sleep(PARENT_LOOK_S / 2)
        desk = coordinator.runner.desks.get(run)
        if desk is None or not desk.is_over:
            continue
        if desk.next_run is not None:
            run = desk.next_run
        elif desk.is_last:
            await asyncio.sleep(1.0)  # those who listen hear of the end
            coordinator.should_exit = True
            return


def serve_with_workers(
    settings: Settings, listener: socket.socket, *, workers: int, ready: Callable[[], None]
) -> None:
    """Serve with several processes on one socket; one that dies is started again."""
    _raise_file_limit()
    with logs.configure(settings.log_file), _metrics_folder(), _Workers(settings, listener) as crew:
        for _ in range(workers):
            crew.hire()
        crew.wait_for_an_answer()
        ready()
        crew.look_after()


class _Workers:
    """Worker processes: they share the listening socket and get the settings through a pipe."""

    def __init__(self, settings: Settings, listener: socket.socket) -> None:
        self.settings = settings
        self.listener = listener
        self.processes: list[subprocess.Popen[bytes]] = []
        self.stopping = False
        self.leave_by: float | None = None
        """When all must be gone, on the monotonic clock; None until asked to stop."""

    def __enter__(self) -> _Workers:
        self._before = {
            number: signal.signal(number, self._stop)
            for number in (signal.SIGTERM, signal.SIGINT)
            if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN
        }
        return self

    def __exit__(self, *_: object) -> None:
        leave_by = self._ask_to_stop()
        for process in self.processes:
            try:
                process.wait(timeout=max(0.0, leave_by - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stopping = True
        self._ask_to_stop()  # whatever the parent waits for now, its workers need the time

    def _ask_to_stop(self) -> float:
        if self.leave_by is None:
            self.leave_by = time.monotonic() + KILL_S
        self._tell(signal.SIGTERM)
        return self.leave_by

    def _tell(self, number: int) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    def hire(self) -> None:
        """Start one worker."""
        fd = self.listener.fileno()
        process = subprocess.Popen(
            [sys.executable, "-m", "checkins.service.server", str(fd), str(os.getpid())],
            stdin=subprocess.PIPE,
            pass_fds=[fd],
        )
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it is gone already: that is noticed
                process.stdin.write(self.settings.to_json().encode())
                process.stdin.close()
        self.processes.append(process)

    def wait_for_an_answer(self) -> None:
        """Until some worker answers; a worker that cannot start ends it."""
        address = self.listener.getsockname()[:2]
        while not self.stopping:
            if any(process.poll() is not None for process in self.processes):
                raise ComputationFailed("a worker could not start: its log says why")
            with contextlib.suppress(OSError), socket.create_connection(address, 2) as asking:
                asking.sendall(
                    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                )
                asking.settimeout(2)
                if b" 200 " in asking.recv(64):
                    return
            time.sleep(0.05)

    def look_after(self) -> None:
        """Start a worker again when it dies, until asked to stop."""
        while not self.stopping:
            time.sleep(WORKER_RESTART_S / 5)
            for process in list(self.processes):
                if process.poll() is not None and not self.stopping:
                    logs.warning("worker-died")
                    metrics.forget_worker(process.pid)
                    self.processes.remove(process)
                    self.hire()


@contextlib.contextmanager
def _metrics_folder() -> Iterator[None]:
    """Where workers leave their metrics for each other."""
    with tempfile.TemporaryDirectory(prefix="checkins-metrics-") as folder:
        os.environ[metrics.FOLDER] = folder
        try:
            yield
        finally:
            del os.environ[metrics.FOLDER]


def _raise_file_limit() -> None:
    """As many connections as the system allows this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def work(arguments: Sequence[str]) -> None:
    """A worker: serves the socket it was given until it is told to stop, or its parent dies."""
    parent = int(arguments[1])  # it may be gone by now
    settings = Settings.from_json(sys.stdin.read())
    listener = socket.socket(fileno=int(arguments[0]))
    _raise_file_limit()
    with logs.configure(settings.log_file):
        coordinator = Coordinator(settings)
        _run(coordinator, listener, _end_with_parent(coordinator, parent))
    sys.exit(0 if coordinator.started else 1)


async def _end_with_parent(coordinator: Coordinator, parent: int) -> None:
    while os.getppid() == parent:
        await asyncio.sleep(PARENT_LOOK_S)
    coordinator.should_exit = True


def default_witness(store: str, folder: Path) -> Path:
    """Choose the witness of a store: in the user's state folder, named by the store.

    Not beside the store: whoever puts back a copy of its folder would put back both. A witness that
    an earlier version left beside the store, or in the campaign's ``folder``, is used on.
    """
    prefix = "sqlite:///"
    if store.startswith(prefix):
        file = Path(store.removeprefix(prefix))
        earlier = file.with_name(file.name + ".witness")
        name = f"{file.name}-{_digits(str(file.resolve()))}.witness"
    else:
        name = f"checkins-{_digits(store.rpartition('@')[2].partition('?')[0])}.witness"
        earlier = folder / name
    chosen = _state_folder() / name
    return earlier if earlier.is_file() and not chosen.exists() else chosen


def _digits(place: str) -> str:
    return hashlib.sha256(place.encode()).hexdigest()[:12]


def _state_folder() -> Path:
    """Where programs keep what must outlive them: XDG_STATE_HOME, or .local/state at home."""
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    if given.is_absolute():
        return given / "checkins"
    try:
        return Path.home() / ".local" / "state" / "checkins"
    except RuntimeError:
        raise InvalidValue(
            "witness", None, "there is no home folder for it: name a file outside the store"
        ) from None


if __name__ == "__main__":
    work(sys.argv[1:])
