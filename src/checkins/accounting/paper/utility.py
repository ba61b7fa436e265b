"""Step sizes and excess-risk bounds of the fixed and averaged protocols, with all constants.

Setting: there are n i.i.d. clients and m slots. A client takes part with probability p₀, and then
draws one slot. In formulas, H_k is the k-th harmonic number, and S is the number of reports in a
slot. The population risk F is convex, with an L-Lipschitz loss on a ball of diameter R in p
dimensions. Reports carry Gaussian noise of standard deviation σ per coordinate. The model is
projected onto the ball after every slot, and every slot makes one step.

The paper, [BKMTT20], applies two theorems on SGD as if every slot gave an unbiased gradient. But an
empty slot gives no gradient, and whether a slot is empty depends on the slots before it. The bounds
of this module are proved in docs/theory/utility.md.
"""

from __future__ import annotations

import math

from scipy.special import digamma

from checkins import validate
from checkins.accounting.paper.amplification import ROUND_UP
from checkins.accounting.paper.occupancy import empty_probability, expected_inverse_load
from checkins.errors import NotCovered


def last_iterate_risk(
    *,
    clients: int,
    slots: int,
    participation: float,
    rate: float,
    second_moment: float,
    diameter: float,
) -> float:
    """Return a bound on the excess risk of the last model, if slot i has the step ``rate``/√i.

        (R²/(2κ) + κG²)/√(m + 1) · (1 + H_{m+1}/(1 − (1 − p₀/m)^n))

    κ is ``rate``, and G² is ``second_moment``, the second moment of a slot's report.

    Theorem:     docs/theory/utility.md, after [SZ13, Thm 2].
    Neighbours:  none; expectation over data, check-ins and noise.
    Rounding:    up; infinity if no client can check in.
    Differs:     [BKMTT20, Thm 3.5 and 4.2] treat every slot as unbiased. Here, empty slots add a
                 factor of at most 1/(1 − (1 − p₀/m)^n), and updates need not be rescaled.

    >>> given = dict(clients=1000, slots=100, participation=1.0)
    >>> round(last_iterate_risk(rate=1.0, second_moment=1.0, diameter=1.0, **given), 3)
    0.925
    """
    validate.positive(rate=rate, diameter=diameter)
    validate.non_negative(second_moment=second_moment)
    empty = empty_probability(clients=clients, slots=slots, participation=participation)
    if empty >= 1.0:
        return math.inf
    harmonic = float(digamma(slots + 2.0)) + 0.5772156649015329
    slot_factor = (1.0 + harmonic / (1.0 - empty)) / math.sqrt(slots + 1.0)
    return (diameter * diameter / (2.0 * rate) + rate * second_moment) * slot_factor * ROUND_UP


def fixed_window_rate(
    *,
    clients: int,
    slots: int,
    participation: float,
    lipschitz: float,
    diameter: float,
    dimension: int,
    noise_std: float,
) -> float:
    """Return the factor c of the step size ηᵢ = c/√i for the fixed window.

        c = R(1 − 2e^(−np₀/m))/√(pσ² + L²)

    Theorem:     [BKMTT20, Thm 3.5], arXiv:2007.06605v2.
    Neighbours:  none.
    Rounding:    to nearest.
    Differs:     ``NotCovered`` if n p₀/m ≤ log 2, because the stated rate is not positive then.

    >>> given = dict(lipschitz=1.0, diameter=1.0, dimension=10, noise_std=0.1)
    >>> round(fixed_window_rate(clients=1000, slots=100, participation=1.0, **given), 4)
    0.9534
    """
    factor = _rate_factor(clients=clients, slots=slots, participation=participation)
    validate.positive(diameter=diameter)
    return diameter * factor / math.sqrt(_report_moment(lipschitz, dimension, noise_std))


