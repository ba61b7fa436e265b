"""The privacy theorems of the paper's three protocols, one function per statement.

[BKMTT20] is "Privacy Amplification via Random Check-Ins", arXiv:2007.06605v2. Here n is
``clients``, m is ``slots`` (``window`` for the sliding protocol) and p₀ is ``participation``. A
function whose name ends in ``_total`` takes the total δ that may be spent. None of these bounds is
capped by the ε that holds without amplification: see ``amplification.held_locally``.
"""

from __future__ import annotations

from checkins import validate
from checkins.accounting.paper import mechanisms, occupancy
from checkins.accounting.paper.amplification import Amplification, ApproximateBound, best_split


def fixed_window(*, local_epsilon: float, delta: float, slots: int, participation: float) -> float:
    """ε of check-ins into a fixed window of m slots with an ε₀-DP randomizer.

        ε = p₀²e^ε₀(e^ε₀ − 1)²/(2m) + p₀(e^ε₀ − 1) √(2 e^ε₀ log(1/δ)/m)

    Theorem:     [BKMTT20, Thm 3.2], arXiv:2007.06605v2.
    Neighbours:  replace-one.
    Rounding:    up.
    Differs:     m stands inside the root as in the statement, not beside it as in the proof.

    >>> round(fixed_window(local_epsilon=1.0, delta=1e-6, slots=10_000, participation=0.1), 4)
    0.0149
    """
    return _fixed(slots, participation).epsilon(local_epsilon=local_epsilon, delta=delta)


def fixed_window_simplified(
    *, local_epsilon: float, delta: float, slots: int, participation: float
) -> float:
    """7 p₀ ε₀ √(log(1/δ)/m), for ε₀ ≤ 1 and δ ≤ 1/100.

    Theorem:     [BKMTT20, Thm 3.2], arXiv:2007.06605v2, "in particular".
    Neighbours:  replace-one.
    Rounding:    up.

    >>> given = dict(local_epsilon=1.0, delta=1e-6, slots=10_000, participation=0.1)
    >>> round(fixed_window_simplified(**given), 4)
    0.026
    """
    validate.probability(participation=participation)
    return mechanisms.random_replacement_simplified(
        local_epsilon=local_epsilon, delta=delta, slots=slots, largest_weight=participation
    )


def fixed_window_approximate(
    *, local_epsilon: float, local_delta: float, delta: float, slots: int, participation: float
) -> ApproximateBound:
    """(ε′, δ′) of the fixed window with an (ε₀, δ₀)-DP randomizer: 8ε₀, δ + m(e^ε′ + 1)δ₁.

    Theorem:     [BKMTT20, Thm 3.2], arXiv:2007.06605v2, "furthermore".
    Neighbours:  replace-one.
    Rounding:    both up; δ₁ is the smallest that admits δ₀.

    >>> given = dict(local_epsilon=0.1, local_delta=1e-16, slots=1000, participation=1.0)
    >>> found = fixed_window_approximate(delta=1e-6, **given)
    >>> round(found.epsilon, 4), f"{found.delta:.4e}"
    (0.3056, '1.0004e-06')
    """
    theorem = _fixed(slots, participation)
    return theorem.approximate(local_epsilon=local_epsilon, local_delta=local_delta, delta=delta)


def fixed_window_approximate_total(
    *, local_epsilon: float, local_delta: float, delta: float, slots: int, participation: float
) -> float:
    """Smallest ε′ of ``fixed_window_approximate`` whose total δ′ is at most ``delta``.

    Theorem:     [BKMTT20, Thm 3.2], arXiv:2007.06605v2, "furthermore".
    Neighbours:  replace-one.
    Rounding:    up.

    >>> given = dict(local_epsilon=0.1, local_delta=1e-16, slots=1000, participation=1.0)
    >>> round(fixed_window_approximate_total(delta=1e-6, **given), 4)
    0.3056
    """
    theorem = _fixed(slots, participation)
    return theorem.approximate_total(
        local_epsilon=local_epsilon, local_delta=local_delta, delta=delta
    )


