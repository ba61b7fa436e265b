"""A real PostgreSQL for tests: a cluster of our own in a temporary folder, removed at the end.

Durability is what is tested, so ``fsync`` is on and stays on. Tests that need it fail when there is
no PostgreSQL; they are never skipped. A keeper, a process of its own, stops the cluster and removes
its folder as soon as this process is gone, however it went.

Every test may ask for the fixtures ``postgres`` and ``postgres_url``.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PLACES = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql*/bin")
MISSING = (
    "no PostgreSQL found, and this test runs on a real one: run `bash tools/postgres.sh`, or"
    " install the package postgresql, or name the folder of initdb in the variable POSTGRES_BIN"
)
USER = "checkins"
START_S = 60.0
SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "autovacuum": "on",
    "log_min_messages": "warning",
}


@dataclass(frozen=True, slots=True)
class Postgres:
    """A running cluster; ``create`` makes an empty database in it."""

    port: int
    password: str
    data: Path

    def crash(self) -> None:
        """Crash the server without a last write, and return when it is gone.

        The keeper starts it again.
        """
        end = time.monotonic() + START_S
        while (process := self._process()) is None:  # it starts after an earlier crash
            assert time.monotonic() < end, f"PostgreSQL did not start within {START_S:.0f} s"
            time.sleep(0.01)
        os.kill(process, signal.SIGQUIT)  # "immediate": what was not durable is lost
        while self._process() == process:
            assert time.monotonic() < end, f"PostgreSQL did not end within {START_S:.0f} s"
            time.sleep(0.01)

    def _process(self) -> int | None:
        """The number of the server's process, or None while there is none."""
        with contextlib.suppress(OSError, IndexError):
            return int((self.data / "postmaster.pid").read_text().split()[0])
        return None

    def url(self, database: str) -> str:
        """The address of a database, as `checkins serve --store` and SQLAlchemy take it."""
        return f"postgresql://{USER}:{self.password}@127.0.0.1:{self.port}/{database}"

    def create(self) -> str:
        """Create a database; return its address."""
        name = f"test_{secrets.token_hex(6)}"
        self._run(f'CREATE DATABASE "{name}"')
        return self.url(name)

    def drop(self, url: str) -> None:
        """Remove a database and end its connections."""
        self._run(f'DROP DATABASE IF EXISTS "{url.rsplit("/", 1)[1]}" WITH (FORCE)')

    def _run(self, statement: str) -> None:
        """Run a statement as soon as the server takes connections, as after a crash."""
        import psycopg

        end = time.monotonic() + START_S
        while True:
            try:
                with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
                    connection.execute(statement.encode())
                return
            except psycopg.OperationalError:
                if not time.monotonic() < end:
                    raise
            time.sleep(0.1)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One cluster for a session of tests."""
    with open_postgres() as cluster:
        yield cluster


@pytest.fixture
def postgres_url(postgres: Postgres) -> Iterator[str]:
    """A database of this test's own."""
    url = postgres.create()
    yield url
    postgres.drop(url)


def find_programs() -> Path:
    """The folder of initdb and postgres, or a failed test that says how to get it."""
    named = os.environ.get("POSTGRES_BIN")
    if named:
        places = [Path(named)]
    else:
        initdb = shutil.which("initdb")
        places = [Path(initdb).resolve().parent] if initdb else []
        for pattern in PLACES:
            places += sorted(Path("/").glob(pattern[1:]), reverse=True)
    for place in places:
        if (place / "initdb").exists() and (place / "postgres").exists():
            return place
    pytest.fail(f"POSTGRES_BIN={named}: {MISSING}" if named else MISSING)


@contextlib.contextmanager
def open_postgres() -> Iterator[Postgres]:
    """Make a cluster, start it, and have its keeper stop it."""
    programs, owner = find_programs(), _unprivileged()
    folder = Path(tempfile.mkdtemp(prefix="checkins-pg-", dir=_short_temporary()))
    keeper = None
    try:
        if owner is not None:
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        password = secrets.token_hex(16)
        _initdb(programs, folder, owner, password)
        keeper, port = _start(programs, folder, owner)
        yield Postgres(port, password, folder / "data")
    finally:
        if keeper is not None:
            keeper.communicate(timeout=START_S)
        shutil.rmtree(folder, ignore_errors=True)