def fixed_window_risk(
    *,
    clients: int,
    slots: int,
    participation: float,
    lipschitz: float,
    diameter: float,
    dimension: int,
    noise_std: float,
) -> float:
    """Return a bound on the excess risk of the fixed window's last model.

        2R√(pσ² + L²)/(1 − 2e^(−np₀/m)) · (2 + log m)/√m

    The step size is that of ``fixed_window_rate``.

    Theorem:     [BKMTT20, Thm 3.5], arXiv:2007.06605v2; [SZ13, Thm 2].
    Neighbours:  none; expectation over data, check-ins and noise.
    Rounding:    up.
    Differs:     the paper's proof does not square the denominator 1 − 2e^(−np₀/m) of the second
                 moment. The proof multiplies every update by 1/(1 − p_b) in its notation. The bound
                 also holds without this factor, because ``last_iterate_risk`` is smaller.

    >>> given = dict(lipschitz=1.0, diameter=1.0, dimension=10, noise_std=0.1)
    >>> round(fixed_window_risk(clients=1000, slots=100, participation=1.0, **given), 4)
    1.3856
    """
    factor = _rate_factor(clients=clients, slots=slots, participation=participation)
    validate.positive(diameter=diameter)
    scale = diameter * math.sqrt(_report_moment(lipschitz, dimension, noise_std))
    return 2.0 * scale / factor * (2.0 + math.log(slots)) / math.sqrt(slots) * ROUND_UP


def averaged_rate(
    *, clients: int, slots: int, lipschitz: float, diameter: float, dimension: int, noise_std: float
) -> float:
    """Return the factor c of the step size ηᵢ = c/√i for averaged updates.

    S is the number of reports in a slot.

        c = R/√(pσ²·E[1/S | S > 0] + L²)

    Theorem:     [BKMTT20, Thm 4.2], arXiv:2007.06605v2.
    Neighbours:  none.
    Rounding:    to nearest.
    Differs:     E[1/S | S > 0] is exact; the statement has m/n, which is smaller.

    >>> given = dict(lipschitz=1.0, diameter=1.0, dimension=10, noise_std=0.1)
    >>> round(averaged_rate(clients=1000, slots=100, **given), 4)
    0.9944
    """
    validate.positive(diameter=diameter)
    moment = _averaged_moment(clients, slots, lipschitz, dimension, noise_std)
    return diameter / math.sqrt(moment)


def averaged_risk(
    *, clients: int, slots: int, lipschitz: float, diameter: float, dimension: int, noise_std: float
) -> float:
    """Return a bound on the excess risk of the last model with averaged updates.

        (3/2) R G/√(m + 1) · (1 + H_{m+1}/(1 − (1 − 1/m)^n)),     G² = L² + pσ²·E[1/S | S > 0]

    The step size is that of ``averaged_rate``. S is the number of reports in a slot.

    Theorem:     [BKMTT20, Thm 4.2], arXiv:2007.06605v2; ``last_iterate_risk``. Participation 1.
    Neighbours:  none; expectation over data, check-ins and noise.
    Rounding:    up.
    Differs:     empty slots are accounted for, and E[1/S | S > 0] is exact. The paper's proof
                 treats every slot as unbiased, and uses m/n for E[1/S | S > 0].

    >>> given = dict(lipschitz=1.0, diameter=1.0, dimension=10, noise_std=0.1)
    >>> round(averaged_risk(clients=1000, slots=100, **given), 4)
    0.9302
    """
    validate.positive(diameter=diameter)
    moment = _averaged_moment(clients, slots, lipschitz, dimension, noise_std)
    return last_iterate_risk(
        clients=clients,
        slots=slots,
        participation=1.0,
        rate=diameter / math.sqrt(moment),
        second_moment=moment,
        diameter=diameter,
    )


