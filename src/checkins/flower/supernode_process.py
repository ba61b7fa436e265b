"""Run `flower-supernode` until its standard input ends, which the gate closes or dies with.

The gate starts this module as a process: ``python -m checkins.flower.supernode_process OPTIONS``.
So no SuperNode stays online after its gate, even if the gate is killed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

GRACE_S = 10.0
"""Seconds after SIGTERM in which the SuperNode may leave the SuperLink."""


def leave_when_input_ends() -> None:
    """Wait for the end of standard input, then end this process."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os._exit(1)


def main() -> None:
    """Run the SuperNode with the options of this process."""
    threading.Thread(target=leave_when_input_ends, daemon=True).start()
    from flwr.supernode.cli import flower_supernode

    sys.argv[0] = "flower-supernode"
    flower_supernode()


if __name__ == "__main__":
    main()
