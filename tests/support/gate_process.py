"""Run a gate whose slot and clock a test has chosen: python -m tests.support.gate_process JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from checkins.campaign import read_campaign
from checkins.client.clock_and_randomness import DeviceRandomness
from checkins.flower.gate import Gate, SuperNode, key_fingerprint
from tests.support.file_clock import FileClock


class Fixed(DeviceRandomness):
    """Randomness with a fixed slot, which is counted from 0."""

    def __init__(self, slot: int) -> None:
        self._slot = slot

    def pick(self, size: int) -> int:
        return self._slot

    def jitter(self) -> float:
        return 0.0


class NodeClock(FileClock):
    """The same clock, which does not tell for what the gate waits."""

    def sleep_until(self, moment_s: float) -> None:
        import time

        while self.now() < moment_s:
            time.sleep(0.1)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    outcome = Gate(
        read_campaign(given["campaign"]).campaign,
        SuperNode(given["options"]),
        key_fingerprint(given["key"]),
        Path(given["state"]),
        NodeClock(Path(given["clock"])),
        Fixed(given["slot"] - 1),
    ).run()
    print("outcome", outcome.name, flush=True)
