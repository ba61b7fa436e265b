"""Seconds of a slot inside Flower's ServerApp, compared with a round of its FedAvg."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from bench.measure import Section

ROOT = Path(__file__).resolve().parents[1]
PYTHON = ROOT / ".venv-flower/bin/python"
RUNS, MOST = 2, 2.0
"""Number of runs, of which the fastest counts, and the promised largest ratio of wall times."""
WAYS = {
    "fedavg": "Flower: a round of FedAvg, training alone",
    "slots": "checkins: a slot of `RandomCheckIns`, with clipping, exact noise and ledger",
}


def _run(way: str) -> dict[str, Any]:
    """Run ``bench.peers.flower_slots`` in the environment that ``make flower`` creates."""
    command = [PYTHON, "-W", "ignore", "-m", "bench.peers.flower_slots", "--way", way]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def flower_slots() -> Section:
    runs = [{way: _run(way) for way in WAYS} for _ in range(RUNS)]
    best = {way: min((run[way] for run in runs), key=lambda one: one["wall_s"]) for way in WAYS}
    ratio = best["slots"]["wall_s"] / best["fedavg"]["wall_s"]
    rows = [
        [name, f"{1e3 * best[way]['wall_s']:.0f} ms", f"{1e3 * best[way]['processor_s']:.0f} ms"]
        for way, name in WAYS.items()
    ]
    return Section(
        f"Inside Flower {best['slots']['flwr']}: a slot and a round of FedAvg",
        f"The same ClientApp with a model of {best['slots']['numbers']:,} numbers,"
        f" {best['slots']['clients']} clients in a round, in Flower's simulation; the fastest of"
        f" {RUNS} runs. A slot takes at most {MOST:g} times the wall time of a round. It takes"
        f" {ratio:.2f} times. On a SuperLink, a slot lasts as long as the campaign says.",
        ratio <= MOST,
        ["what", "from release to release", "of that, processor time of the server"],
        rows,
    )
