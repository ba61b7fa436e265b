"""The paper's Table 1 and Figure 2, and all its statements at one setting, as plain data.

The paper is [BKMTT20], "Privacy Amplification via Random Check-Ins", arXiv:2007.06605v2.
Here n is the number of clients, m the number of slots, and ε₀ and δ₀ are the epsilon and delta of
one report.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from checkins import validate
from checkins.accounting.paper import amplification, kov_composition, occupancy, statements, utility
from checkins.accounting.paper.amplification import (
    Amplification,
    ApproximateBound,
    known_slot_epsilon,
)
from checkins.errors import InvalidValue

FIGURE_DELTA = 1e-6
FIGURE_CLIENTS = (10**3, 10**4, 10**5, 10**6)


@dataclass(frozen=True, slots=True)
class TableRow:
    """A source of amplification, the order of growth that the paper states, and a value of ε."""

    source: str
    order: str
    epsilon: float
    statement: str


def table1(*, clients: int, slots: int, local_epsilon: float, delta: float) -> tuple[TableRow, ...]:
    """Return ε after one epoch of n updates on n clients, for five sources of amplification.

    Theorem:     [BKMTT20, Table 1], arXiv:2007.06605v2. The row of check-ins is for n/m runs of m
                 slots.
    Neighbours:  replace-one.
    Rounding:    up. A bound above ε₀ is listed too, although it is useless: ε₀ always holds.

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
            "[BBG18, Thm 2] for each of n steps, composed by [KOV17, Thm 3.5]",
        ),
        TableRow(
            "shuffling, earlier",
            "O(e^3ε₀/√n)",
            statements.shuffling_earlier(clients=clients, **given),
            "[EFMRTT19, Thm 7]",
        ),
        TableRow(
            "shuffling, this paper",
            "O(e^2.5ε₀/√n)",
            statements.shuffling(clients=clients).epsilon(**given),
            "[BKMTT20, Thm 5.1]",
        ),
        TableRow(
            "random check-ins, fixed window",
            "O(e^1.5ε₀/√n)",
            statements.repeated_total(
                clients=clients, slots=slots, local_epsilon=local_epsilon, delta=delta
            ),
            f"[BKMTT20, Cor 3.3] with {slots:,} slots per run; δ is for all runs together",
        ),
    )


def subsampling(*, clients: int, local_epsilon: float, delta: float) -> float:
    """Return ε of n steps, each on one client drawn uniformly from n clients.

    Every step has εᵢ = log(1 + (e^ε₀ − 1)/n).

    Theorem:     [BBG18, Thm 2], arXiv:1807.01647v2; [KOV17, Thm 3.5], arXiv:1311.0776v4.
    Neighbours:  replace-one.
    Rounding:    up.

    >>> round(subsampling(clients=100_000, local_epsilon=2.0, delta=1e-6), 4)
    0.0902
    """
    validate.count(clients=clients)
    step = known_slot_epsilon(
        local_epsilon=local_epsilon, local_delta=0.0, delta=delta, participation=1.0 / clients
    )
    return kov_composition.homogeneous_composition(epsilon=step, steps=clients, delta=delta)


