"""Serve the app in a single process, or in several worker processes that share a socket.

With several workers, a parent process starts them and restarts a worker that dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import uvicorn

from checkins.errors import ComputationFailed, InvalidValue
from checkins.service import logs, metrics
from checkins.service.app import create_app
from checkins.service.http.tls import Certificate, loop_factory
from checkins.service.http.uvicorn_hooks import GracefulServer, limited_protocol
from checkins.service.runs.runner import Runner
from checkins.service.settings import Settings

SHUTDOWN_TIMEOUT_S = 10
"""Seconds within which a coordinator and its workers end after they are asked to stop."""
REQUESTS_TIMEOUT_S = 5
"""Seconds of ``SHUTDOWN_TIMEOUT_S`` that running requests may take. Open transactions may take the
rest."""
KILL_AFTER_S = SHUTDOWN_TIMEOUT_S - 0.5
"""Seconds after which the parent process kills a worker that was asked to stop."""
CHECK_INTERVAL_S = 0.25
"""Seconds between two checks whether the parent process is alive, or the last run is over."""


class Coordinator(GracefulServer):
    """A uvicorn server with the app of ``create_app`` and the limits of ``settings``."""

    def __init__(self, settings: Settings, *, ready: Callable[[], None] | None = None) -> None:
        self.app = create_app(settings)
        self.runner: Runner = self.app.state.runner
        self.certificate = Certificate.of(settings)
        self.handshake_timeout_s = settings.limits.head_s
        super().__init__(
            uvicorn.Config(
                self.app,
                http=limited_protocol(
                    settings.limits,
                    trusted_proxies=settings.trusted_proxies,
                    on_connection_count=self.runner.metrics.set_connections,
                    on_refusal=self.runner.metrics.count_refusal,
                ),
                loop="none",
                ws="none",
                backlog=4096,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=REQUESTS_TIMEOUT_S,
                proxy_headers=False,
                server_header=False,
                date_header=False,
                **logs.UVICORN_OPTIONS,
            ),
            ready=ready,
            release_waiters=self.runner.release_waiters,
            tls=None if self.certificate is None else self.certificate.context,
        )
        self._show_expiry()

    def reload_certificate(self) -> None:
        """Load the certificate again, for new connections, if the server uses TLS."""
        if self.certificate is not None:
            self.certificate.reload()
            self._show_expiry()

    def _show_expiry(self) -> None:
        if self.certificate is not None:
            self.runner.metrics.set_certificate_expiry(self.certificate.expires_at.timestamp())


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket. Port 0 means any free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        expected = f"cannot be used on {host}: {error.strerror}; give another --port or --host"
        raise InvalidValue("port", port, expected) from error
    listener.listen(4096)
    return listener


def serve(
    settings: Settings,
    listener: socket.socket,
    *,
    ready: Callable[[], None],
    until_done: str | None = None,
) -> None:
    """Serve in this process until a signal asks it to stop.

    ``ready`` is called once the server accepts connections. If ``until_done`` is the id of a run,
    also stop once this run and all later runs of its campaign are over.
    """
    _raise_open_file_limit()
    with logs.configure(settings.log_file):
        coordinator = Coordinator(settings, ready=ready)
        _run(coordinator, listener, _stop_after(coordinator, until_done))
    if not coordinator.started:
        raise ComputationFailed("the coordinator could not start: see its log")


def _run(
    coordinator: Coordinator, listener: socket.socket, watch: Coroutine[Any, Any, None]
) -> None:
    """Serve until a signal or ``watch`` stops the server; raise the exception of ``watch``."""

    def stop_if_failed(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            coordinator.should_exit = True

    async def main() -> None:
        if coordinator.certificate is not None:
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, coordinator.reload_certificate)
        watch_task = asyncio.create_task(watch)
        watch_task.add_done_callback(stop_if_failed)
        try:
            await coordinator.serve(sockets=[listener])
        finally:
            watch_task.cancel()
            await asyncio.wait({watch_task})
        if not watch_task.cancelled():
            watch_task.result()

    factory = loop_factory(handshake_timeout_s=coordinator.handshake_timeout_s)
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())


async def _stop_after(coordinator: Coordinator, run: str | None) -> None:
    """Stop the server once a run and all later runs of its campaign are over; None means never."""
    while run is not None:
        await asyncio.sleep(CHECK_INTERVAL_S)
        live_run = coordinator.runner.live_runs.get(run)
        if live_run is None or not live_run.is_over:
            continue
        if live_run.next_run is not None:
            run = live_run.next_run
        elif live_run.is_last:
            await asyncio.sleep(1.0)  # so that browsers and devices get the last events
            coordinator.should_exit = True
            return


def serve_with_workers(
    settings: Settings, listener: socket.socket, *, workers: int, ready: Callable[[], None]
) -> None:
    """Serve with several worker processes on one socket. Restart a worker that dies."""
    _raise_open_file_limit()
    with logs.configure(settings.log_file), _metrics_folder(), _Workers(settings, listener) as pool:
        for _ in range(workers):
            pool.spawn()
        pool.wait_until_ready()
        ready()
        pool.restart_dead_workers()


@dataclass
class _Workers:
    """Worker processes that share the listening socket and read the settings from a pipe."""

    settings: Settings
    listener: socket.socket
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    stopping: bool = False
    kill_at: float | None = None
    """Monotonic time at which workers that still run are killed; None until asked to stop."""

    def __enter__(self) -> _Workers:
        self._previous_handlers = {
            number: signal.signal(number, self._stop)
            for number in (signal.SIGTERM, signal.SIGINT)
            if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN
        }
        if self.settings.tls_cert is not None:
            handler = signal.signal(signal.SIGHUP, self._reload_certificates)
            self._previous_handlers[signal.SIGHUP] = handler
        return self

    def __exit__(self, *_: object) -> None:
        kill_at = self._ask_to_stop()
        for process in self.processes:
            try:
                process.wait(timeout=max(0.0, kill_at - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stopping = True
        self._ask_to_stop()  # not only in __exit__, because workers need time to end

    def _reload_certificates(self, number: int, frame: FrameType | None) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGHUP)

    def _ask_to_stop(self) -> float:
        """Ask all workers to stop; return the monotonic time at which they are killed."""
        if self.kill_at is None:
            self.kill_at = time.monotonic() + KILL_AFTER_S
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        return self.kill_at

    def spawn(self) -> None:
        """Start one worker."""
        self.processes.append(start_worker(self.settings, self.listener))

    def wait_until_ready(self) -> None:
        """Wait until a worker answers; raise ComputationFailed if a worker could not start."""
        address = self.listener.getsockname()[:2]
        while not self.stopping:
            if any(process.poll() is not None for process in self.processes):
                raise ComputationFailed("a worker could not start: see its log")
            with contextlib.suppress(OSError), self._connect(address) as connection:
                connection.sendall(
                    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                )
                if b" 200 " in connection.recv(64):
                    return
            time.sleep(0.05)

    def _connect(self, address: tuple[str, int]) -> socket.socket:
        connection = socket.create_connection(address, 2)
        if self.settings.tls_cert is None:
            return connection
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is our own worker
        return context.wrap_socket(connection)

    def restart_dead_workers(self) -> None:
        """Restart every worker that dies, until a signal asks the parent process to stop."""
        while not self.stopping:
            time.sleep(0.1)
            for process in list(self.processes):
                if process.poll() is not None and not self.stopping:
                    logs.warning("worker-died")
                    metrics.forget_worker(process.pid)
                    self.processes.remove(process)
                    self.spawn()


@contextlib.contextmanager
def _metrics_folder() -> Iterator[None]:
    """Create a temporary folder in which workers share their metrics."""
    with tempfile.TemporaryDirectory(prefix="checkins-metrics-") as folder:
        os.environ[metrics.FOLDER_VARIABLE] = folder
        try:
            yield
        finally:
            del os.environ[metrics.FOLDER_VARIABLE]


def _raise_open_file_limit() -> None:
    """Raise the limit on open files, which include connections, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def start_worker(settings: Settings, listener: socket.socket) -> subprocess.Popen[bytes]:
    """Start a process that runs a worker, and write the settings to its standard input."""
    fd = listener.fileno()
    process = subprocess.Popen(
        [sys.executable, "-m", "checkins.service.server", str(fd), str(os.getpid())],
        stdin=subprocess.PIPE,
        pass_fds=[fd],
    )
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):  # the worker died, and will be restarted
            process.stdin.write(settings.to_json().encode())
            process.stdin.close()
    return process


def run_worker(settings: Settings, listener: socket.socket, *, parent_id: int) -> None:
    """Run a worker, which serves an inherited socket until asked to stop or its parent dies.

    ``parent_id`` is given instead of read here, because the parent may have died already.
    """
    _raise_open_file_limit()
    with logs.configure(settings.log_file):
        coordinator = Coordinator(settings)
        _run(coordinator, listener, _stop_without_parent(coordinator, parent_id))
    sys.exit(0 if coordinator.started else 1)


async def _stop_without_parent(coordinator: Coordinator, parent_id: int) -> None:
    """Stop the server once the parent process has ended."""
    while os.getppid() == parent_id:
        await asyncio.sleep(CHECK_INTERVAL_S)
    coordinator.should_exit = True


if __name__ == "__main__":
    run_worker(
        Settings.from_json(sys.stdin.read()),
        socket.socket(fileno=int(sys.argv[1])),
        parent_id=int(sys.argv[2]),
    )
