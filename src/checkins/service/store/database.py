"""A database and its transactions: SQLite in one file, or PostgreSQL for several workers.

A transaction that writes is shared or exclusive. Shared transactions save check-ins and reports,
and several of them may write to a run at the same time. An exclusive transaction chooses the
clients of a slot or closes the slot, while no other transaction writes to the run. So the database
alone decides which worker process closes a slot, and no check-in is accepted after the choice.
SQLite has one writer at a time. PostgreSQL uses advisory locks, which are granted in the order of
the requests.

A commit is durable: ``synchronous = FULL`` in SQLite, ``synchronous_commit = on`` in PostgreSQL.
SQLite overwrites deleted rows in its file (``secure_delete``).
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection as Connection
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.pool import StaticPool

from checkins.errors import ComputationFailed, InvalidValue
from checkins.service import logs
from checkins.service.store.time_source import Clock

WRITE_LOCK_TIMEOUT_S = 30  # seconds that a SQLite transaction waits for another writer
CLOCK_READINGS = 3  # how often PostgreSQL's clock is read for one adjustment of ``Clock``
CONNECTION_OPTIONS = {
    "application_name": "checkins",
    "connect_timeout": 10,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""Options of a connection to PostgreSQL. They detect a lost host after half a minute."""
START_TIMEOUT_S = 60  # seconds that a starting coordinator waits for PostgreSQL
CONNECT_PAUSE_S = 0.5  # seconds between two attempts to connect
MAX_CRASHES_AT_START = 3  # how often a start is repeated because PostgreSQL crashed
CHECKPOINT_WRITERS_TIMEOUT_S = 1.0  # seconds that a checkpoint waits for writers of this process
CHECKPOINT_READERS_TIMEOUT_MS = 50
"""Milliseconds that a checkpoint waits for readers. Writers are blocked during this time."""
_UNAVAILABLE_CODES = frozenset(
    {"57P01", "57P02", "57P03", "08000", "08001", "08003", "08004", "08006"}
)
"""SQLSTATE codes that mean that PostgreSQL is shutting down, has crashed or is starting up."""
_LOGIN_REFUSED_MESSAGES = (
    "authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "does not exist",
    "permission denied",
)
"""Parts of the messages with which PostgreSQL refuses a login. A retry would be refused too."""

MAX_RETRIES = 4  # how often a transaction is repeated after conflicts with other workers
_CONFLICT_CODES = ("40P01", "40001")
"""SQLSTATE codes of a transaction that PostgreSQL aborted because of a conflict."""

P = ParamSpec("P")
T = TypeVar("T")
StoreError = DBAPIError  # any error of a database or of the connection to it
CLOCK_QUERY = "SELECT extract(epoch FROM clock_timestamp())"


