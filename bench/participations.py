"""Measure complete participations: devices enrol, check in, train and report on one machine.

    python -m bench.participations --devices 1000000 --rate 500 --store postgresql

The coordinator, the database and the swarm of devices are processes of this machine. Devices
arrive at an even rate, and each draws one of the next slots (the sliding protocol), so that in each
second as many devices enrol as check in and report. All check-ins are chosen, and the server adds
the noise. Training is not measured: all devices send the same update of a model of eleven numbers.

CPU time is user and system time of a process. That of the coordinator is without the process that
computes the epsilons of a campaign, once. Memory is what is resident.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.measure import Section
from bench.service import UVICORN, bare
from checkins.client import fetch_campaign
from checkins.swarm import Swarm, Tally, raise_open_file_limit
from tests.support.campaigns import SERVER_NOISE, campaign_text
from tests.support.coordinator import UNLIMITED, serving
from tests.support.postgres import Postgres, open_postgres

TARGET = 500.0
"""Participations per second that a machine with two cores must serve without late devices."""
REQUESTS = 5
"""Requests of a participation if each step is one: enrol, check in, outcome, model, report."""
BARE_ROUNDS = 3
START_S = 8
"""Seconds from the start of the coordinator to the first slot."""
PROGRESS_S = 60.0
"""Seconds between two lines about the progress of a long run."""
HEADER = (
    "store", "devices", "a second", "late", "refused", "lost", "coordinator", "database",
    "swarm", "CPU a participation", "coordinator's memory", "swarm's memory", "machine's load",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """``devices`` devices, of which ``rate`` arrive per second; each draws one of ``window`` slots.

    ``slot_s`` is the length of a slot in seconds. Check-ins end after 40% of it.
    """

    devices: int = 15_000
    rate: float = TARGET
    window: int = 10
    slot_s: float = 1.0

    @property
    def slots(self) -> int:
        """The number of slots until the last device has had its slot."""
        return int(self.devices / self.rate / self.slot_s) + 2 * self.window + 2

    @property
    def campaign(self) -> str:
        """The campaign file; ``checkins serve --start`` sets its start."""
        return campaign_text(
            name="participations",
            population_id="participations",
            kind="sliding",
            slots=self.slots,
            window=self.window,
            capacity="all",
            randomizer=SERVER_NOISE,
            optimizer=f'kind = "sgd", rate = 0.5, divide_by = {int(self.rate * self.slot_s) + 1}',
            slot_s=self.slot_s,
            choose_s=0.4 * self.slot_s,
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds and resident bytes of processes."""

    cpu_s: float
    resident_bytes: int

    @classmethod
    def of(cls, pids: Sequence[int], *, ended_children: bool = False) -> Usage:
        """Return the usage of processes, with the CPU time of their ended children if asked."""
        ticks = pages = 0
        for pid in pids:
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            ticks += sum(map(int, fields[11 : 15 if ended_children else 13]))
            pages += int(fields[21])
        return cls(ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE"))


@dataclass(frozen=True, slots=True)
class Measured:
    """The devices by outcome, and the usage of each part at the first arrival and at the end.

    ``accepted_late`` devices had a receipt when their slot ended, but no response to their report.
    ``requests`` counts all requests of the swarm. ``load_average`` is that of the machine.
    """

    load: Load
    outcomes: Mapping[str, int]
    accepted_late: int
    requests: int
    usages: Mapping[str, tuple[Usage, Usage]]
    load_average: float

    @property
    def reported(self) -> int:
        return self.outcomes.get("reported", 0)

    @property
    def rate(self) -> float:
        """Complete participations per second of the arrivals."""
        return self.reported / (self.load.devices / self.load.rate)

    @property
    def refused(self) -> int:
        """The number of devices whose check-in was never accepted."""
        names = ("late", "refused", "missed")
        return sum(self.outcomes.get(name, 0) for name in names) - self.accepted_late

    @property
    def lost(self) -> int:
        """The number of devices that ended with an error."""
        return self.load.devices - self.reported - self.refused - self.accepted_late

    def cpu_ms(self, part: str) -> float:
        """Return the CPU milliseconds of a part per device that reported."""
        start, end = self.usages[part]
        return 1e3 * (end.cpu_s - start.cpu_s) / max(1, self.reported)

    def row(self, store: str) -> list[str]:
        def memory(part: str) -> str:
            start, end = (usage.resident_bytes / 2**20 for usage in self.usages[part])
            return f"{start:.0f} → {end:.0f} MiB"

        parts = [self.cpu_ms(part) for part in self.usages]
        return [
            store, f"{self.load.devices:,} at {self.load.rate:,.0f} a second", f"{self.rate:,.0f}",
            f"{self.accepted_late:,}", f"{self.refused:,}", f"{self.lost:,}",
            *(f"{part:.2f} ms" for part in parts), f"{sum(parts):.2f} ms",
            memory("coordinator"), memory("swarm"), f"{self.load_average:.1f}",
        ]  # fmt: skip


class SameUpdate:
    """A trainer that returns the same update for every model."""

    def update(self, model: Mapping[str, Any]) -> Mapping[str, Any]:
        return {name: np.full_like(tensor, 0.1) for name, tensor in model.items()}


class Journal:
    """Counts the devices that were late although their check-in was accepted."""

    def __init__(self) -> None:
        self.accepted: set[int] = set()
        self.late = 0

    def __call__(self, fields: Mapping[str, Any]) -> None:
        match fields["event"]:
            case "checked-in":
                self.accepted.add(fields["client"])
            case "done":
                self.late += fields["outcome"] == "late" and fields["client"] in self.accepted
                self.accepted.discard(fields["client"])


async def _run_swarm(url: str, run: str, load: Load) -> dict[str, Any]:
    """Let the devices arrive as soon as the first slots, which release no model, are over."""
    raise_open_file_limit(20_000)
    view = fetch_campaign(url, run)
    await asyncio.sleep(view.run_schedule.begins(load.window + 1) - time.time())
    journal, tally, trainer = Journal(), Tally(), SameUpdate()
    swarm = Swarm(
        url=url,
        campaign=run,
        seal=view.seal,
        clients=load.devices,
        trainer=lambda client: trainer,
        journal=journal,
        arrivals_per_s=load.rate,
        worker_threads=0,
    )
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    start = Usage.of([os.getpid()])
    progress = asyncio.create_task(_show_progress(tally))
    await swarm.run(tally)
    progress.cancel()
    return {
        "outcomes": tally.outcomes,
        "failures": tally.failures,
        "accepted_late": journal.late,
        "requests": tally.requests,
        "usage": [asdict(start), asdict(Usage.of([os.getpid()]))],
    }


async def _show_progress(tally: Tally) -> None:
    while True:
        await asyncio.sleep(PROGRESS_S)
        print(f"{tally.seconds:,.0f} s: {dict(tally.outcomes)}", file=sys.stderr, flush=True)


def measure(load: Load, cluster: Postgres | None = None, *, workers: int = 1) -> Measured:
    """Run a new coordinator, on SQLite or in a new database of a cluster, and a swarm."""
    store = None if cluster is None else cluster.create()
    options = (*UNLIMITED, "--workers", str(workers)) if workers > 1 else UNLIMITED
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        running = stack.enter_context(
            serving(folder, load.campaign, *options, store=store, start=f"+{START_S}", real=True)
        )
        parts: dict[str, Callable[[], Usage]] = {
            "coordinator": lambda: Usage.of([running.process.pid, *running.worker_processes()]),
            "database": lambda: Usage.of(_processes(cluster), ended_children=True),
        }
        order = {"url": running.url, "run": running.campaign, "load": asdict(load)}
        with _swarm_process(order) as swarm:
            assert swarm.stdout is not None
            assert swarm.stdout.readline() == "ready\n", "the swarm did not start"
            start = {part: usage() for part, usage in parts.items()}
            found = json.loads(swarm.stdout.read())
            usages = {part: (start[part], usage()) for part, usage in parts.items()}
    if found["failures"]:
        print(Counter(found["failures"]).most_common(3), file=sys.stderr)
    first, last = (Usage(**usage) for usage in found["usage"])
    usages["swarm"] = first, last
    late, requests = found["accepted_late"], found["requests"]
    return Measured(load, found["outcomes"], late, requests, usages, os.getloadavg()[0])


def _processes(cluster: Postgres | None) -> list[int]:
    """Return the processes of a cluster: the server and its children. None are those of SQLite."""
    if cluster is None:
        return []
    server = (cluster.data / "postmaster.pid").read_text().split()[0]
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    return [int(server), *map(int, children)]


@contextmanager
def _swarm_process(order: Mapping[str, Any]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "bench.participations", "--swarm", json.dumps(order)]
    root = Path(__file__).resolve().parents[1]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        try:
            yield process
        finally:
            process.terminate()


def bare_rate() -> float:
    """Return the requests per second of an endpoint of FastAPI that does nothing."""
    with bare("bare", **UVICORN) as side:
        for number in range(BARE_ROUNDS):
            side.measure(number)
        return sorted(found.rate for found in side.found)[BARE_ROUNDS // 2]


def participations() -> Section:
    """Measure 500 participations a second on each store, and three times as many on SQLite."""
    rate = bare_rate()
    bare_row = ["a bare endpoint, a fifth of its requests", "", f"{rate / REQUESTS:,.0f}"]
    rows = [[*bare_row, *[""] * (len(HEADER) - len(bare_row))]]
    usual, beyond = Load(), Load(devices=45_000, rate=3 * TARGET)
    with open_postgres() as cluster:
        sqlite, postgresql = measure(usual), measure(usual, cluster)
    overloaded = measure(beyond)
    rows += [sqlite.row("SQLite"), postgresql.row("PostgreSQL"), overloaded.row("SQLite, overload")]
    holds = all(found.reported == found.load.devices for found in (sqlite, postgresql))
    return Section(
        "The service: complete participations",
        f"All of {TARGET:,.0f} participations a second report in slots of one second, and none of"
        " those that an overloaded coordinator accepts is late. Coordinator, database and swarm are"
        " on one machine, with one worker. *Late* devices had a receipt, *refused* ones had none."
        " CPU time is user and system time for each device that reported.",
        holds and overloaded.accepted_late == 0,
        HEADER,
        rows,
    )


def main() -> None:
    """Measure one load, or run the devices of one (``--swarm``)."""
    parser = argparse.ArgumentParser(prog="python -m bench.participations")
    usual = Load()
    parser.add_argument("--devices", type=int, default=usual.devices, help="number of devices")
    parser.add_argument("--rate", type=float, default=usual.rate, help="arrivals per second")
    parser.add_argument("--window", type=int, default=usual.window, help="slots of a window")
    parser.add_argument("--slot-s", type=float, default=usual.slot_s, help="seconds of a slot")
    parser.add_argument("--store", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--workers", type=int, default=1, help="more than one needs PostgreSQL")
    parser.add_argument("--swarm", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.swarm is not None:
        import uvloop

        order = json.loads(asked.swarm)
        load = Load(**order.pop("load"))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            json.dump(runner.run(_run_swarm(**order, load=load)), sys.stdout)
        return
    load = Load(devices=asked.devices, rate=asked.rate, window=asked.window, slot_s=asked.slot_s)
    with ExitStack() as stack:
        cluster = stack.enter_context(open_postgres()) if asked.store == "postgresql" else None
        measured = measure(load, cluster, workers=asked.workers)
    for name, value in zip(HEADER, measured.row(asked.store), strict=True):
        print(f"{name}: {value}")
    print(f"outcomes: {dict(measured.outcomes)}, requests: {measured.requests:,}")


if __name__ == "__main__":
    main()
