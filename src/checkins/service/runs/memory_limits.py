"""Memory limits: how much memory a run needs in one worker process, and how much is available.

The memory does not grow with the number of reports, because reports are received, read from the
store and added (``report_sum.py``) in batches. It grows with the size of the model, and by
``CHECK_IN_BYTES`` for each check-in of the slot in progress.
"""

from __future__ import annotations

import asyncio
import resource
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from resource import RLIMIT_AS, RLIMIT_DATA

from checkins.errors import InvalidValue
from checkins.service.store.run_state import RunSpec

MIB = 2**20
BATCH_BYTES = 8 * MIB
"""Size of a batch of reports. While a slot closes, only one batch is in memory at a time."""
MAX_RECEIVED_BYTES = 32 * MIB
"""Largest size of all reports that one process receives at once. Further reports wait."""
REPORT_BYTES_PER_COORDINATE = 4
PROCESS_BYTES = 160 * MIB  # memory of a worker process that serves no run
MODEL_BYTES_PER_COORDINATE = 200
"""Memory per model coordinate.

It is for the old and the new model, the sums, the ledger entry and the cached responses.
"""
PAST_SUM_BYTES_PER_COORDINATE = 40
"""Memory per model coordinate for each earlier slot whose sum a total contains.

It is for its exact sum, its noisy sum, and their copies while they are read: about 25 bytes with
SQLite and 32 with PostgreSQL.
"""
CHECK_IN_BYTES = 1024
"""Memory per check-in of the slot in progress: its token, its receipt and the choice."""
COPIES_PER_REPORT = 4  # largest number of copies of a report that is being received and saved
MAPPED_UNUSED_BYTES = 1024 * MIB
"""Address space that a worker maps but does not use. ``ulimit -v`` counts it too."""
CONTROL_GROUP_LIMIT_FILES = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Files with the memory limit of a container, in Linux control groups of version 2 and 1."""


def reports_per_batch(dimension: int) -> int:
    """Return how many reports with ``dimension`` coordinates fit into a batch; at least one."""
    return max(1, BATCH_BYTES // (REPORT_BYTES_PER_COORDINATE * dimension))


def needed_bytes(spec: RunSpec) -> int:
    """Return the memory that a worker process needs to serve a run, in bytes.

    This is an upper bound if the campaign declares its population. Otherwise the number of
    check-ins is unknown, and their memory is not included.
    """
    report_bytes = REPORT_BYTES_PER_COORDINATE * spec.dimension
    population = spec.campaign.design.population
    clients = 0 if population is None else population.most
    received_bytes = max(report_bytes, MAX_RECEIVED_BYTES)
    batch_bytes = max(report_bytes, BATCH_BYTES)
    if population is not None:
        received_bytes = min(received_bytes, clients * report_bytes)
        batch_bytes = min(batch_bytes, clients * report_bytes)
    reports_bytes = COPIES_PER_REPORT * received_bytes + 2 * batch_bytes
    past_sums = spec.rules.needed_sums(spec.rules.affordable)
    per_coordinate = MODEL_BYTES_PER_COORDINATE + PAST_SUM_BYTES_PER_COORDINATE * past_sums
    model_bytes = per_coordinate * spec.dimension
    return PROCESS_BYTES + model_bytes + CHECK_IN_BYTES * clients + reports_bytes


def allowed_bytes() -> int:
    """Return the memory that this process may use, in bytes.

    This is the smallest of the machine's memory and the limits of control groups and ``ulimit``.
    """
    address_space, data = (resource.getrlimit(kind)[0] for kind in (RLIMIT_AS, RLIMIT_DATA))
    limits = [] if data == resource.RLIM_INFINITY else [data]
    if address_space != resource.RLIM_INFINITY:
        limits.append(max(0, address_space - MAPPED_UNUSED_BYTES))
    for path in (*CONTROL_GROUP_LIMIT_FILES, *_own_control_group_files(), Path("/proc/meminfo")):
        with suppress(OSError, ValueError, IndexError):
            words = path.read_text(encoding="ascii").split()
            is_meminfo = words[0] == "MemTotal:"
            limits.append(1024 * int(words[1]) if is_meminfo else int(words[0]))
    return min(limits, default=2**62)  # no limit is known


def _own_control_group_files() -> list[Path]:
    """Return the files that hold the memory limits of this process's control group."""
    files = []
    with suppress(OSError, UnicodeDecodeError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, group = line.split(":", 2)
            if not controllers:  # version 2
                files.append(Path(f"/sys/fs/cgroup{group}/memory.max"))
            elif "memory" in controllers.split(","):
                files.append(Path(f"/sys/fs/cgroup/memory{group}/memory.limit_in_bytes"))
    return files


def require_memory(spec: RunSpec) -> None:
    """Raise InvalidValue if a run needs more memory than a worker may use."""
    needed, allowed = needed_bytes(spec), allowed_bytes()
    if needed <= allowed:
        return
    population = spec.campaign.design.population
    clients = "" if population is None else f" and {population.most:,} clients"
    expected = (
        f"is too little for a model of {spec.dimension:,} numbers{clients}, which may need"
        f" {needed / MIB:,.0f} MiB in each worker: use a smaller model or population, or allow the"
        " coordinator more (ulimit, its control group or container, the machine)"
    )
    raise InvalidValue("memory", f"{allowed / MIB:,.0f} MiB", expected)


class MemoryBudget:
    """A number of bytes. Requests reserve parts of them, in the order of their arrival.

    A request for more than ``total_bytes`` reserves all of them.
    """

    def __init__(self, total_bytes: int) -> None:
        self._total = total_bytes
        self._reserved = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def reserve(self, size: int) -> AsyncIterator[None]:
        """Reserve ``size`` bytes, after a wait if too few bytes are free."""
        size = min(size, self._total)
        if self._waiting or self._reserved + size > self._total:
            grant: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((size, grant))
            try:
                await grant
            except BaseException:
                if grant.done() and not grant.cancelled():
                    self._reserved -= size  # granted, but the request was cancelled
                with suppress(ValueError):
                    self._waiting.remove((size, grant))
                self._grant_waiting()
                raise
        else:
            self._reserved += size
        try:
            yield
        finally:
            self._reserved -= size
            self._grant_waiting()

    def _grant_waiting(self) -> None:
        while self._waiting and self._reserved + self._waiting[0][0] <= self._total:
            size, grant = self._waiting.popleft()
            if not grant.done():
                self._reserved += size
                grant.set_result(None)