class StoreUnavailable(ComputationFailed):
    """PostgreSQL accepted no connection during the time that a starting coordinator waits."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"PostgreSQL accepted no connections for {seconds:.0f} s: is it running, and can this"
            " machine reach it? Start PostgreSQL, then repeat this command"
        )


class ConcurrentUpdate(Exception):
    """Another worker changed the same rows first, so the transaction must be repeated."""


def retry_on_conflict(attempt: Callable[[], T]) -> T:
    """Run a transaction, and repeat it after conflicts with other workers. Return its result."""
    for _ in range(MAX_RETRIES):
        try:
            return attempt()
        except (ConcurrentUpdate, IntegrityError):
            continue
        except DBAPIError as error:
            is_conflict = getattr(error.orig, "sqlstate", None) in _CONFLICT_CODES
            if not (error.connection_invalidated or is_conflict):
                raise
    return attempt()


class Database:
    """A SQLite or PostgreSQL database and its transactions. Several threads may use it."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self.url = url
        parsed = make_url(url)
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        if self.is_sqlite:
            self.engine = _sqlite_engine(url)
        else:
            self.engine = create_engine(
                parsed.set(drivername="postgresql+psycopg"),
                isolation_level="READ COMMITTED",  # of transactions that write, which take locks
                pool_size=4,
                max_overflow=4,
                connect_args={n: v for n, v in CONNECTION_OPTIONS.items() if n not in parsed.query},
            )
            event.listen(self.engine, "connect", _require_durable_commits)
        # SQLite makes waiting writers poll. This lock lets writers of this process wait in a queue.
        self._writer_lock = threading.Lock()
        self._writer_turn = self._writer_lock if self.is_sqlite else nullcontext()
        self.clock = Clock() if clock is None else clock
        if self.is_sqlite:
            self.clock.adjust_to_calendar()

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def read_transaction(self) -> Iterator[Connection]:
        """Open a transaction that only reads, and waits for no other transaction.

        All its statements see the same commits, so that what they read fits together.
        """
        with self.engine.connect() as connection:
            if not self.is_sqlite:
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    def read(
        self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return the result of ``query``, called in a transaction that only reads."""
        with self.read_transaction() as connection:
            return query(connection, *args, **kwargs)

    @contextmanager
    def shared_transaction(self, run: str) -> Iterator[Connection]:
        """Open a transaction that writes. Other shared transactions of the run may write too."""
        with self._write_transaction() as connection:
            self._take_advisory_lock(connection, "pg_advisory_xact_lock_shared", run)
            yield connection

    @contextmanager
    def exclusive_transaction(self, lock: str) -> Iterator[Connection]:
        """Open a transaction that writes while no other transaction with the same lock does.

        ``lock`` is the id of a run, or another name, such as ``migrations``.
        """
        with self._write_transaction() as connection:
            self._take_advisory_lock(connection, "pg_advisory_xact_lock", lock)
            yield connection

    @contextmanager
    def _write_transaction(self) -> Iterator[Connection]:
        with self._writer_turn, self.engine.connect() as connection:
            connection = connection.execution_options(writing=True)
            with connection.begin():
                yield connection

    def _take_advisory_lock(self, connection: Connection, function: str, name: str) -> None:
        if not self.is_sqlite:
            digest = hashlib.sha256(name.encode()).digest()[:8]
            key = int.from_bytes(digest, "big", signed=True)  # PostgreSQL's keys are signed
            connection.execute(text(f"SELECT {function}(:key)"), {"key": key})

    def now(self) -> float:
        """Return the time that all workers share, in seconds since 1970. It never jumps."""
        return self.clock.now()

    def synchronise_clock(self) -> None:
        """Adjust ``clock`` to the system time of PostgreSQL, or of this machine for SQLite.

        PostgreSQL's time is read several times, because a slow reading is imprecise.
        """
        if self.is_sqlite:
            self.clock.adjust_to_calendar()
            return
        with self.read_transaction() as connection:
            for _ in range(CLOCK_READINGS):
                self.clock.adjust_to_calendar(
                    lambda: float(connection.execute(text(CLOCK_QUERY)).scalar_one())
                )

    def run_when_available(self, work: Callable[[], T]) -> T:
        """Wait until PostgreSQL accepts connections, then return the result of ``work``.

        If PostgreSQL crashes meanwhile, ``work`` is repeated from its beginning.
        """
        for _ in range(MAX_CRASHES_AT_START):
            self.wait_until_available()
            try:
                return work()
            except DBAPIError as error:
                if self.is_sqlite or not is_unavailable(error):
                    raise
            self.engine.dispose()  # drop all connections from before the crash
        self.wait_until_available()
        return work()

    def wait_until_available(self) -> None:
        """Wait until PostgreSQL accepts connections, for at most ``START_TIMEOUT_S`` seconds."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.is_sqlite:
            try:
                with self.read_transaction() as connection:
                    connection.execute(text("SELECT 1"))
                return
            except DBAPIError as error:
                if not is_unavailable(error):
                    raise
                if not time.monotonic() < deadline:
                    raise StoreUnavailable(START_TIMEOUT_S) from error
                logs.repeated_warning(
                    "waiting-for-store", store="postgresql", seconds=START_TIMEOUT_S
                )
            time.sleep(CONNECT_PAUSE_S)

    def check_durable(self) -> None:
        """Raise InvalidValue if PostgreSQL's settings allow it to lose committed transactions."""
        if self.is_sqlite:
            return
        with self.read_transaction() as connection:
            for name in ("fsync", "full_page_writes"):
                if connection.execute(text(f"SHOW {name}")).scalar_one() != "on":
                    expected = "must be on, because clients rely on committed data"
                    raise InvalidValue("store", f"{name} = off", expected)

    def checkpoint(self) -> bool:
        """Move SQLite's write-ahead log into the file and empty it. Return whether it is empty.

        While any process has a transaction that reads, the log cannot be emptied. Writers wait for
        such a reader for at most ``CHECKPOINT_READERS_TIMEOUT_MS``. Return True for PostgreSQL.
        """
        if not self.is_sqlite:
            return True
        # SQLite refuses a checkpoint while this process writes.
        if not self._writer_lock.acquire(timeout=CHECKPOINT_WRITERS_TIMEOUT_S):
            return False
        try:
            connection = self.engine.raw_connection()
            try:
                # TRUNCATE waits for readers, and no other connection can write meanwhile.
                cursor = connection.cursor()
                cursor.execute(f"PRAGMA busy_timeout = {CHECKPOINT_READERS_TIMEOUT_MS}")
                busy, *_ = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                cursor.close()
            except sqlite3.OperationalError as error:
                if not _is_locked(error):
                    raise
                busy = 1
            finally:
                timeout_ms = 1000 * WRITE_LOCK_TIMEOUT_S
                connection.cursor().execute(f"PRAGMA busy_timeout = {timeout_ms}").close()
                connection.close()
        finally:
            self._writer_lock.release()
        return not busy

    @property
    def wal_bytes(self) -> int:
        """The size of SQLite's write-ahead log in bytes; 0 if there is none or for PostgreSQL."""
        if self.is_sqlite:
            with suppress(FileNotFoundError):
                return Path(f"{make_url(self.url).database}-wal").stat().st_size
        return 0

    @property
    def free_bytes(self) -> float:
        """The free space on the disk of SQLite's file in bytes; NaN for PostgreSQL."""
        if not self.is_sqlite:
            return math.nan
        folder = Path(str(make_url(self.url).database)).resolve().parent
        return float(shutil.disk_usage(folder).free)


def copy_sqlite(file: Path, copy: Path, change: Callable[[Connection], T]) -> T:
    """Copy a SQLite file, which may be in use, with changes. Return the result of ``change``.

    The rows that ``change`` deletes are never in a file that has a name. The whole file is copied
    to a temporary database, whose name SQLite deletes when it opens the file, and ``change`` is
    applied there. So nothing of these rows remains if this process is killed. The rows that are
    left are written to ``copy``, a new file that only its owner can read.
    """
    unnamed = sqlite3.connect("", isolation_level=None)
    try:
        # The temporary database needs as much space as the store: use the disk of the copy.
        folder = str(copy.resolve().parent).replace("'", "''")
        unnamed.execute(f"PRAGMA temp_store_directory = '{folder}'")
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as source:
            source.backup(unnamed)
        engine = create_engine("sqlite://", creator=lambda: unnamed, poolclass=StaticPool)
        with engine.begin() as connection:
            result = change(connection)
        os.close(os.open(copy, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        unnamed.execute("VACUUM INTO ?", (str(copy),))
    finally:
        unnamed.execute("PRAGMA temp_store_directory = ''")  # it is a setting of the process
        unnamed.close()
    return result


def is_unavailable(error: DBAPIError) -> bool:
    """Return whether an error means that PostgreSQL is not available now, but may be later."""
    sqlstate = getattr(error.orig, "sqlstate", None)
    if error.connection_invalidated or sqlstate in _UNAVAILABLE_CODES:
        return True
    if sqlstate is not None or not isinstance(error, OperationalError):
        return False
    # If no connection could be made, libpq returns a message and no SQLSTATE.
    return not any(message in str(error.orig) for message in _LOGIN_REFUSED_MESSAGES)


def _require_durable_commits(connection: Any, record: object) -> None:
    """Make commits on a new connection durable, whatever the server's default is."""
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION synchronous_commit = on")
    connection.commit()


def _is_locked(error: sqlite3.OperationalError) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (5, 6)  # SQLITE_BUSY, SQLITE_LOCKED


def _execute_when_unlocked(connection: Any, statement: str) -> None:
    """Execute a statement, and retry while the database is locked.

    SQLite's own timeout does not cover every statement, for example ``journal_mode = WAL``.
    """
    deadline = time.monotonic() + WRITE_LOCK_TIMEOUT_S
    while True:
        try:
            connection.execute(statement)
            return
        except sqlite3.OperationalError as error:
            if not _is_locked(error) or not time.monotonic() < deadline:
                raise
        time.sleep(0.01)


def _sqlite_engine(url: str) -> Engine:
    path = str(make_url(url).database)
    engine = create_engine(
        url, connect_args={"timeout": WRITE_LOCK_TIMEOUT_S, "check_same_thread": False}
    )

    def create_file(*_: object) -> None:
        # Create the file so that only its owner can read it. Do not open a file that exists:
        # closing it would drop all locks of this process on it, and another process that ends could
        # then delete SQLite's write-ahead log while this process uses it.
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))

    def set_pragmas(connection: Any, record: object) -> None:
        connection.isolation_level = None  # ``begin_transaction`` sends BEGIN
        for pragma in (
            "journal_mode = WAL",
            "synchronous = FULL",
            "foreign_keys = ON",
            "secure_delete = ON",
            "journal_size_limit = 4194304",
        ):
            _execute_when_unlocked(connection, f"PRAGMA {pragma}")

    def begin_transaction(connection: Connection) -> None:
        writing = connection.get_execution_options().get("writing", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")

    event.listen(engine, "do_connect", create_file)
    event.listen(engine, "connect", set_pragmas)
    event.listen(engine, "begin", begin_transaction)
    return engine