@dataclass(frozen=True, slots=True)
class Curve:
    """ε after shuffling ``clients`` reports as a function of ε₀, by the paper and by [EFMRTT19]."""

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
    """Return the curves of Figure 2: ε of shuffling. A bound above ε₀ is useless.

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

    def evaluate(bound: Callable[..., float]) -> NDArray[np.float64]:
        return np.array([bound(local_epsilon=float(e), delta=delta) for e in grid])

    return tuple(
        Curve(
            clients=count,
            local_epsilons=grid,
            this_paper=evaluate(statements.shuffling(clients=count).epsilon),
            earlier=evaluate(partial(statements.shuffling_earlier, clients=count)),
        )
        for count in clients
    )


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
    """One statement at one setting.

    ``refusal`` is the error message if the statement does not apply, and then ``value`` is None.
    ``total_delta`` is None unless it differs from the setting's δ.
    """

    id: str
    statement: str
    inputs: dict[str, float]
    value: float | None
    total_delta: float | None
    refusal: str | None


def theorem_sheet(setting: Setting) -> tuple[SheetRow, ...]:
    """Evaluate every statement of the paper at one setting.

    A statement that does not apply gives a row with a refusal instead of an error.

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
    ('A1', 'Thm 3.2 fixed window: ε', 0.0138)
    """
    return tuple(_row(setting, *entry) for entry in _STATEMENTS)


_DERIVED_ARGUMENTS: dict[str, Callable[[Setting], float]] = {
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
"""How each argument that is not a field of a setting is computed from the setting."""

_PURE, _SIMPLE = Amplification.epsilon, Amplification.simplified
_LOCAL_DELTA, _TOTAL = Amplification.approximate, Amplification.epsilon_at_total_delta
_AVERAGED_TOTAL = partial(statements.averaged_total, local_delta=0.0)
_EXPLICIT_TOTAL = partial(statements.repeated_total, form=statements.repeated_explicit)
_STEPS, _COMPOSED = kov_composition.Steps.epsilons, kov_composition.Steps.composed
_Statement = (
    tuple[str, str, Callable[..., object]]
    | tuple[str, str, Callable[..., object], Callable[..., object]]
)
"""For each row: id, statement, function and, if it returns an object, the method to call on it."""

_STATEMENTS: tuple[_Statement, ...] = (
    ("A1", "Thm 3.2 fixed window: ε", statements.fixed_window, _PURE),
    ("A1", "Thm 3.2 fixed window: ε, simple formula", statements.fixed_window, _SIMPLE),
    ("A1", "Thm 3.2 fixed window: ε, local δ > 0", statements.fixed_window, _LOCAL_DELTA),
    ("A1", "Thm 3.2 fixed window: ε, local δ > 0, total δ fixed", statements.fixed_window, _TOTAL),
    ("A2", "Cor 3.3 repeated runs: ε of one run", statements.one_run),
    ("A2", "Cor 3.3 repeated runs: upper bound on ε of one run", statements.one_run_bound),
    ("A2", "Cor 3.3 repeated runs: total δ", statements.total_delta),
    ("A2", "Cor 3.3 repeated runs: ε", statements.repeated),
    ("A2", "Cor 3.3 repeated runs: ε, total δ fixed", statements.repeated_total),
    ("A2", "Cor 3.3 repeated runs: ε, closed form", statements.repeated_explicit),
    ("A2", "Cor 3.3 repeated runs: ε, closed form, total δ fixed", _EXPLICIT_TOTAL),
    ("A3", "Thm 4.1 averaged: ε", statements.averaged, _PURE),
    ("A3", "Thm 4.1 averaged: ε, total δ fixed", _AVERAGED_TOTAL),
    ("A3", "Thm 4.1 averaged: ε, local δ > 0", statements.averaged, _LOCAL_DELTA),
    ("A3", "Thm 4.1 averaged: ε, local δ > 0, total δ fixed", statements.averaged_total),
    ("A4", "Thm 4.3 sliding window: ε", statements.sliding_window, _PURE),
    ("A4", "Thm 4.3 sliding window: ε, simple formula", statements.sliding_window, _SIMPLE),
    ("A4", "Thm 4.3 sliding window: ε, local δ > 0", statements.sliding_window, _LOCAL_DELTA),
    ("A4", "Thm 4.3 sliding: ε, local δ > 0, total δ fixed", statements.sliding_window, _TOTAL),
    ("A5", "Thm 5.1 shuffling: ε", statements.shuffling, _PURE),
    ("A5", "Thm 5.1 shuffling: ε, local δ > 0", statements.shuffling, _LOCAL_DELTA),
    ("A5", "Thm 5.1 shuffling: ε, local δ > 0, total δ fixed", statements.shuffling, _TOTAL),
    ("A5", "[EFMRTT19, Thm 7] shuffling: ε", statements.shuffling_earlier),
    ("A6", "Thm A.4 random replacement: ε", statements.replacement, _PURE),
    ("A6", "Thm A.4 random replacement: ε, simple formula", statements.replacement, _SIMPLE),
    ("A6", "Thm A.4 random replacement: ε, local δ > 0", statements.replacement, _LOCAL_DELTA),
    ("A6", "Thm A.4 replacement: ε, local δ > 0, total δ fixed", statements.replacement, _TOTAL),
    ("A6", "Thm A.7 swapping: ε", statements.swapping, _PURE),
    ("A6", "Thm A.7 swapping: ε, local δ > 0", statements.swapping, _LOCAL_DELTA),
    ("A6", "Thm A.7 swapping: ε, local δ > 0, total δ fixed", statements.swapping, _TOTAL),
    ("A6", "Thm A.5 balls in bins, equal loads: ε", statements.bins, _PURE),
    ("A6", "Thm A.5 balls in bins: ε, local δ > 0", statements.bins, _LOCAL_DELTA),
    ("A6", "Thm A.5 balls in bins: ε, local δ > 0, total δ fixed", statements.bins, _TOTAL),
    ("A7", "Lem A.3 rejection sampling: number of rounds", amplification.rejection_rounds),
    ("A7", "Lem A.3: largest allowed local δ", amplification.largest_local_delta),
    ("A7", "Lem A.3: smallest distance δ₁ to a pure randomizer", amplification.smallest_distance),
    ("A8", "Lem A.1 biased sampling: likelihood ratio", kov_composition.biased_sampling_ratio),
    ("A8", "Lem A.2 composition of steps, closed form: ε", kov_composition.relaxed_composition),
    ("A8", "Thm A.4 replacement: largest ε of a step", kov_composition.replacement_steps, _STEPS),
    (
        "A8",
        "Thm A.4 replacement: ε, steps summed one by one",
        kov_composition.replacement_steps,
        _COMPOSED,
    ),
    ("A8", "Thm A.7 swapping: largest ε of a step", kov_composition.swapping_steps, _STEPS),
    (
        "A8",
        "Thm A.7 swapping: ε, steps summed one by one",
        kov_composition.swapping_steps,
        _COMPOSED,
    ),
    ("A8", "Thm A.5 balls in bins: largest ε of a step", kov_composition.bins_epsilons),
    (
        "A8",
        "Thm A.5 balls in bins: ε, steps summed one by one",
        kov_composition.bins_epsilons,
        kov_composition.composition,
    ),
    ("A9", "Prop 3.4 fixed window: expected dummies", occupancy.dummies_fixed),
    ("A9", "Prop 3.4 fixed window: bound m/e^c on dummies", occupancy.dummies_fixed_bound),
    ("A9", "Prop 4.4 sliding window: expected dummies", occupancy.dummies_sliding),
    ("A9", "Prop 4.4 sliding window: bound (n − m + 1)/e", occupancy.dummies_sliding_bound),
    ("A10", "Lem A.6: 2-norm of the numbers of clients per slot", occupancy.load_norm),
    ("A10", "probability that a slot exceeds its capacity", occupancy.overflow_probability),
    ("A11", "Thm 3.5 fixed window: learning rate", utility.fixed_window_rate),
    ("A11", "Thm 3.5 fixed window: excess risk", utility.fixed_window_risk),
    ("A11", "Thm 3.5 fixed window: excess risk with empty slots", utility.last_iterate_risk),
    (
        "A11",
        "Thm 4.2 averaged: E[1/S | S > 0], S clients per slot",
        occupancy.expected_inverse_load,
    ),
    ("A11", "Thm 4.2 averaged: learning rate", utility.averaged_rate),
    ("A11", "Thm 4.2 averaged: excess risk", utility.averaged_risk),
    ("A11", "Thm 4.2 averaged, smooth loss: learning rate", utility.averaged_smooth_step),
    ("A11", "Thm 4.2 averaged, smooth loss: excess risk", utility.averaged_smooth_risk),
)


def _row(
    setting: Setting,
    id_: str,
    statement: str,
    bound: Callable[..., object],
    method: Callable[..., object] | None = None,
) -> SheetRow:
    required = [
        parameter
        for parameter in inspect.signature(bound).parameters.values()
        if parameter.default is parameter.empty
    ]
    bound_arguments = {parameter.name: _argument(setting, parameter.name) for parameter in required}
    method_parameters = [] if method is None else list(inspect.signature(method).parameters)[1:]
    method_arguments = {name: _argument(setting, name) for name in method_parameters}
    arguments = {**method_arguments, **bound_arguments}
    if "local_epsilon" in bound_arguments and method_arguments:  # list local_epsilon first
        arguments = {"local_epsilon": bound_arguments["local_epsilon"], **arguments}
    inputs: dict[str, float] = {}
    for name, value in arguments.items():
        if isinstance(value, np.ndarray):
            inputs |= {"clients": setting.clients, "slots": setting.slots}
        else:
            inputs[name] = value
    try:
        result = (
            bound(**bound_arguments)
            if method is None
            else method(bound(**bound_arguments), **method_arguments)
        )
    except InvalidValue as error:
        return SheetRow(id_, statement, inputs, None, None, str(error))
    if isinstance(result, ApproximateBound):
        return SheetRow(id_, statement, inputs, result.epsilon, result.delta, None)
    return SheetRow(id_, statement, inputs, float(np.max(np.asarray(result))), None, None)


def _argument(setting: Setting, name: str) -> float | np.ndarray[tuple[int], np.dtype[np.int64]]:
    if name == "loads":
        base, more = divmod(setting.clients, setting.slots)
        return base + (np.arange(setting.slots) < more).astype(np.int64)
    if name in _DERIVED_ARGUMENTS:
        return _DERIVED_ARGUMENTS[name](setting)
    fields: dict[str, float] = asdict(setting)
    return fields[name]


def _report_moment(setting: Setting) -> float:
    return setting.dimension * setting.noise_std**2 + setting.lipschitz**2
