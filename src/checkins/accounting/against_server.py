"""What holds against the server itself, which sees every report with its sender.

A certificate is about what is released by a trusted server. If the server is not trusted, only the
noise that a device adds to its own report is left.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from checkins.accounting.design import Adjacency, Design, LocalRandomizer, NoiseAt
from checkins.accounting.paper import kov_composition
from checkins.accounting.paper_bounds import gaussian_report_epsilon

NOTHING = "nothing: the server sees every clipped update before it adds noise"
OF_CONTENT = "of what a client's reports say; that it took part is not hidden from the server"
NO_BOUND = "no bound at this delta: the local deltas of its reports exceed it"


@dataclass(frozen=True, slots=True)
class AgainstServer:
    """Epsilon of one client's reports by themselves, at the certificate's delta.

    ``epsilon`` is infinite if nothing holds.
    """

    epsilon: float
    note: str

    def as_dict(self) -> dict[str, object]:
        return {
            "epsilon": self.epsilon if math.isfinite(self.epsilon) else None,
            "adjacency": str(Adjacency.REPLACE_ONE),
            "note": self.note,
        }


def against_server(designs: Sequence[Design], *, delta: float, campaigns: int = 1) -> AgainstServer:
    """The guarantee of a client's reports alone, one in every campaign.

    Gaussian reports are one Gaussian report with the sum of their precisions. Equal local
    randomizers are composed, different ones added up.

    Theorem:     [BW18, Thm 8], arXiv:1805.06530v2; [KOV17], ``paper.heterogeneous``.
    Neighbours:  replace-one: two values of the client's data.
    Rounding:    up.
    """
    precision, local = 0.0, Counter[LocalRandomizer]()
    for design in designs:
        randomizer = design.randomizer
        if isinstance(randomizer, LocalRandomizer):
            local[randomizer] += campaigns
        elif randomizer.at is NoiseAt.SERVER:
            return AgainstServer(math.inf, NOTHING)
        else:
            precision += campaigns / randomizer.noise_multiplier**2
    left = delta - math.fsum(one.local_delta * times for one, times in local.items())
    if left == 0.0 and not precision:  # basic composition spends exactly the local deltas
        return AgainstServer(_added(local), OF_CONTENT)
    if not left > 0.0:
        return AgainstServer(math.inf, NO_BOUND)
    share = left / 2 if precision and local else left
    epsilon = 0.0
    if precision:
        epsilon += gaussian_report_epsilon(1.0 / math.sqrt(precision), share)
    if local:
        epsilon += _composed(local, share)
    return AgainstServer(epsilon * (1.0 + 1e-12) if len(designs) > 1 else epsilon, OF_CONTENT)


def _added(local: Counter[LocalRandomizer]) -> float:
    return math.fsum(one.local_epsilon * times for one, times in local.items())


def _composed(local: Counter[LocalRandomizer], delta: float) -> float:
    """Epsilon of all reports together, at most their sum; a single one spends no delta."""
    added = _added(local)
    if local.total() == 1 or len(local) > 1:
        return added
    [(one, times)] = local.items()
    composed = kov_composition.homogeneous_composition(
        epsilon=one.local_epsilon, steps=times, delta=delta
    )
    return min(added, composed)
