"""Structured logs that cannot reveal who took part: JSON lines with fields from an allow-list.

There is no line per request. Events of the schedule (opened, over) are logged with the second,
because the schedule is public. A single client may cause a failure, so a failure is logged at most
once a minute, with the minute and a count.

A field is written only if its name is in ``FIELDS`` and its value matches the pattern of that name.
So a token, a receipt, an address or a report is never written. A field that does not match raises
an exception in strict mode, which is the mode before ``configure`` is called; otherwise it is left
out. From a log record of a library only the place of the call and the types of its exception are
written, because its text may contain an address (uvicorn) or the parameters of a statement
(SQLAlchemy).

Writing never waits, and a failure to write raises nothing. If the disk is full or nobody reads
standard error, lines are lost, and their number is written before the next line.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import select
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar

from checkins import validate
from checkins.errors import InvalidValue
from checkins.protocol.wire import RUN_ID

UVICORN: Mapping[str, Any] = MappingProxyType({"log_config": None, "access_log": False})
"""Arguments of ``uvicorn.Config`` that keep uvicorn from writing its own logs."""

Failure = TypeVar("Failure", bound=BaseException)

_WORD = r"[a-z][a-z-]{0,24}"
_COUNT = r"[0-9]{1,15}"
_NUMBER = r"-?[0-9]{1,15}(\.[0-9]{1,20})?(e[+-]?[0-9]{1,3})?|inf|nan"
_TYPE = r"[A-Za-z_][A-Za-z_0-9]{0,59}"
_ROUTE = r"/|(/([a-z][a-z-]{0,19}(\.[a-z]{1,8}){0,2}|\{[a-z_]{1,20}(:path)?\}))+"

FIELDS: Mapping[str, re.Pattern[str]] = MappingProxyType(
    {
        name: re.compile(pattern)
        for names, pattern in {
            "campaign": RUN_ID,
            "seal head model_hash": r"[0-9a-f]{64}",
            "status": r"waiting|running|completed|stopped|[1-5][0-9][0-9]",
            "store": r"sqlite|postgresql",
            "route": _ROUTE,
            "reason task": _WORD,
            "version": r"[0-9]{1,4}(\.[0-9]{1,4}){0,2}([a-z]{1,4}[0-9]{1,4})?",
            "run repeats slot slots slots_closed entries epoch workers worker port": _COUNT,
            "count requests connections revision": _COUNT,
            "seconds late_s epsilon delta": _NUMBER,
        }.items()
        for name in names.split()
    }
)
"""Every field that a caller may write, and the pattern of its value.

