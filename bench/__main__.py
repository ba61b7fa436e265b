"""`make bench`: measure everything, print it, and keep it in bench/RESULTS.md.

`python -m bench NAME ...` measures some of it again and keeps the rest.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy

from bench.calibration import calibration
from bench.device_noise import device_noise
from bench.gaussian import grid, peer
from bench.pure import pure
from bench.recommendations import recommendations
from bench.service import check_ins, waiting
from bench.simulator import DEVICE, beside_bare, beside_peers, growth, on_device
from bench.table import table

RESULTS = Path(__file__).with_name("RESULTS.md")


BENCHES = [table, pure, grid, calibration, peer, device_noise]
BENCHES += [beside_bare, beside_peers, growth, recommendations, check_ins, waiting, on_device]
HEAD = (
    "# Figures\n\nMeasured by `make bench`, each table in one run; ratios travel better between"
    f" machines than seconds.\nPython {platform.python_version()}, numpy {np.__version__},"
    f" scipy {scipy.__version__}, {platform.machine()}.\n"
)


def main(names: Sequence[str]) -> int:
    """Measure what is named, or everything; exit 1 when a promise does not hold on this machine."""
    known = {bench.__name__: bench for bench in BENCHES}
    if unknown := [name for name in names if name not in known]:
        print(f"no bench {unknown[0]}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    if not DEVICE.exists():
        del known[on_device.__name__]
    kept = _sections(RESULTS.read_text()) if names else {}
    holds = True
    for bench in (known[name] for name in names or known):
        section = bench()
        print(section.markdown(), flush=True)
        kept[section.title] = section.markdown()
        holds = holds and section.holds
    RESULTS.write_text("\n".join([HEAD, *kept.values()]))
    return 0 if holds else 1


def _sections(text: str) -> dict[str, str]:
    """What was measured before, by title."""
    parts = text.split("\n## ")[1:]
    return {part.split("\n", 1)[0]: "## " + part.rstrip("\n") + "\n" for part in parts}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
