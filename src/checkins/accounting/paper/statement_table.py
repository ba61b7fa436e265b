"""Every statement of the paper evaluated at one setting, as rows to be printed elsewhere."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

from checkins.accounting.paper import (
    approximate_to_pure,
    kov_composition,
    occupancy,
    repetition,
    replacement,
    shuffling,
    statements,
    utility,
)
from checkins.accounting.paper.amplification import ApproximateBound
from checkins.errors import InvalidValue


@dataclass(frozen=True, slots=True)
class Setting:
    """The parameters at which ``theorem_sheet`` evaluates every statement."""

    clients: int
    slots: int
    participation: float
    capacity: int
    local_epsilon: float
    local_delta: float
    delta: float
    lipschitz: float
    smoothness: float
    diameter: float
    dimension: int
    noise_std: float


@dataclass(frozen=True, slots=True)
class SheetRow:
    """One statement at one setting: a value, with its total δ where that differs, or a refusal."""

    id: str
    statement: str
    inputs: dict[str, float]
    value: float | None
    total_delta: float | None
    refusal: str | None


def theorem_sheet(setting: Setting) -> tuple[SheetRow, ...]:
    """Evaluate every statement of the paper at one setting; a refusal is a row, not an error.

    Ids: A1 fixed window, A2 repetition, A3 averaged, A4 sliding, A5 shuffling, A6 mechanisms,
    A7 the condition on δ₀, A8 composition, A9 dummies, A10 loads, A11 utility.

    Theorem:     all of [BKMTT20], arXiv:2007.06605v2.
    Neighbours:  replace-one.
    Rounding:    as each function says.

    >>> setting = Setting(
    ...     clients=10_000, slots=1000, participation=0.1, capacity=30, local_epsilon=0.5,
    ...     local_delta=1e-12, delta=1e-6, lipschitz=1.0, smoothness=1.0, diameter=1.0,
    ...     dimension=10, noise_std=0.1)
    >>> row = theorem_sheet(setting)[0]
    >>> row.id, row.statement, round(row.value, 4)
    ('A1', 'Thm 3.2: fixed window', 0.0138)
    """
    return tuple(_row(setting, *entry) for entry in _STATEMENTS)


_DERIVED: dict[str, Callable[[Setting], float]] = {
    "window": lambda s: s.slots,
    "largest_weight": lambda s: s.participation,
    "load_delta": lambda s: s.delta / 2.0,
    "distance": lambda s: s.delta,
    "beta": lambda s: s.delta * s.slots / s.clients,
    "steps": lambda s: s.slots,
    "a": lambda s: s.participation * math.expm1(s.local_epsilon),
    "b": lambda s: -math.expm1(-s.local_epsilon),
    "sampling": lambda s: s.participation,
    "rate": lambda s: s.diameter / math.sqrt(_report_moment(s)),
    "second_moment": lambda s: _report_moment(s),
}
"""Arguments that are not fields of a setting, and what the sheet passes for them."""

_Statement = tuple[str, str, Callable[..., object]]

_STATEMENTS: tuple[_Statement, ...] = (
    ("A1", "Thm 3.2: fixed window", statements.fixed_window),
    ("A1", "Thm 3.2: fixed window, simplified", statements.fixed_window_simplified),
    ("A1", "Thm 3.2: fixed window, approximate", statements.fixed_window_approximate),
    ("A1", "Thm 3.2: the same at total δ", statements.fixed_window_approximate_total),
    ("A2", "Cor 3.3: ε₁ of one run", repetition.one_run),
    ("A2", "Cor 3.3: closed bound on ε₁", repetition.one_run_bound),
    ("A2", "Cor 3.3: total δ of all runs", repetition.total_delta),
    ("A2", "Cor 3.3: advanced composition", repetition.repeated),
    ("A2", "Cor 3.3: advanced composition at total δ", repetition.repeated_total),
    ("A2", "Cor 3.3: explicit", repetition.repeated_explicit),
    ("A2", "Cor 3.3: explicit at total δ", repetition.repeated_explicit_total),
    ("A3", "Thm 4.1: averaged", statements.averaged),
    ("A3", "Thm 4.1: averaged at total δ", statements.averaged_total),
    ("A3", "Thm 4.1: averaged, approximate", statements.averaged_approximate),
    ("A3", "Thm 4.1: the same at total δ", statements.averaged_approximate_total),
    ("A4", "Thm 4.3: sliding window", statements.sliding_window),
    ("A4", "Thm 4.3: sliding window, simplified", statements.sliding_window_simplified),
    ("A4", "Thm 4.3: sliding window, approximate", statements.sliding_window_approximate),
    ("A4", "Thm 4.3: the same at total δ", statements.sliding_window_approximate_total),
    ("A5", "Thm 5.1: shuffling", shuffling.shuffling),
    ("A5", "Thm 5.1: shuffling, approximate", shuffling.shuffling_approximate),
    ("A5", "Thm 5.1: the same at total δ", shuffling.shuffling_approximate_total),
    ("A5", "EFMRTT19 Thm 7: shuffling", shuffling.shuffling_earlier),
    ("A6", "Thm A.4: random replacement", replacement.random_replacement),
    ("A6", "Thm A.4: simplified", replacement.random_replacement_simplified),
    ("A6", "Thm A.4: approximate", replacement.random_replacement_approximate),
    ("A6", "Thm A.4: the same at total δ", replacement.random_replacement_approximate_total),
    ("A6", "Thm A.7: swapping", replacement.swapping),
    ("A6", "Thm A.7: swapping, approximate", replacement.swapping_approximate),
    ("A6", "Thm A.7: the same at total δ", replacement.swapping_approximate_total),
    ("A6", "Thm A.5: bins of even loads", replacement.bins),
    ("A6", "Thm A.5: bins, approximate", replacement.bins_approximate),
    ("A6", "Thm A.5: the same at total δ", replacement.bins_approximate_total),
    ("A7", "Lem A.3: rejection rounds T", approximate_to_pure.rounds),
    ("A7", "Lem A.3: largest δ₀", approximate_to_pure.largest_local_delta),
    ("A7", "Lem A.3: smallest δ₁", approximate_to_pure.smallest_distance),
    ("A8", "Lem A.1: likelihood ratio", kov_composition.biased_sampling_ratio),
    ("A8", "Lem A.2: relaxed composition", kov_composition.relaxed_composition),
    ("A8", "Thm A.4: largest step", kov_composition.replacement_epsilons),
    ("A8", "Thm A.4: unrelaxed", kov_composition.replacement_unrelaxed),
    ("A8", "Thm A.7: largest step", kov_composition.swapping_epsilons),
    ("A8", "Thm A.7: unrelaxed", kov_composition.swapping_unrelaxed),
    ("A8", "Thm A.5: largest step", kov_composition.bins_epsilons),
    ("A8", "Thm A.5: unrelaxed", kov_composition.bins_unrelaxed),
    ("A9", "Prop 3.4: dummies, fixed window", occupancy.dummies_fixed),
    ("A9", "Prop 3.4: the bound m/e^c", occupancy.dummies_fixed_bound),
    ("A9", "Prop 4.4: dummies, sliding window", occupancy.dummies_sliding),
    ("A9", "Prop 4.4: the bound (n − m + 1)/e", occupancy.dummies_sliding_bound),
    ("A10", "Lem A.6: norm of the loads", occupancy.load_norm),
    ("A10", "a slot over its capacity", occupancy.overflow_probability),
    ("A11", "Thm 3.5: rate, fixed window", utility.fixed_window_rate),
    ("A11", "Thm 3.5: excess risk", utility.fixed_window_risk),
    ("A11", "Thm 3.5: excess risk, any rate", utility.last_iterate_risk),
    ("A11", "Thm 4.2: E[1/S | S > 0]", occupancy.expected_inverse_load),
    ("A11", "Thm 4.2: rate, averaged", utility.averaged_rate),
    ("A11", "Thm 4.2: excess risk, averaged", utility.averaged_risk),
    ("A11", "Thm 4.2: step, averaged and smooth", utility.averaged_smooth_step),
    ("A11", "Thm 4.2: excess risk, smooth", utility.averaged_smooth_risk),
)


def _row(setting: Setting, id_: str, statement: str, bound: Callable[..., object]) -> SheetRow:
    arguments = {name: _argument(setting, name) for name in inspect.signature(bound).parameters}
    inputs: dict[str, float] = {}
    for name, value in arguments.items():
        if isinstance(value, np.ndarray):
            inputs |= {"clients": setting.clients, "slots": setting.slots}
        else:
            inputs[name] = value
    try:
        found = bound(**arguments)
    except InvalidValue as error:
        return SheetRow(id_, statement, inputs, None, None, str(error))
    if isinstance(found, ApproximateBound):
        return SheetRow(id_, statement, inputs, found.epsilon, found.delta, None)
    return SheetRow(id_, statement, inputs, float(np.max(np.asarray(found))), None, None)


def _argument(setting: Setting, name: str) -> float | np.ndarray[tuple[int], np.dtype[np.int64]]:
    if name == "loads":
        base, more = divmod(setting.clients, setting.slots)
        return base + (np.arange(setting.slots) < more).astype(np.int64)
    if name in _DERIVED:
        return _DERIVED[name](setting)
    fields: dict[str, float] = asdict(setting)
    return fields[name]


def _report_moment(setting: Setting) -> float:
    return setting.dimension * setting.noise_std**2 + setting.lipschitz**2
