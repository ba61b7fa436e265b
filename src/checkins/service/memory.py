"""How much memory a run needs in one worker process, and how much there is.

Nothing is held that grows with the number of reports: they are taken in, read back and added up in
batches, and so are dummies. What is left grows with the model, and a little with the check-ins of
the slot in progress.
"""

from __future__ import annotations

import asyncio
import resource
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from checkins.errors import InvalidValue
from checkins.service.run_spec import RunSpec

MIB = 2**20
BATCH_BYTES = 8 * MIB
"""Reports, or dummies, that are in memory together while a slot closes."""
ARRIVING_BYTES = 32 * MIB
"""Bodies of reports that one process reads and stores at once; more of them wait."""
REPORT_BYTES = 4
"""One number of a report."""
PROCESS_BYTES = 160 * MIB
"""A worker with its libraries and without a run."""
MODEL_BYTES = 200
"""One number of a model: the model before and after, sums, the ledger's line, what is shown."""
CHECK_IN_BYTES = 1024
"""One check-in of the slot in progress: its token, its receipt, whether it was chosen."""
COPIES = 4
"""Of a report on its way from the network into the store, at most."""
MAPPED_BYTES = 1024 * MIB
"""Addresses that a worker maps without using them, which `ulimit -v` counts all the same."""
CONTROL_GROUP = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def batch_of(dimension: int) -> int:
    """How many reports of a dimension make a batch; one, if it is larger than a batch."""
    return max(1, BATCH_BYTES // (REPORT_BYTES * dimension))


def needed(terms: RunSpec) -> int:
    """An upper bound of the memory of a worker process while it serves a run, in bytes.

    Check-ins are those of the declared population at most; without one, they come on top.
    """
    report = REPORT_BYTES * terms.dimension
    population = terms.campaign.design.population
    clients = 0 if population is None else population.most
    arriving, batch = max(report, ARRIVING_BYTES), max(report, BATCH_BYTES)
    if population is not None:
        arriving, batch = min(arriving, clients * report), min(batch, clients * report)
    held = COPIES * arriving + 2 * batch
    return PROCESS_BYTES + MODEL_BYTES * terms.dimension + CHECK_IN_BYTES * clients + held


def allowed() -> int:
    """What this process may use: the machine's memory, its control group's or ulimit's, in bytes.

    The least of those that are set.
    """
    mapped, held = (
        resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)
    )
    found = [] if held == resource.RLIM_INFINITY else [held]
    if mapped != resource.RLIM_INFINITY:
        found.append(max(0, mapped - MAPPED_BYTES))
    for path in (*CONTROL_GROUP, *_own_control_group(), Path("/proc/meminfo")):
        with suppress(OSError, ValueError, IndexError):
            words = path.read_text(encoding="ascii").split()
            total = words[0] == "MemTotal:"
            found.append(1024 * int(words[1]) if total else int(words[0]))
    return min(found, default=2**62)


def _own_control_group() -> list[Path]:
    """The limits of the group that this process is in, where it is not the root's."""
    found = []
    with suppress(OSError, UnicodeDecodeError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, kinds, group = line.split(":", 2)
            if not kinds:
                found.append(Path(f"/sys/fs/cgroup{group}/memory.max"))
            elif "memory" in kinds.split(","):
                found.append(Path(f"/sys/fs/cgroup/memory{group}/memory.limit_in_bytes"))
    return found


def require_memory(terms: RunSpec) -> None:
    """Refuse a run that could be killed for its memory when a slot closes, and again after that."""
    needs, may = needed(terms), allowed()
    if needs <= may:
        return
    population = terms.campaign.design.population
    who = "" if population is None else f" and {population.most:,} clients"
    raise InvalidValue(
        "memory",
        f"{may / MIB:,.0f} MiB",
        f"is too little for a model of {terms.dimension:,} numbers{who}, which may need"
        f" {needs / MIB:,.0f} MiB in each worker: take a smaller model or population, or allow the"
        " coordinator more (ulimit, its control group or container, the machine)",
    )


class Room:
    """A share of memory that is lent in the order in which it was asked for.

    Whoever asks for more than all of it gets it alone.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lent = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def lent(self, size: int) -> AsyncIterator[None]:
        """Hold so many bytes of it; waits for others to give theirs back."""
        size = min(size, self._most)
        if self._waiting or self._lent + size > self._most:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((size, turn))
            try:
                await turn
            except BaseException:
                if turn.done() and not turn.cancelled():
                    self._lent -= size  # it was our turn, and we are gone
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
