"""Structured logs that cannot reveal who took part: JSON lines with fields from an allow-list.

Requests are not logged. Events of the schedule (a run opened, a run is over) are logged with their
time in seconds, because the schedule is public. A single client may cause a failure, so a failure
is logged at most once a minute, with its time in minutes and a count.

A field is written only if its name is in ``FIELDS`` and its value matches the pattern of that name.
So a token, a receipt, an address or a report is never written. A field that does not match is left
out. In strict mode, which is the mode before ``configure`` is called, it raises an exception. The
text of a log record from a library is never written, because it may contain an address (uvicorn) or
the parameters of an SQL statement (SQLAlchemy). Only the place of the call and the types of the
record's exception and its cause are written.

Writing a line never waits, and never raises an exception. If the disk is full or nobody reads
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

UVICORN_OPTIONS: Mapping[str, Any] = MappingProxyType({"log_config": None, "access_log": False})
"""Arguments of ``uvicorn.Config`` that keep uvicorn from writing its own logs."""

Error = TypeVar("Error", bound=BaseException)

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

A caller may also pass an exception as ``error``; its type, the type of its cause and the place in
the source code are written. Tokens and receipts must not have 64 hex digits, because they would
match the pattern of a hash.
"""
SOURCE_CODE_FIELDS: Mapping[str, re.Pattern[str]] = MappingProxyType(
    {
        **dict.fromkeys(("error", "cause", "field"), re.compile(_TYPE)),
        "place": re.compile(r"[A-Za-z_0-9<][A-Za-z_0-9./<>-]{0,99}:[0-9]{1,6}"),
        "library": re.compile(r"[A-Za-z_][A-Za-z_0-9.]{0,59}"),
    }
)
"""Fields that hold names in source code, and the pattern of their values. Only this module fills
them, because a token from a caller may look like a name."""

_EVENT_NAME = re.compile(_WORD)
_REPLACED_LOGGERS = ("", "uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi")
_PACKAGE_FOLDER = str(Path(__file__).resolve().parents[1]) + os.sep
_LOGGED_NOTE = "written to the service's log"
_DROPPED_MESSAGES = (  # messages of uvicorn about a single request, which are not logged
    "Invalid HTTP request received.",
    "Unsupported upgrade request.",
    "No supported WebSocket library",
    "Exceeded concurrency limit.",
)
_LIFECYCLE_EVENTS = {
    "Application startup complete.": "ready",
    "Application startup failed. Exiting.": "startup-failed",
    "Shutting down": "stopping",
    "Application shutdown complete.": "stopped",
    "Application shutdown failed. Exiting.": "shutdown-failed",
}


