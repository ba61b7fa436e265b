"""The designs whose certificates are recorded, as options of ``checkins account``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

ADJACENCIES = ("add-remove", "replace-one")
PURE = ("--local-epsilon 0.1", "--local-epsilon 1", "--local-epsilon 4")
APPROXIMATE = ("--local-epsilon 0.1 --local-delta 1e-10", "--local-epsilon 1 --local-delta 1e-12")
SERVER = ("--noise-multiplier 1 --noise-at server", "--noise-multiplier 4 --noise-at server")
CLIENT = "--noise-multiplier {noise} --noise-at client --capacity {capacity}"


def questions() -> tuple[str, ...]:
    """All of them, each once, in a fixed order."""
    return tuple(dict.fromkeys(f"{design} --adjacency {a}" for design, a in _designs()))


def _designs() -> Iterator[tuple[str, str]]:
    for design in (*_fixed(), *_sliding(), *_repeated(), *_curious()):
        for adjacency in ADJACENCIES:
            yield design, adjacency
    for design in _averaged():
        yield design, "replace-one"
    yield design, "add-remove"  # refused: a lone client of a slot shows


def _fixed() -> Iterator[str]:
    """One slot, few, many; everyone, half or a tenth; pure, approximate and Gaussian reports."""
    for slots, participation in product((1, 30, 1000, 100000), (1, 0.5, 0.1)):
        start = f"--protocol fixed --slots {slots} --participation {participation} --delta 1e-6"
        yield from (f"{start} {reports}" for reports in (*PURE, *APPROXIMATE))
        if participation == 0.5:
            continue  # Gaussian noise takes longer
        yield from (f"{start} {reports}" for reports in SERVER)
        for noise, capacity in ((1, 1), (0.5, 16)):
            yield f"{start} {CLIENT.format(noise=noise, capacity=capacity)}"
    for population in ("50..50", "800..1000"):
        start = "--protocol fixed --slots 40 --participation 0.5 --delta 1e-5"
        start = f"{start} --population {population}"
        yield f"{start} {CLIENT.format(noise=0.5, capacity=4)}"
        yield f"{start} --noise-multiplier 2 --noise-at server --capacity 4"
        yield f"{start} --local-epsilon 1"


def _averaged() -> Iterator[str]:
    for slots, population in product((1, 20, 500), ("40..40", "1000..5000")):
        start = f"--protocol averaged --slots {slots} --participation 1 --population {population}"
        for reports in (*PURE, *APPROXIMATE, "--noise-multiplier 2 --noise-at client"):
            yield f"{start} --delta 1e-6 {reports}"


def _sliding() -> Iterator[str]:
    for (slots, window), participation in product(((60, 1), (60, 20), (2000, 300)), (1, 0.2)):
        start = f"--protocol sliding --slots {slots} --window {window}"
        start = f"{start} --participation {participation} --delta 1e-6"
        yield from (f"{start} {reports}" for reports in (*PURE, *APPROXIMATE, SERVER[0]))
        yield f"{start} {CLIENT.format(noise=0.5, capacity=16)}"


def _repeated() -> Iterator[str]:
    for campaigns in (2, 7):
        for start in ("--protocol fixed --slots 50", "--protocol sliding --slots 60 --window 20"):
            for reports in (PURE[1], APPROXIMATE[1], SERVER[1], CLIENT.format(noise=1, capacity=4)):
                yield (
                    f"{start} --participation 0.5 --delta 1e-6 {reports} --campaigns {campaigns}"
                )


def _curious() -> Iterator[str]:
    for curious, reports in product((1, 3), (PURE[1], CLIENT.format(noise=1, capacity=64))):
        yield (
            "--protocol fixed --slots 10000 --participation 0.01 --delta 1e-4"
            f" {reports} --curious {curious}"
        )
