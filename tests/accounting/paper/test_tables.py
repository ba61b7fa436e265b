"""Table 1, Figure 2 and the sheet of all statements."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from checkins.accounting.paper import tables
from checkins.errors import InvalidValue

SETTING = tables.Setting(
    clients=10_000,
    slots=1000,
    participation=0.1,
    capacity=30,
    local_epsilon=0.05,
    local_delta=1e-20,
    delta=1e-6,
    lipschitz=1.0,
    smoothness=1.0,
    diameter=1.0,
    dimension=10,
    noise_std=0.1,
)


def test_the_table_has_the_papers_five_rows_in_order():
    rows = tables.table1(clients=10**6, slots=10**4, local_epsilon=2.0, delta=1e-6)
    assert [row.order for row in rows] == [
        "ε₀",
        "O(e^ε₀/√n)",
        "O(e^3ε₀/√n)",
        "O(e^2.5ε₀/√n)",
        "O(e^1.5ε₀/√n)",
    ]
    none, subsampling, earlier, shuffling, checkins = (row.epsilon for row in rows)
    assert none == 2.0
    assert subsampling < checkins < shuffling < earlier < none * 3


def test_the_orders_of_growth_show_in_the_numbers():
    few = tables.table1(clients=10**6, slots=10**4, local_epsilon=1.0, delta=1e-6)
    many = tables.table1(clients=10**8, slots=10**4, local_epsilon=1.0, delta=1e-6)
    for small, large in zip(few[1:], many[1:], strict=True):
        assert 5.0 < small.epsilon / large.epsilon < 30.0


def test_a_table_row_that_overflows_is_infinite():
    rows = tables.table1(clients=1000, slots=10, local_epsilon=700.0, delta=1e-6)
    assert rows[0].epsilon == 700.0
    assert all(math.isinf(row.epsilon) for row in rows[2:])


def test_the_table_refuses_more_slots_than_clients():
    with pytest.raises(InvalidValue, match="slots = 11"):
        tables.table1(clients=10, slots=11, local_epsilon=1.0, delta=1e-6)


def test_the_figure_shows_an_order_of_magnitude_fewer_users():
    """The caption: our n = 10³ and 10⁴ look like the earlier n = 10⁴ and 10⁵."""
    curves = {c.clients: c for c in tables.figure2(local_epsilons=np.linspace(0.1, 1.0, 10))}
    assert set(curves) == {10**3, 10**4, 10**5, 10**6}
    for clients in (10**3, 10**4):
        ratio = curves[clients].this_paper / curves[10 * clients].earlier
        assert np.all((ratio > 0.4) & (ratio < 2.5))


def test_the_figures_curves_rise_with_local_epsilon_and_fall_with_clients():
    curves = tables.figure2(local_epsilons=[0.5, 1.0, 2.0])
    for curve in curves:
        assert np.all(np.diff(curve.this_paper) > 0.0)
        assert np.all(curve.this_paper <= curve.earlier)
    for few, many in itertools.pairwise(curves):
        assert np.all(many.this_paper < few.this_paper)


def test_the_figure_needs_a_grid():
    with pytest.raises(InvalidValue, match="local_epsilons"):
        tables.figure2(local_epsilons=[])


def test_the_sheet_evaluates_every_statement():
    rows = tables.theorem_sheet(SETTING)
    assert {row.id for row in rows} == {f"A{number}" for number in range(1, 12)}
    assert [row.statement for row in rows if row.refusal] == []
    assert all(row.value is not None and row.value >= 0.0 for row in rows)
    approximate = [row for row in rows if row.statement.endswith(": ε, local δ > 0")]
    assert len(approximate) == 7
    assert all(row.total_delta > row.inputs["delta"] for row in approximate)


def test_a_statement_that_does_not_apply_is_a_row_with_its_refusal():
    rows = tables.theorem_sheet(replace(SETTING, local_epsilon=3.0, participation=0.01))
    refused = {row.statement: row.refusal for row in rows if row.refusal}
    assert "local_epsilon = 3.0" in refused["Thm 3.2 fixed window: ε, simple formula"]
    assert "local_delta = 1e-20" in refused["Thm 3.2 fixed window: ε, local δ > 0, total δ fixed"]
    assert "must exceed log 2" in refused["Thm 3.5 fixed window: excess risk"]
    assert all(row.value is None for row in rows if row.refusal)


def test_every_row_names_the_inputs_it_used():
    rows = tables.theorem_sheet(SETTING)
    assert all(row.inputs for row in rows)
    bins = next(row for row in rows if "bins" in row.statement)
    assert bins.inputs["clients"] == 10_000