@dataclass(slots=True)
class Log:
    """The destination of log lines. Strict mode raises an error for a field that does not match.

    ``repeated_events`` maps each repeated event to the minute in which it was last written, and to
    the number of times that it happened after that. ``replaced_loggers`` holds the handlers, the
    level and the propagation that each logger had before ``configure`` changed it.
    """

    file: int | None = None  # descriptor of a log file; None means standard error
    strict: bool = True
    repeated_events: dict[tuple[str, ...], tuple[int, int]] = field(default_factory=dict)
    replaced_loggers: dict[str, tuple[list[logging.Handler], int, bool]] = field(
        default_factory=dict
    )
    lost_lines: int = 0  # number of lines lost since the last line that was written
    ends_mid_line: bool = False  # whether the last write ended in the middle of a line
    lock: threading.Lock = field(default_factory=threading.Lock)

    def write(
        self,
        level: str,
        name: str,
        fields: Mapping[str, object],
        *,
        time_unit_s: int,
        code_fields: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Write one line, with its time rounded down to ``time_unit_s`` seconds.

        ``level`` is info, warning or error, and ``name`` the name of the event. ``code_fields``
        holds fields that are listed in ``SOURCE_CODE_FIELDS``.
        """
        if not _EVENT_NAME.fullmatch(name):
            if self.strict:
                raise InvalidValue("event", name[:40], "must be lower-case words joined by -")
            name = "unnamed"
        valid_fields: dict[str, object] = {
            key: value
            for key, value in code_fields.items()
            if SOURCE_CODE_FIELDS[key].fullmatch(value)
        }
        for key, value in fields.items():
            if value is None:
                continue
            if key == "error" and isinstance(value, BaseException):
                valid_fields |= _error_fields(value)
            elif _is_allowed(key, value):
                valid_fields[key] = value
            elif self.strict:
                expected = f"must be one of {', '.join(FIELDS)}, and match its pattern"
                raise InvalidValue("field", key[:40], expected)
            else:
                valid_fields["field"] = (
                    key if SOURCE_CODE_FIELDS["field"].fullmatch(key) else "unknown"
                )
        self._write_line(_json_line(level, name, valid_fields, time_unit_s=time_unit_s))

    def _write_line(self, line: str) -> None:
        """Write a line, or count it as lost.

        One call writes the whole line, so that lines of several workers do not mix.
        """
        with self.lock:
            if self.lost_lines:
                count = {"count": self.lost_lines}
                line = _json_line("warning", "log-lines-lost", count, time_unit_s=60) + line
            try:
                self._write_text(f"\n{line}" if self.ends_mid_line else line)
            except Exception:  # the service goes on without its log
                self.lost_lines += 1
                if _on_lost_line is not None:
                    _on_lost_line()
            else:
                self.lost_lines, self.ends_mid_line = 0, False

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
            self.ends_mid_line = bool(data)

    def once_a_minute(self, *key: str) -> int:
        """Count an event; return how often it happened since it was last written, including now.

        Return 0 if the event was already written in this minute, so that the caller does not write
        it again. ``key`` identifies the event.
        """
        minute = int(time.time()) // 60
        last_minute, count = self.repeated_events.pop(key, (-1, 0))
        self.repeated_events[key] = (
            (minute, 0) if last_minute != minute else (last_minute, count + 1)
        )
        if len(self.repeated_events) > 1000:
            self.repeated_events.pop(next(iter(self.repeated_events)))
        return count + 1 if last_minute != minute else 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the log file, and restore the loggers that ``configure`` changed."""
        global _log
        for name, (handlers, level, propagate) in self.replaced_loggers.items():
            logger = logging.getLogger(name)
            logger.handlers[:] = handlers
            logger.setLevel(level)
            logger.propagate = propagate
        self.replaced_loggers.clear()
        if self.file is not None:
            with contextlib.suppress(OSError):
                os.close(self.file)
            self.file = None
        if _log is self:
            _log = Log()


def _json_line(level: str, name: str, fields: Mapping[str, object], *, time_unit_s: int) -> str:
    now_s = int(time.time()) // time_unit_s * time_unit_s
    timestamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_s))
    return json.dumps({"time": timestamp, "level": level, "event": name, **fields}) + "\n"


