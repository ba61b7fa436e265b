"""`make bench`: measure everything, print it, and keep it in bench/RESULTS.md."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import numpy as np
import scipy

from bench.calibration import calibration
from bench.device_noise import device_noise
from bench.gaussian import grid, peer
from bench.pure import pure
from bench.service import check_ins, waiting
from bench.simulator import DEVICE, beside_bare, beside_peers, growth, on_device
from bench.table import table

RESULTS = Path(__file__).with_name("RESULTS.md")


def main() -> int:
    """Exit 1 when a promise does not hold on this machine."""
    head = (
        "# Figures\n\nMeasured by `make bench`, each table in one run; ratios travel better between"
        f" machines than seconds.\nPython {platform.python_version()}, numpy {np.__version__},"
        f" scipy {scipy.__version__}, {platform.machine()}.\n"
    )
    parts, holds = [head], True
    benches = [table, pure, grid, calibration, peer, device_noise]
    benches += [beside_bare, beside_peers, growth, check_ins, waiting]
    if DEVICE.exists():
        benches.append(on_device)
    for bench in benches:
        section = bench()
        print(section.markdown(), flush=True)
        parts.append(section.markdown())
        holds = holds and section.holds
    RESULTS.write_text("\n".join(parts))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