def averaged_smooth_step(
    *,
    clients: int,
    slots: int,
    lipschitz: float,
    smoothness: float,
    diameter: float,
    dimension: int,
    noise_std: float,
) -> float:
    """Return the constant step size for averaged updates on a β-smooth loss.

        1/(β + κ√m/R),     κ² = (L² + pσ²)·E[1/S | S > 0]

    Theorem:     [BKMTT20, Thm 4.2], arXiv:2007.06605v2, "furthermore"; [B15, Thm 6.3].
    Neighbours:  none.
    Rounding:    to nearest.
    Differs:     E[1/S | S > 0] is exact; the statement has m/n. There is no factor √2, as in the
                 statement; the proof has one.

    >>> given = dict(lipschitz=1.0, smoothness=1.0, diameter=1.0, dimension=10, noise_std=0.1)
    >>> round(averaged_smooth_step(clients=1000, slots=100, **given), 4)
    0.2211
    """
    validate.positive(smoothness=smoothness, diameter=diameter)
    deviation = _smooth_deviation(clients, slots, lipschitz, dimension, noise_std)
    return 1.0 / (smoothness + deviation * math.sqrt(slots) / diameter)


def averaged_smooth_risk(
    *,
    clients: int,
    slots: int,
    lipschitz: float,
    smoothness: float,
    diameter: float,
    dimension: int,
    noise_std: float,
) -> float:
    """Return a bound on the excess risk of the mean of all slots' models on a β-smooth loss.

        Rκ/(2√m)·(1 + 1/q) + βR²/(2qm) + LR/(qm),     q = 1 − (1 − 1/m)^n

    The step size is that of ``averaged_smooth_step``. κ is as defined there, and q is the
    probability that a slot is not empty. θᵢ is the model before slot i. The bound covers the mean
    of θ₁..θ_m, as in the paper, and the mean of θ₂..θ_{m+1}.

    Theorem:     [BKMTT20, Thm 4.2], arXiv:2007.06605v2, "furthermore"; [B15, Thm 6.3].
    Neighbours:  none; expectation over data, check-ins and noise.
    Rounding:    up.
    Differs:     empty slots are accounted for, by q, and so is the first model θ₁, which [B15]
                 leaves out.

    >>> given = dict(lipschitz=1.0, smoothness=1.0, diameter=1.0, dimension=10, noise_std=0.1)
    >>> round(averaged_smooth_risk(clients=1000, slots=100, **given), 4)
    0.0502
    """
    validate.positive(smoothness=smoothness, diameter=diameter)
    deviation = _smooth_deviation(clients, slots, lipschitz, dimension, noise_std)
    nonempty = 1.0 - empty_probability(clients=clients, slots=slots, participation=1.0)
    noise_term = diameter * deviation / (2.0 * math.sqrt(slots)) * (1.0 + 1.0 / nonempty)
    initial_term = smoothness * diameter * diameter / 2.0 + lipschitz * diameter
    return (noise_term + initial_term / (nonempty * slots)) * ROUND_UP


def _rate_factor(*, clients: int, slots: int, participation: float) -> float:
    """Return 1 − 2e^(−np₀/m). Raise ``NotCovered`` if it is not positive."""
    validate.count(clients=clients, slots=slots)
    validate.probability(participation=participation)
    load = clients * participation / slots
    if not load > math.log(2.0):
        raise NotCovered(
            "participation",
            participation,
            f"clients · participation / slots = {load:.4g} must exceed log 2: "
            f"participation above {math.log(2.0) * slots / clients:.4g}",
        )
    return 1.0 - 2.0 * math.exp(-load)


def _report_moment(
    lipschitz: float, dimension: int, noise_std: float, noise_share: float = 1.0
) -> float:
    """Return L² + pσ² · ``noise_share``, the second moment of a report or of a mean of reports."""
    validate.positive(lipschitz=lipschitz)
    validate.non_negative(noise_std=noise_std)
    validate.count(dimension=dimension)
    return lipschitz * lipschitz + dimension * noise_std * noise_std * noise_share


def _averaged_moment(
    clients: int, slots: int, lipschitz: float, dimension: int, noise_std: float
) -> float:
    share = expected_inverse_load(clients=clients, slots=slots)
    return _report_moment(lipschitz, dimension, noise_std, noise_share=share)


def _smooth_deviation(
    clients: int, slots: int, lipschitz: float, dimension: int, noise_std: float
) -> float:
    moment = _report_moment(lipschitz, dimension, noise_std)
    return math.sqrt(moment * expected_inverse_load(clients=clients, slots=slots))
