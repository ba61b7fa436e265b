"""Bytes of a client in one slot, and in one round of Flower's FedAvg, in the same environment."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from bench.measure import Section

ROOT = Path(__file__).resolve().parents[1]
PYTHON = ROOT / ".venv-flower/bin/python"
MOST_SENT, MOST_RECEIVED = 1.2, 3.2
"""Promised bytes of a slot, as multiples of those of a round that does not evaluate."""


def flower_bytes() -> Section:
    """Run ``bench.peers.flower_bytes`` in the environment that ``make flower`` creates."""
    command = [PYTHON, "-m", "bench.peers.flower_bytes"]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout)
    slot, plain = found["slot"], found["round without evaluation"]
    sent, received = slot["sent"] / plain["sent"], slot["received"] / plain["received"]
    names = {
        "slot": "checkins: enrolment, check-in and report of one slot",
        "round without evaluation": "Flower: one round of FedAvg, training alone",
        "round": "Flower: one round of FedAvg, training and evaluation",
    }
    rows = [
        [name, f"{found[key]['sent']:,.0f}", f"{found[key]['received']:,.0f}"]
        for key, name in names.items()
    ]
    return Section(
        f"Bytes of a client: a slot and a round of Flower {found['flwr']}",
        f"A model of {found['numbers']:,} numbers, one client on loopback without TLS. Promise: a"
        f" client of a slot sends at most {MOST_SENT:g} times, and receives at most"
        f" {MOST_RECEIVED:g} times the bytes of a round without evaluation; it sends {sent:.2f}"
        f" times and receives {received:.2f} times. It receives the model in float64 and as text,"
        " and a client of Flower in float32. A client of Flower also polls, so its bytes grow with"
        " the duration of a round.",
        sent <= MOST_SENT and received <= MOST_RECEIVED,
        ["client", "sends", "receives"],
        rows,
    )
