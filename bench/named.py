"""Compare named randomizers and shared slots with Poisson sampling and with shuffling."""

from __future__ import annotations

import time

from bench.measure import Section
from checkins.accounting import (
    Adjacency,
    Design,
    LaplaceReports,
    LocalRandomizer,
    PrivUnitReports,
    Protocol,
    RandomizedResponseReports,
    certify,
)
from checkins.accounting.exact.pure import PureCampaign, PureReplaceOne

DELTA, MOST_SECONDS = 1e-6, 0.5
CASES = ((1.0, 1000, 1), (4.0, 1000, 1), (1.0, 1000, 100), (2.0, 1000, 100), (4.0, 1000, 100))
"""Local epsilon, slots and capacity."""


def _randomizers(local_epsilon: float) -> dict[str, LocalRandomizer]:
    return {
        "any": LocalRandomizer(local_epsilon),
        "binary response": RandomizedResponseReports(local_epsilon, categories=2),
        "10-ary response": RandomizedResponseReports(local_epsilon, categories=10),
        "Laplace": LaplaceReports(local_epsilon),
        "PrivUnit, d = 10⁴": PrivUnitReports(local_epsilon, dimension=10**4),
    }


def named() -> Section:
    """Certify each randomizer at each case, with the processor seconds of both certificates."""
    rows, holds = [], True
    for local_epsilon, slots, capacity in CASES:
        shuffled = PureReplaceOne(PureCampaign(local_epsilon, slots * capacity, 1.0), delta=DELTA)
        for name, randomizer in _randomizers(local_epsilon).items():
            design = Design(
                Protocol.FIXED,
                slots=slots,
                participation=1.0,
                randomizer=randomizer,
                capacity=capacity,
            )
            found, seconds = {}, {}
            for adjacency in Adjacency:
                started = time.process_time()
                found[adjacency] = certify(design, delta=DELTA, adjacency=adjacency, compare=False)
                seconds[adjacency] = time.process_time() - started
            add, replace = found[Adjacency.ADD_REMOVE], found[Adjacency.REPLACE_ONE]
            compared = certify(design, delta=DELTA, adjacency=Adjacency.ADD_REMOVE)
            poisson = next(one for one in compared.alternatives if one.method == "poisson")
            holds = holds and max(seconds.values()) <= MOST_SECONDS
            rows.append(
                [
                    f"{local_epsilon:g}",
                    f"{capacity}",
                    name,
                    f"{add.epsilon_lower:.4g} to {add.epsilon:.4g}",
                    f"{replace.epsilon_lower:.4g} to {replace.epsilon:.4g}",
                    f"{poisson.epsilon:.4g}",
                    f"{shuffled.upper_epsilon(DELTA):.4g}",
                    ", ".join(f"{seconds[one]:.2f} s" for one in Adjacency),
                ]
            )
    return Section(
        f"Named randomizers and shared slots ({CASES[0][1]:,} slots, delta {DELTA:g})",
        f"A certificate takes at most {MOST_SECONDS:g} s of processor time. Poisson: a server"
        " samples each client for each slot, with one report per slot. Shuffling: one shuffle of"
        " all reports of all slots, which needs every client at once; replace-one.",
        holds,
        (
            "local epsilon",
            "capacity",
            "randomizer",
            "add/remove",
            "replace-one",
            "Poisson, add/remove",
            "shuffling",
            "time",
        ),
        rows,
    )