def _initdb(programs: Path, folder: Path, owner: pwd.struct_passwd | None, password: str) -> None:
    secret = folder / "password"
    secret.touch(mode=0o600)
    if owner is not None:
        os.chown(secret, owner.pw_uid, owner.pw_gid)
    secret.write_text(password, encoding="ascii")
    command = [programs / "initdb", "--pgdata", folder / "data", "--username", USER]
    command += ["--pwfile", secret, "--auth", "scram-sha-256", "--encoding", "UTF8"]
    command += ["--locale", "C", "--no-sync"]  # the server itself syncs all that it commits
    made = subprocess.run(command, cwd=folder, capture_output=True, text=True, **_as(owner))
    if made.returncode:
        pytest.fail(f"initdb failed: {made.stderr.strip()}")
    secret.unlink()


def _start(
    programs: Path, folder: Path, owner: pwd.struct_passwd | None
) -> tuple[subprocess.Popen[str], int]:
    """Start the cluster; choose another port if a program takes the port before its use."""
    told = ""
    for _ in range(5):
        port = free_port()
        settings = SETTINGS | {"port": str(port), "unix_socket_directories": str(folder)}
        settings["listen_addresses"] = "127.0.0.1"
        command = [str(programs / "postgres"), "-D", str(folder / "data")]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        uid, gid = (owner.pw_uid, owner.pw_gid) if owner else (-1, -1)
        keeper = subprocess.Popen(
            [sys.executable, "-P", __file__, str(folder), str(uid), str(gid), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the tests; the keeper outlives them
        )
        assert keeper.stdout is not None
        told = keeper.stdout.readline().strip()
        if told == "ready":
            return keeper, port
        keeper.communicate()
    pytest.fail(f"PostgreSQL did not start: {told}")


def free_port() -> int:
    """A TCP port of this machine that nobody listens on now.

    Below those that systems give to outgoing connections: a server that is killed and started again
    finds its port free.
    """
    while True:
        port = secrets.randbelow(22_000) + 10_000
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _unprivileged() -> pwd.struct_passwd | None:
    """Return the user that runs PostgreSQL, which refuses root; None if the tests are not root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    pytest.fail("PostgreSQL refuses to run as root, and there is no user postgres or nobody")


def _as(owner: pwd.struct_passwd | None) -> dict[str, object]:
    if owner is None:
        return {}
    return {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}


def _short_temporary() -> str | None:
    """Return a short folder: the path of a Unix socket has a hundred characters at most."""
    return "/tmp" if Path("/tmp").is_dir() else None


def _keep(folder: str, uid: int, gid: int, command: list[str]) -> None:
    """Run the keeper: start the cluster, again after a crash, and remove it when the tests end."""
    log = Path(folder) / "log"
    identity = {} if uid < 0 else {"user": uid, "group": gid, "extra_groups": []}
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.SIG_IGN)

    def start() -> subprocess.Popen[bytes]:
        with log.open("ab") as file:
            return subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file, **identity
            )

    server = start()
    told = _until_ready(server, command, log)
    try:
        print(told, flush=True)
        while not select.select([sys.stdin], [], [], 0.1)[0]:  # ends with whoever started us
            if server.poll() is not None and told == "ready":
                server = start()
    finally:
        server.send_signal(signal.SIGQUIT)  # without a checkpoint, because the files are removed
        server.wait(30)
        if told == "ready":  # otherwise another port is tried with the same folder
            shutil.rmtree(folder, ignore_errors=True)


def _until_ready(server: subprocess.Popen[bytes], command: list[str], log: Path) -> str:
    """Wait until postmaster.pid says that the server takes connections."""
    marker = Path(command[command.index("-D") + 1]) / "postmaster.pid"
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        with contextlib.suppress(OSError, IndexError):
            if marker.read_text().splitlines()[7].strip() == "ready":
                return "ready"
        try:
            server.wait(0.02)
        except subprocess.TimeoutExpired:
            continue
        return " ".join(log.read_text(errors="replace").split())[-500:] or "it ended at once"
    return f"not within {START_S:.0f} s"


if __name__ == "__main__":
    _keep(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
