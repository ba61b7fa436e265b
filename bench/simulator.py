"""Compare the simulator with bare loops, pfl-research and Flower; measure its start-up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench import bare
from bench.environments import environment
from bench.measure import Section
from checkins.accounting import Adjacency, Design, GaussianNoise, NoiseAt, Protocol
from checkins.campaign import (
    Budget,
    Campaign,
    Optimizer,
    RandomizerConfig,
    RandomizerKind,
    Task,
)
from checkins.simulation.engine.outcome import Outcome, simulate
from checkins.simulation.engine.training import Scenario
from checkins.strategies import square_root
from checkins.tasks.built_in_models import Softmax
from checkins.tasks.data import Dataset
from checkins.tasks.loaded_task import LoadedTask

HERE = Path(__file__).parent
DEVICE = HERE / "gpu.json"
"""Stored results of ``bench.gpu``, because few machines have an accelerator."""
BANDS, FEWEST_PER_SLOT = 64, 10
MOST, PFL_LEAST, FLOWER_LEAST, DEVICE_LEAST = 1.3, 50, 500, 0.8
PER_SLOT, REPEATS = (1, 64), 5
STRETCH = {1: 512, 64: 256}
SLOTS = {1: 40_000, 64: 15_000}


@cache
def lesson(rows: int = bare.ROWS) -> LoadedTask:
    features, labels = bare.data(rows + 100)
    data = Dataset.one_row_each(
        "bench",
        features[:rows],
        labels[:rows],
        bare.CLASSES,
        holdout_features=features[rows:],
        holdout_labels=labels[rows:],
    )
    return LoadedTask(data, Softmax(bare.FEATURES, bare.CLASSES))


def ours(*, per_slot: int, slots: int, rows: int = bare.ROWS) -> Outcome:
    """Run the same work with ``simulate``, with full slots and without evaluations."""
    noise = GaussianNoise(bare.NOISE / per_slot**0.5, NoiseAt.CLIENT)
    return _simulated(noise, per_slot=per_slot, slots=slots, rows=rows)


def _simulated(
    noise: GaussianNoise,
    *,
    per_slot: int,
    slots: int,
    rows: int = bare.ROWS,
    average: float | None = None,
) -> Outcome:
    campaign = Campaign(
        "bench",
        None,
        Budget(1.0, 1e-6, Adjacency.ADD_REMOVE),
        Design(
            Protocol.FIXED,
            slots=slots,
            participation=1.0,
            randomizer=noise,
            capacity=per_slot,
        ),
        1,
        RandomizerConfig(RandomizerKind.GAUSSIAN, clip=bare.CLIP),
        Task("synthetic", "softmax", Optimizer(bare.RATE), average=average),
    )
    # With this many clients, a slot is not full with probability at most one in a million.
    clients = slots * (per_slot + 14 + 8 * round(per_slot**0.5))
    return simulate(campaign, loaded=lesson(rows), scenario=Scenario(clients), evaluations=0)


@cache
def _beside_bare() -> tuple[Section, float]:
    """Return the table, and our client updates per second with 64 clients per slot."""
    table = bare.table(*bare.data())
    rows, holds, fastest = [], True, 0.0
    for per_slot in PER_SLOT:
        stretch, slots = STRETCH[per_slot], SLOTS[per_slot]
        runs = {
            one: one.ready(table, per_slot=per_slot, stretch=stretch)
            for one in (*bare.ON_HOST, bare.INSIDE)
        }
        found, best = dict.fromkeys(runs, 0.0), 0.0
        for _ in range(REPEATS):
            for one, run in runs.items():
                found[one] = max(found[one], per_slot * run(slots // stretch))
            best = max(best, ours(per_slot=per_slot, slots=slots).updates_per_second)
        winner = max(found, key=lambda one: found[one])
        holds = holds and found[winner] <= MOST * best
        fastest = best
        rows.append([str(per_slot), "**checkins**", f"{best:,.0f}", f"{found[winner] / best:.2f}"])
        for one, rate in found.items():
            rows.append([str(per_slot), one.name, f"{rate:,.0f}", f"{found[winner] / rate:.2f}"])
    section = Section(
        "The simulator compared with bare loops: softmax regression of 784 x 10,"
        f" {bare.CORES} cores",
        f"At most {MOST} times slower than the fastest loop written by hand for this task only."
        " Compilation is not timed, and neither are the simulator's first slots.",
        holds,
        ("clients a slot", "loop", "client updates a second", "slower than the quickest"),
        rows,
    )
    return section, fastest


def beside_bare() -> Section:
    return _beside_bare()[0]


def correlated() -> Section:
    """Measure the time of correlated noise, and of an average of the models."""
    independent = GaussianNoise(bare.NOISE, NoiseAt.SERVER)
    noise = replace(independent, strategy=square_root(BANDS))
    variants: dict[str, tuple[GaussianNoise, float | None]] = {
        "independent noise": (independent, None),
        f"correlated noise, {BANDS} bands": (noise, None),
        "independent noise, average of the models": (independent, 0.25),
        f"correlated noise, {BANDS} bands, average of the models": (noise, 0.25),
    }
    rows, holds = [], True
    for per_slot in PER_SLOT:
        slots = SLOTS[per_slot]
        best = dict.fromkeys(variants, float("inf"))
        for _ in range(REPEATS + 1):  # the first time includes compilation
            for name, (noise_of_slot, average) in variants.items():
                began = time.process_time()
                _simulated(noise_of_slot, per_slot=per_slot, slots=slots, average=average)
                best[name] = min(best[name], (time.process_time() - began) / slots)
        base = best["independent noise"]
        for name, seconds in best.items():
            ratio = seconds / base
            holds = holds and (per_slot < FEWEST_PER_SLOT or ratio <= MOST)
            rows.append([str(per_slot), name, f"{1e6 * seconds:.0f} µs", f"{ratio:.2f}"])
    return Section(
        "The simulator: correlated noise and averages, softmax regression of 784 x 10",
        f"With {FEWEST_PER_SLOT} or more clients per slot, both together take at most {MOST} times"
        " the processor time of independent noise. With one client, a slot is little more than its"
        " noise.",
        holds,
        ("clients a slot", "noise", "processor time of a slot", "times as long"),
        rows,
    )


def peer(name: str, *, way: str, workers: int) -> dict[str, Any]:
    """Return the results of a peer's script."""
    command = [str(environment(name)), "-W", "ignore"]
    script = [str(HERE / "peers" / f"{name}.py"), "--way", way]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    if name == "pfl":
        variables["PYTHONSAFEPATH"] = "1"  # the script has the name of the package that it imports
        if workers > 1:
            command += ["-m", "torch.distributed.run", "--standalone"]
            command += ["--nproc-per-node", str(workers)]
    else:
        script += ["--workers", str(workers)]
    ended = subprocess.run(
        [*command, *script], env=variables, capture_output=True, text=True, check=False, timeout=600
    )
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError(f"{name} ({way}): {ended.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def beside_peers() -> Section:
    ours_now = _beside_bare()[1]
    rows, best = [], {"pfl": 0.0, "flower": 0.0}
    runs = [("pfl", way, workers) for way in ("torch", "closed") for workers in (1, bare.CORES)]
    runs += [("flower", way, bare.CORES) for way in ("grid", "strategy")]
    words = {
        "torch": "a torch module, as in its examples",
        "closed": "the gradient in closed form, in numpy",
        "grid": "a server by hand around its messages, numpy clients",
        "strategy": "NumPyClient and FedAvg, as in its tutorials",
    }
    for name, way, workers in runs:
        found = peer(name, way=way, workers=workers)
        rate = found["client_updates_per_second"]
        best[name] = max(best[name], rate)
        rows.append(
            [
                f"{found['peer']} {found['version']}",
                words[way],
                str(workers),
                f"{rate:,.0f}",
                f"{ours_now / rate:,.0f} times",
            ]
        )
    rows.append(["checkins", "`simulate`", "-", f"{ours_now:,.0f}", "-"])
    return Section(
        "The simulator compared with others: the same work, 64 clients per round",
        f"At least {PFL_LEAST} times as many client updates per second as pfl-research, and"
        f" {FLOWER_LEAST} times as many as Flower's simulation, each in its fastest form.",
        ours_now >= PFL_LEAST * best["pfl"] and ours_now >= FLOWER_LEAST * best["flower"],
        ("simulator", "written as", "processes", "client updates a second", "checkins is faster"),
        rows,
    )


FIRST_SLOT = """
from checkins.campaign import read_campaign
from checkins.simulation.study import Study
def first(number, slots, metrics):
    import os
    print(slots, flush=True)
    os._exit(0)
campaign = read_campaign({file!r}).campaign
Study((({{}}, campaign),)).prepare().run(on_progress=first)
"""
"""The work of `checkins simulate` until the first slots are over."""


def _first_slot() -> float:
    file = str(HERE.parent / "examples" / "patients.toml")
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", FIRST_SLOT.format(file=file)], check=True, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - began


def growth() -> Section:
    """Measure the start-up time, and how the run time grows with the number of slots."""
    start = min(_first_slot() for _ in range(3))
    rows = [["patients, a new process until its first slots are over", "", f"{start:.2f} s", "5 s"]]
    sizes = (20_000, 40_000, 80_000, 160_000)
    seconds = []
    for slots in sizes:
        quickest = float("inf")
        for _ in range(3):
            began = time.perf_counter()
            ours(per_slot=1, slots=slots)
            quickest = min(quickest, time.perf_counter() - began)
        seconds.append(quickest)
    ratios = [after / before for before, after in pairwise(seconds)]
    for number, slots in enumerate(sizes):
        longer = f"{ratios[number - 1]:.2f} times as long" if number else ""
        rows.append([f"784 x 10, {slots:,} slots", longer, f"{seconds[number]:.2f} s", ""])
    most = 1.1 * sizes[-1] / sizes[0]
    return Section(
        "The simulator: start-up and growth",
        "`patients` reaches its first slots within 5 s, and eight times as many slots take at most"
        f" {most:.1f} times as long.",
        start < 5.0 and seconds[-1] <= most * seconds[0],
        ("campaign", "twice the slots", "time", "limit"),
        rows,
    )


def on_device() -> Section:
    """Return the stored results from a machine with an accelerator."""
    found = json.loads(DEVICE.read_text())
    rows, holds = [], True
    for one in found["cases"]:
        share = one["checkins"] / one["bare"]
        holds = holds and share >= DEVICE_LEAST
        rows.append(
            [
                f"{one['per_slot']:,}",
                f"{one['checkins']:,.0f}",
                f"{one['bare']:,.0f} ({one['loop']})",
                f"{100 * share:.0f} %",
            ]
        )
    return Section(
        f"The simulator on one {found['device']}",
        f"At least {100 * DEVICE_LEAST:.0f}% of the client updates per second of the fastest bare"
        f" loop. Measured by `python -m bench.gpu`, jax {found['jax']}, and kept.",
        holds,
        ("clients a slot", "checkins, updates a second", "bare loop", "share"),
        rows,
        kept=("on_device",),
        measured_here=False,
    )