def averaged(
    *, local_epsilon: float, delta: float, load_delta: float, clients: int, slots: int
) -> float:
    """ε of averaging all check-ins of a slot; the total is δ + δ₂, δ₂ = ``load_delta``.

        x = e^(2ε₀)(e^ε₀ − 1) ε₁,     ε₁ = √(1/n + 1/m) + √(log(1/δ₂)/n)

    Theorem:     [BKMTT20, Thm 4.1], arXiv:2007.06605v2. Participation 1, clients do not collude.
    Neighbours:  replace-one.
    Rounding:    up.

    >>> given = dict(local_epsilon=0.5, clients=100_000, slots=1000)
    >>> round(averaged(delta=5e-7, load_delta=5e-7, **given), 4)
    0.4193
    """
    theorem = _averaged(clients=clients, slots=slots, load_delta=load_delta)
    return theorem.epsilon(local_epsilon=local_epsilon, delta=delta)


def averaged_total(*, local_epsilon: float, delta: float, clients: int, slots: int) -> float:
    """Smallest ε of ``averaged`` over splits of a total ``delta`` into δ + δ₂.

    Theorem:     [BKMTT20, Thm 4.1], arXiv:2007.06605v2. Participation 1, clients do not collude.
    Neighbours:  replace-one.
    Rounding:    up; the split is the best of SHARES − 1.

    >>> round(averaged_total(local_epsilon=0.5, delta=1e-6, clients=100_000, slots=1000), 4)
    0.416
    """
    return best_split(
        lambda load_delta: averaged(
            local_epsilon=local_epsilon,
            delta=delta - load_delta,
            load_delta=load_delta,
            clients=clients,
            slots=slots,
        ),
        delta=delta,
    )


def averaged_approximate(
    *,
    local_epsilon: float,
    local_delta: float,
    delta: float,
    load_delta: float,
    clients: int,
    slots: int,
) -> ApproximateBound:
    """(ε′, δ′) of averaging with an (ε₀, δ₀)-DP randomizer: 8ε₀, δ + δ₂ + n(e^ε′ + 1)δ₁.

    Theorem:     [BKMTT20, Thm 4.1], arXiv:2007.06605v2, "furthermore".
    Neighbours:  replace-one.
    Rounding:    both up; δ₁ is the smallest that admits δ₀.
    Differs:     n randomizers are replaced, where the statement counts m.

    >>> given = dict(local_epsilon=0.05, local_delta=1e-20, delta=1e-6)
    >>> found = averaged_approximate(load_delta=1e-7, clients=1000, slots=100, **given)
    >>> round(found.epsilon, 4), f"{found.delta:.4e}"
    (1.3661, '1.1000e-06')
    """
    theorem = _averaged(clients=clients, slots=slots, load_delta=load_delta)
    given = theorem.approximate(local_epsilon=local_epsilon, local_delta=local_delta, delta=delta)
    return ApproximateBound(epsilon=given.epsilon, delta=min(1.0, given.delta + load_delta))


def averaged_approximate_total(
    *, local_epsilon: float, local_delta: float, delta: float, clients: int, slots: int
) -> float:
    """Smallest ε′ of ``averaged_approximate`` whose total δ′ is at most ``delta``.

    Theorem:     [BKMTT20, Thm 4.1], arXiv:2007.06605v2, "furthermore".
    Neighbours:  replace-one.
    Rounding:    up; δ₂ is the best of SHARES − 1 parts of ``delta``.
    Differs:     n randomizers are replaced, where the statement counts m.

    >>> given = dict(local_epsilon=0.05, local_delta=1e-20, delta=1e-6)
    >>> round(averaged_approximate_total(clients=1000, slots=100, **given), 4)
    1.356
    """

    def bound(load_delta: float) -> float:
        theorem = _averaged(clients=clients, slots=slots, load_delta=load_delta)
        return theorem.approximate_total(
            local_epsilon=local_epsilon, local_delta=local_delta, delta=delta - load_delta
        )

    return best_split(bound, delta=delta)