A caller may also pass an exception as ``error``; its type, its cause and its place are written.
Tokens and receipts must not have 64 hex digits, because they would match the pattern of a hash.
"""
CODE_FIELDS: Mapping[str, re.Pattern[str]] = MappingProxyType(
    {
        **dict.fromkeys(("error", "cause", "field"), re.compile(_TYPE)),
        "place": re.compile(r"[A-Za-z_0-9<][A-Za-z_0-9./<>-]{0,99}:[0-9]{1,6}"),
        "library": re.compile(r"[A-Za-z_][A-Za-z_0-9.]{0,59}"),
    }
)
"""Names in source code. Only this module writes them, because a token may look like a name."""

_EVENT = re.compile(_WORD)
_LOGGERS = ("", "uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi")
_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
_LOGGED = "written to the service's log"
_PER_REQUEST = (  # messages that are dropped, because each is about a single request
    "Invalid HTTP request received.",
    "Unsupported upgrade request.",
    "No supported WebSocket library",
    "Exceeded concurrency limit.",
)
_LIFECYCLE = {
    "Application startup complete.": "ready",
    "Application startup failed. Exiting.": "startup-failed",
    "Shutting down": "stopping",
    "Application shutdown complete.": "stopped",
    "Application shutdown failed. Exiting.": "shutdown-failed",
}


@dataclass(slots=True)
class Log:
    """The destination of log lines. In strict mode a field that does not match raises."""

    file: int | None = None  # descriptor of a log file; None means standard error
    strict: bool = True
    repeated: dict[tuple[str, ...], tuple[int, int]] = field(default_factory=dict)
    replaced: dict[str, tuple[list[logging.Handler], int, bool]] = field(default_factory=dict)
    lost: int = 0  # number of lines lost since the last line that was written
    mid_line: bool = False  # whether the last write ended in the middle of a line
    lock: threading.Lock = field(default_factory=threading.Lock)

    def write(
        self,
        level: str,
        name: str,
        fields: Mapping[str, object],
        *,
        unit_s: int,
        code: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Write one line, with its time rounded down to ``unit_s`` seconds.

        ``code`` are fields of ``CODE_FIELDS``.
        """
        if not _EVENT.fullmatch(name):
            if self.strict:
                raise InvalidValue("event", name[:40], "must be lower-case words joined by -")
            name = "unnamed"
        written: dict[str, object] = {
            key: value for key, value in code.items() if CODE_FIELDS[key].fullmatch(value)
        }
        for key, value in fields.items():
            if value is None:
                continue
            if key == "error" and isinstance(value, BaseException):
                written |= _error_fields(value)
            elif _is_allowed(key, value):
                written[key] = value
            elif self.strict:
                expected = f"must be one of {', '.join(FIELDS)}, and match its pattern"
                raise InvalidValue("field", key[:40], expected)
            else:
                written["field"] = key if CODE_FIELDS["field"].fullmatch(key) else "unknown"
        self._write_line(_line(level, name, written, unit_s=unit_s))

    def _write_line(self, line: str) -> None:
        """Write a line, or count it as lost.

        One call writes the whole line, so that lines of several workers do not mix.
        """
        with self.lock:
            if self.lost:
                line = _line("warning", "log-lines-lost", {"count": self.lost}, unit_s=60) + line
            try:
                self._write_text(f"\n{line}" if self.mid_line else line)
            except Exception:  # the service goes on without its log
                self.lost += 1
                if _lost is not None:
                    _lost()
            else:
                self.lost, self.mid_line = 0, False

    def _write_text(self, text: str) -> None:
        descriptor = self.file
        if descriptor is None:
            if sys.stderr is None:
                raise OSError("there is no standard error")
            try:
                descriptor = sys.stderr.fileno()
            except OSError:  # standard error has no descriptor, as in tests
                sys.stderr.write(text)
                sys.stderr.flush()
                return
        data = text.encode()
        while data:
            if not _is_writable(descriptor):
                raise BlockingIOError("nobody reads the log")
            data = data[os.write(descriptor, data) :]
            self.mid_line = bool(data)

    def once_a_minute(self, *key: str) -> int:
        """Return how often an event happened since it was last written, this time included.

        Return 0 if it was already written in this minute, so that it is not written again.
        """
        minute = int(time.time()) // 60
        last, count = self.repeated.pop(key, (-1, 0))
        self.repeated[key] = (minute, 0) if last != minute else (last, count + 1)
        if len(self.repeated) > 1000:
            self.repeated.pop(next(iter(self.repeated)))
        return count + 1 if last != minute else 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the log file, and restore the loggers that ``configure`` changed."""
        global _log
        for name, (handlers, level, propagate) in self.replaced.items():
            logger = logging.getLogger(name)
            logger.handlers[:] = handlers
            logger.setLevel(level)
            logger.propagate = propagate
        self.replaced.clear()
        if self.file is not None:
            with contextlib.suppress(OSError):
                os.close(self.file)
            self.file = None
        if _log is self:
            _log = Log()


def _line(level: str, name: str, fields: Mapping[str, object], *, unit_s: int) -> str:
    now = int(time.time()) // unit_s * unit_s
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    return json.dumps({"time": stamp, "level": level, "event": name, **fields}) + "\n"


def _is_writable(descriptor: int) -> bool:
    """Return whether a short line can be written without waiting.

    Return True also if writing would fail at once.
    """
    waiting = select.poll()
    waiting.register(descriptor, select.POLLOUT)
    return bool(waiting.poll(0))


_log = Log()
_lost: Callable[[], None] | None = None


def count_lost(lost: Callable[[], None]) -> None:
    """From now on, call ``lost`` for every line that cannot be written."""
    global _lost
    _lost = lost


def configure(log_file: Path | None, *, strict: bool = False) -> Log:
    """Send all logs of this process to a file, or to standard error if ``log_file`` is None.

    The handlers of the root logger and of uvicorn's loggers are replaced. Closing the returned log
    restores them.
    """
    global _log
    validate.one_of((Path, type(None)), log_file=log_file)
    descriptor = None
    if log_file is not None:
        try:
            descriptor = os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError:
            raise InvalidValue("log_file", str(log_file), "must be a writable file") from None
    log = Log(file=descriptor, strict=strict)
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        log.replaced[name] = (list(logger.handlers), logger.level, logger.propagate)
        logger.handlers[:] = [] if name else [_LibraryHandler()]
        logger.setLevel(logging.INFO if name == "uvicorn.error" else logging.WARNING)
        logger.propagate = name != "uvicorn.access"
    _log = log
    return log


def event(name: str, /, **fields: object) -> None:
    """Write an event. The schedule or the operator must have caused it, not a single client."""
    _log.write("info", name, fields, unit_s=1)


def warning(name: str, /, **fields: object) -> None:
    """Write a warning for the operator. It must not be about a single client."""
    _log.write("warning", name, fields, unit_s=1)


def repeated(name: str, /, **fields: object) -> None:
    """Write a warning that may recur, at most once a minute, with the number of recurrences."""
    if count := _log.once_a_minute(name, *(str(value) for value in fields.values())):
        _log.write("warning", name, {**fields, "count": count}, unit_s=60)


def failure(error: BaseException, *, route: str | None = None) -> None:
    """Write the type and place of an exception, not its message, at most once a minute."""
    if _is_logged(error):
        return
    mark_logged(error)  # uvicorn would log it again
    code = _error_fields(error)
    known = route if route is not None and _is_allowed("route", route) else None
    if count := _log.once_a_minute(*code.values(), known or ""):
        _log.write("error", "failed", {"route": known, "count": count}, unit_s=60, code=code)


def mark_logged(error: Failure) -> Failure:
    """Mark an exception so that it is not logged again, and return it."""
    if not _is_logged(error):
        error.add_note(_LOGGED)
    return error


def _is_logged(error: BaseException) -> bool:
    return _LOGGED in getattr(error, "__notes__", ())


def _error_fields(error: BaseException) -> dict[str, str]:
    """Return the type of an exception, the type of its cause, and where it was raised.

    The place is the innermost one in this package, if there is any.
    """
    places = []
    trace = error.__traceback__
    while trace is not None:
        places.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    ours = [place for place in places if place[0].startswith(_PACKAGE)]
    found = {"error": type(error).__name__}
    cause = error.__cause__ or error.__context__
    if isinstance(error, BaseExceptionGroup):
        cause = error.exceptions[0]
    if cause is not None:
        found["cause"] = type(cause).__name__
    if chosen := (ours or places)[-1:]:
        found["place"] = _place(*chosen[0])
    return {name: value for name, value in found.items() if CODE_FIELDS[name].fullmatch(value)}


def _place(path: str, line: int) -> str:
    return f"{path.removeprefix(_PACKAGE) if path.startswith(_PACKAGE) else Path(path).name}:{line}"


def _is_allowed(name: str, value: object) -> bool:
    if name not in FIELDS or isinstance(value, bool) or not isinstance(value, str | int | float):
        return False
    if isinstance(value, int) and value.bit_length() > 64:
        return False  # str() raises for integers with thousands of digits
    return FIELDS[name].fullmatch(str(value)) is not None


class _LibraryHandler(logging.Handler):
    """Handler for log records of libraries. It never writes their text."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, unless it is about a single request."""
        text = record.msg if isinstance(record.msg, str) else ""
        if record.name.startswith("uvicorn"):
            if text.startswith(_PER_REQUEST):
                return
            if text in _LIFECYCLE:
                _log.write(_level(record), _LIFECYCLE[text], {}, unit_s=1)
                return
        if record.levelno < logging.WARNING:
            return
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and _is_logged(error):
            return
        code = {} if error is None else _error_fields(error)
        code["library"] = record.name
        code.setdefault("place", _place(record.pathname, record.lineno))
        if count := _log.once_a_minute(*code.values()):
            _log.write(_level(record), "library", {"count": count}, unit_s=60, code=code)


def _level(record: logging.LogRecord) -> str:
    if record.levelno >= logging.ERROR:
        return "error"
    return "warning" if record.levelno >= logging.WARNING else "info"