def _is_writable(descriptor: int) -> bool:
    """Return True if a short line can be written without waiting. Writing may still fail."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(0))


_log = Log()
_on_lost_line: Callable[[], None] | None = None


def on_lost_line(callback: Callable[[], None]) -> None:
    """From now on, call ``callback`` for every line that cannot be written."""
    global _on_lost_line
    _on_lost_line = callback


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
    for name in _REPLACED_LOGGERS:
        logger = logging.getLogger(name)
        log.replaced_loggers[name] = (list(logger.handlers), logger.level, logger.propagate)
        logger.handlers[:] = [] if name else [_LibraryHandler()]
        logger.setLevel(logging.INFO if name == "uvicorn.error" else logging.WARNING)
        logger.propagate = name != "uvicorn.access"
    _log = log
    return log


def event(name: str, /, **fields: object) -> None:
    """Write an event. Its cause must be the schedule or the operator, not a single client."""
    _log.write("info", name, fields, time_unit_s=1)


def warning(name: str, /, **fields: object) -> None:
    """Write a warning for the operator. It must not be about a single client."""
    _log.write("warning", name, fields, time_unit_s=1)


def repeated_warning(name: str, /, **fields: object) -> None:
    """Write a warning at most once a minute, with the number of times that it happened."""
    if count := _log.once_a_minute(name, *(str(value) for value in fields.values())):
        _log.write("warning", name, {**fields, "count": count}, time_unit_s=60)


def failure(error: BaseException, *, route: str | None = None) -> None:
    """Write the type and place of an exception, not its message, at most once a minute."""
    if _is_logged(error):
        return
    mark_logged(error)  # so that uvicorn does not log it again
    code_fields = _error_fields(error)
    if route is not None and not _is_allowed("route", route):
        route = None
    if count := _log.once_a_minute(*code_fields.values(), route or ""):
        fields = {"route": route, "count": count}
        _log.write("error", "failed", fields, time_unit_s=60, code_fields=code_fields)


def mark_logged(error: Error) -> Error:
    """Mark an exception so that it is not logged again, and return it."""
    if not _is_logged(error):
        error.add_note(_LOGGED_NOTE)
    return error


def _is_logged(error: BaseException) -> bool:
    return _LOGGED_NOTE in getattr(error, "__notes__", ())


def _error_fields(error: BaseException) -> dict[str, str]:
    """Return the type of an exception, the type of its cause, and where it was raised.

    The place is the innermost line of this package in the traceback. If there is none, it is the
    innermost line of all.
    """
    places = []
    trace = error.__traceback__
    while trace is not None:
        places.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    package_places = [place for place in places if place[0].startswith(_PACKAGE_FOLDER)]
    fields = {"error": type(error).__name__}
    cause = error.__cause__ or error.__context__
    if isinstance(error, BaseExceptionGroup):
        cause = error.exceptions[0]
    if cause is not None:
        fields["cause"] = type(cause).__name__
    if innermost := (package_places or places)[-1:]:
        fields["place"] = _place(*innermost[0])
    return {
        name: value for name, value in fields.items() if SOURCE_CODE_FIELDS[name].fullmatch(value)
    }


def _place(path: str, line: int) -> str:
    is_ours = path.startswith(_PACKAGE_FOLDER)
    return f"{path.removeprefix(_PACKAGE_FOLDER) if is_ours else Path(path).name}:{line}"


def _is_allowed(name: str, value: object) -> bool:
    if name not in FIELDS or isinstance(value, bool) or not isinstance(value, str | int | float):
        return False
    if isinstance(value, int) and value.bit_length() > 64:
        return False  # str() raises for integers with thousands of digits
    return FIELDS[name].fullmatch(str(value)) is not None


class _LibraryHandler(logging.Handler):
    """Handler for log records of libraries. It never writes the text of a record."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, unless it is about a single request."""
        text = record.msg if isinstance(record.msg, str) else ""
        if record.name.startswith("uvicorn"):
            if text.startswith(_DROPPED_MESSAGES):
                return
            if text in _LIFECYCLE_EVENTS:
                _log.write(_level(record), _LIFECYCLE_EVENTS[text], {}, time_unit_s=1)
                return
        if record.levelno < logging.WARNING:
            return
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and _is_logged(error):
            return
        code_fields = {} if error is None else _error_fields(error)
        code_fields["library"] = record.name
        code_fields.setdefault("place", _place(record.pathname, record.lineno))
        if count := _log.once_a_minute(*code_fields.values()):
            fields, level = {"count": count}, _level(record)
            _log.write(level, "library", fields, time_unit_s=60, code_fields=code_fields)


def _level(record: logging.LogRecord) -> str:
    if record.levelno >= logging.ERROR:
        return "error"
    return "warning" if record.levelno >= logging.WARNING else "info"