def sliding_window(*, local_epsilon: float, delta: float, window: int) -> float:
    """ε of check-ins into a window of m slots that slides with the client's own time.

        ε = e^ε₀(e^ε₀ − 1)²/(2m) + (e^ε₀ − 1) √(2 e^ε₀ log(1/δ)/m)

    Theorem:     [BKMTT20, Thm 4.3], arXiv:2007.06605v2. Participation 1.
    Neighbours:  replace-one.
    Rounding:    up.
    Differs:     the server makes n − m + 1 updates, not n, and the pure case has no m δ₀.

    >>> round(sliding_window(local_epsilon=1.0, delta=1e-6, window=1000), 4)
    0.4749
    """
    return _sliding(window).epsilon(local_epsilon=local_epsilon, delta=delta)


def sliding_window_simplified(*, local_epsilon: float, delta: float, window: int) -> float:
    """7 ε₀ √(log(1/δ)/m), for ε₀ ≤ 1 and δ ≤ 1/100.

    Theorem:     [BKMTT20, Thm 4.3], arXiv:2007.06605v2. Participation 1.
    Neighbours:  replace-one.
    Rounding:    up.

    >>> given = dict(local_epsilon=0.05, delta=1e-6)
    >>> round(sliding_window_simplified(window=1000, **given), 4)
    0.0411
    """
    validate.count(window=window)
    return fixed_window_simplified(
        local_epsilon=local_epsilon, delta=delta, slots=window, participation=1.0
    )


def sliding_window_approximate(
    *, local_epsilon: float, local_delta: float, delta: float, window: int
) -> ApproximateBound:
    """(ε′, δ′) of the sliding window with an (ε₀, δ₀)-DP randomizer: 8ε₀, δ + m(e^ε′ + 1)δ₁.

    Theorem:     [BKMTT20, Thm 4.3], arXiv:2007.06605v2, "furthermore". Participation 1.
    Neighbours:  replace-one.
    Rounding:    both up; δ₁ is the smallest that admits δ₀.

    >>> given = dict(local_epsilon=0.05, local_delta=1e-20, delta=1e-6)
    >>> found = sliding_window_approximate(window=1000, **given)
    >>> round(found.epsilon, 4), f"{found.delta:.4e}"
    (0.1, '1.0000e-06')
    """
    theorem = _sliding(window)
    return theorem.approximate(local_epsilon=local_epsilon, local_delta=local_delta, delta=delta)


def sliding_window_approximate_total(
    *, local_epsilon: float, local_delta: float, delta: float, window: int
) -> float:
    """Smallest ε′ of ``sliding_window_approximate`` whose total δ′ is at most ``delta``.

    Theorem:     [BKMTT20, Thm 4.3], arXiv:2007.06605v2, "furthermore". Participation 1.
    Neighbours:  replace-one.
    Rounding:    up.

    >>> given = dict(local_epsilon=0.05, local_delta=1e-20, delta=1e-6)
    >>> round(sliding_window_approximate_total(window=1000, **given), 4)
    0.1
    """
    theorem = _sliding(window)
    return theorem.approximate_total(
        local_epsilon=local_epsilon, local_delta=local_delta, delta=delta
    )


def _fixed(slots: int, participation: float) -> Amplification:
    validate.probability(participation=participation)
    return mechanisms.replacement_theorem(slots=slots, largest_weight=participation)


def _sliding(window: int) -> Amplification:
    validate.count(window=window)
    return _fixed(window, 1.0)


def _averaged(*, clients: int, slots: int, load_delta: float) -> Amplification:
    validate.open_unit(load_delta=load_delta)
    norm = occupancy.load_norm(clients=clients, slots=slots, delta=load_delta)
    return Amplification(power=2.0, scale=norm / clients, randomizers=clients)
