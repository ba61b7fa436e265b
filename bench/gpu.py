"""Compare the simulator with bare loops on an accelerator: ``python -m bench.gpu --out DIR``.

It needs jax, numpy, scipy and this package, takes up to four minutes and writes DIR/gpu.json. Copy
that file to bench/gpu.json to show its results in bench/RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import jax

from bench import bare
from bench.simulator import ours
from tools.figures import new_record
from tools.measured import NoCommit, commit_here

BUDGET_S = 210.0
CASES = {1: (8192, 8, 80_000), 1024: (2048, 8, 40_000), 16_384: (512, 8, 20_000)}
"""For each number of clients per slot: slots per stretch, stretches, slots of the campaign."""
QUICK = {1: (64, 3, 400), 64: (32, 3, 200)}
QUICK_ROWS = 2_000


def case(per_slot: int, *, quick: bool, deadline: float) -> dict[str, Any]:
    """Measure every bare loop once, then the fastest one and the simulator in turn."""
    stretch, stretches, slots = (QUICK if quick else CASES)[per_slot]
    rows = QUICK_ROWS if quick else bare.ROWS
    table = bare.table(*bare.data(rows))
    loops: dict[str, float] = {}
    best: tuple[float, Any, Any] = (0.0, None, None)
    for one in bare.ON_DEVICE:
        if best[1] is not None and time.perf_counter() > deadline:
            break
        if one.slot is bare.elementwise and per_slot > 1:
            continue  # only sensible for one client per slot
        run = one.ready(table, per_slot=per_slot, stretch=stretch)
        rate = per_slot * max(run(stretches) for _ in range(2))
        loops[one.name] = rate
        best = max(best, (rate, one, run), key=lambda found: found[0])
    fastest, one, run = best
    mine = []
    for turn in range(3):
        if turn and time.perf_counter() > deadline:
            break
        outcome = ours(per_slot=per_slot, slots=slots, rows=rows)
        mine.append(outcome.updates_per_second)
        fastest = max(fastest, per_slot * run(stretches))
    return {
        "per_slot": per_slot,
        "bare": fastest,
        "loop": one.name,
        "checkins": max(mine),
        "share": max(mine) / fastest,
        "checkins_all": mine,
        "seconds_of_one_campaign": outcome.seconds,
        "used": outcome.client_updates / (slots * per_slot),
        "loops": loops,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="small sizes, to try the script")
    parser.add_argument("--commit", help="default: CHECKINS_COMMIT, or git's HEAD")
    options = parser.parse_args()
    try:
        commit = commit_here(options.commit)
    except NoCommit as problem:
        parser.error(str(problem))
    began = time.perf_counter()
    sizes = list(QUICK if options.quick else CASES)
    found: dict[str, Any] = {
        "device": jax.devices()[0].device_kind,
        "backend": jax.default_backend(),
        "jax": jax.__version__,
        "quick": options.quick,
        "measured": new_record("on_device", commit=commit).as_json(),
        "cases": [],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    for number, per_slot in enumerate(sizes, start=1):
        deadline = began + BUDGET_S * number / len(sizes)
        found["cases"].append(case(per_slot, quick=options.quick, deadline=deadline))
        found["seconds"] = time.perf_counter() - began
        text = json.dumps(found, indent=1) + "\n"
        (options.out / "gpu.json").write_text(text)  # an interrupted run leaves its results
        print(json.dumps(found["cases"][-1]), flush=True)
    print(text, end="")


if __name__ == "__main__":
    main()
