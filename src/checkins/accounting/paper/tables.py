"""The paper's Table 1 and Figure 2 as plain data; nothing is printed or drawn here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from checkins import validate
from checkins.accounting.paper import kov_composition, repetition, shuffling
from checkins.accounting.paper.amplification import held_locally
from checkins.errors import InvalidValue

FIGURE_DELTA = 1e-6
FIGURE_CLIENTS = (10**3, 10**4, 10**5, 10**6)


@dataclass(frozen=True, slots=True)
class TableRow:
    """One source of amplification: the paper's order of growth, and an actual ε."""

    source: str
    order: str
    epsilon: float
    statement: str


def table1(*, clients: int, slots: int, local_epsilon: float, delta: float) -> tuple[TableRow, ...]:
    """ε after one epoch of n updates on n clients, by five sources of amplification.

    Theorem:     [BKMTT20, Table 1], arXiv:2007.06605v2. Check-ins: n/m runs of m slots.
    Neighbours:  replace-one.
    Rounding:    up. Bounds above ε₀ are vacuous and are shown as they are.

    >>> [round(row.epsilon, 3) for row in
    ...  table1(clients=100_000, slots=1000, local_epsilon=2.0, delta=1e-6)]
    [2.0, 0.09, 16.481, 2.215, 1.947]
    """
    validate.count(clients=clients, slots=slots)
    validate.positive(local_epsilon=local_epsilon)
    validate.open_unit(delta=delta)
    given = {"local_epsilon": local_epsilon, "delta": delta}
    return (
        TableRow("none", "ε₀", local_epsilon, "local privacy alone"),
        TableRow(
            "uniform subsampling",
            "O(e^ε₀/√n)",
            subsampling(clients=clients, **given),
            "[BBG18, Thm 2] at q = 1/n, n steps by [KOV17, Thm 3.5]",
        ),
        TableRow(
            "shuffling, earlier",
            "O(e^3ε₀/√n)",
            shuffling.shuffling_earlier(clients=clients, **given),
            "[EFMRTT19, Thm 7]",
        ),
        TableRow(
            "shuffling, this paper",
            "O(e^2.5ε₀/√n)",
            shuffling.shuffling(clients=clients, **given),
            "[BKMTT20, Thm 5.1]",
        ),
        TableRow(
            "random check-ins, fixed window",
            "O(e^1.5ε₀/√n)",
            repetition.repeated_total(clients=clients, slots=slots, **given),
            f"[BKMTT20, Cor 3.3] by advanced composition, m = {slots}, total δ",
        ),
    )


def subsampling(*, clients: int, local_epsilon: float, delta: float) -> float:
    """ε of n steps, each on one client drawn uniformly from n: εᵢ = log(1 + (e^ε₀ − 1)/n).

    Theorem:     [BBG18, Thm 2], arXiv:1807.01647v2; [KOV17, Thm 3.5], arXiv:1311.0776v4.
    Neighbours:  replace-one.
    Rounding:    up.

    >>> round(subsampling(clients=100_000, local_epsilon=2.0, delta=1e-6), 4)
    0.0902
    """
    validate.count(clients=clients)
    step = held_locally(
        local_epsilon=local_epsilon, local_delta=0.0, delta=delta, participation=1.0 / clients
    )
    return kov_composition.homogeneous_composition(epsilon=step, steps=clients, delta=delta)


@dataclass(frozen=True, slots=True)
class Curve:
    """ε after shuffling ``clients`` reports, against ε₀, by both theorems."""

    clients: int
    local_epsilons: NDArray[np.float64]
    this_paper: NDArray[np.float64]
    earlier: NDArray[np.float64]


def figure2(
    *,
    local_epsilons: Sequence[float],
    clients: Sequence[int] = FIGURE_CLIENTS,
    delta: float = FIGURE_DELTA,
) -> tuple[Curve, ...]:
    """The curves of Figure 2; amplification is vacuous above the line ε = ε₀.

    Theorem:     [BKMTT20, Figure 2, Thm 5.1], arXiv:2007.06605v2; [EFMRTT19, Thm 7].
    Neighbours:  replace-one.
    Rounding:    up.

    >>> curve = figure2(local_epsilons=[0.5, 1.0])[0]
    >>> curve.clients, curve.this_paper.round(3).tolist()
    (1000, [0.229, 1.31])
    """
    grid = np.asarray(local_epsilons, dtype=np.float64)
    if grid.ndim != 1 or grid.size == 0:
        raise InvalidValue("local_epsilons", local_epsilons, "must be a non-empty sequence")

    def along(bound: Callable[..., float], count: int) -> NDArray[np.float64]:
        found = [bound(local_epsilon=float(e), delta=delta, clients=count) for e in grid]
        return np.array(found, dtype=np.float64)

    return tuple(
        Curve(
            clients=count,
            local_epsilons=grid,
            this_paper=along(shuffling.shuffling, count),
            earlier=along(shuffling.shuffling_earlier, count),
        )
        for count in clients
    )
