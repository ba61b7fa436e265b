"""Memory limits: the memory that a run needs in one worker process, and the memory it may use.

The memory does not grow with the number of reports, which are received, read back and added in
batches. It grows with the size of the model, and a little with the check-ins of the slot in
progress.
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
from checkins.service.store.run_spec import RunSpec

MIB = 2**20
BATCH_BYTES = 8 * MIB
"""Size of the reports, or dummies, that are in memory together while a slot closes."""
MOST_RECEIVED_BYTES = 32 * MIB
"""Size of the report bodies that one process receives at once; more of them wait."""
REPORT_BYTES_PER_COORDINATE = 4  # size of one coordinate of a report
PROCESS_BYTES = 160 * MIB  # size of a worker process without a run
MODEL_BYTES_PER_COORDINATE = 200
"""Size per coordinate of a model: before and after, sums, line of the ledger, responses."""
CHECK_IN_BYTES = 1024
"""Size of one check-in of the slot in progress: its token, its receipt, the choice."""
COPIES_PER_REPORT = (
    4  # largest number of copies of a report on its way from the network into the store
)
MAPPED_UNUSED_BYTES = 1024 * MIB
"""Address space that a worker maps without using it, which `ulimit -v` counts too."""
CONTROL_GROUP_FILES = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def reports_per_batch(dimension: int) -> int:
    """Return the number of reports of a dimension in a batch; at least one."""
    return max(1, BATCH_BYTES // (REPORT_BYTES_PER_COORDINATE * dimension))


def needed(spec: RunSpec) -> int:
    """Return an upper bound on the memory of a worker process that serves a run, in bytes.

    Check-ins are bounded by the declared population; if none is declared, they are not counted.
    """
    report = REPORT_BYTES_PER_COORDINATE * spec.dimension
    population = spec.campaign.design.population
    clients = 0 if population is None else population.most
    arriving, batch = max(report, MOST_RECEIVED_BYTES), max(report, BATCH_BYTES)
    if population is not None:
        arriving, batch = min(arriving, clients * report), min(batch, clients * report)
    held = COPIES_PER_REPORT * arriving + 2 * batch
    return (
        PROCESS_BYTES
        + MODEL_BYTES_PER_COORDINATE * spec.dimension
        + CHECK_IN_BYTES * clients
        + held
    )


def allowed() -> int:
    """Return the memory that this process may use, in bytes.

    The smallest of those that are set: of the machine, its control group, or ulimit.
    """
    mapped, held = (resource.getrlimit(kind)[0] for kind in (RLIMIT_AS, RLIMIT_DATA))
    found = [] if held == resource.RLIM_INFINITY else [held]
    if mapped != resource.RLIM_INFINITY:
        found.append(max(0, mapped - MAPPED_UNUSED_BYTES))
    for path in (*CONTROL_GROUP_FILES, *_own_control_group(), Path("/proc/meminfo")):
        with suppress(OSError, ValueError, IndexError):
            words = path.read_text(encoding="ascii").split()
            total = words[0] == "MemTotal:"
            found.append(1024 * int(words[1]) if total else int(words[0]))
    return min(found, default=2**62)


def _own_control_group() -> list[Path]:
    """Return the files with the limits of the control group of this process."""
    found = []
    with suppress(OSError, UnicodeDecodeError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, kinds, group = line.split(":", 2)
            if not kinds:
                found.append(Path(f"/sys/fs/cgroup{group}/memory.max"))
            elif "memory" in kinds.split(","):
                found.append(Path(f"/sys/fs/cgroup/memory{group}/memory.limit_in_bytes"))
    return found


def require_memory(spec: RunSpec) -> None:
    """Raise InvalidValue if a worker could run out of memory when a slot of the run closes."""
    needs, may = needed(spec), allowed()
    if needs <= may:
        return
    population = spec.campaign.design.population
    who = "" if population is None else f" and {population.most:,} clients"
    expected = (
        f"is too little for a model of {spec.dimension:,} numbers{who}, which may need"
        f" {needs / MIB:,.0f} MiB in each worker: use a smaller model or population, or allow the"
        " coordinator more (ulimit, its control group or container, the machine)"
    )
    raise InvalidValue("memory", f"{may / MIB:,.0f} MiB", expected)


class MemoryBudget:
    """An amount of memory that requests reserve, first come, first served.

    A request for more than all of it waits until it is the only one.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lent = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def reserve(self, size: int) -> AsyncIterator[None]:
        """Reserve ``size`` bytes; wait until others have released theirs."""
        size = min(size, self._most)
        if self._waiting or self._lent + size > self._most:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((size, turn))
            try:
                await turn
            except BaseException:
                if turn.done() and not turn.cancelled():
                    self._lent -= size  # it was reserved, and the request is gone
                with suppress(ValueError):
                    self._waiting.remove((size, turn))
                self._next()
                raise
        else:
            self._lent += size
        try:
            yield
        finally:
            self._lent -= size
            self._next()

    def _next(self) -> None:
        while self._waiting and self._lent + self._waiting[0][0] <= self._most:
            size, turn = self._waiting.popleft()
            if not turn.done():
                self._lent += size
                turn.set_result(None)
