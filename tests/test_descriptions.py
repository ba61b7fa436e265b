"""Every public description is a frozen value, and has a strategy to be tested with."""

from __future__ import annotations

import dataclasses
import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from checkins.accounting import design, noise_strategy, random_allocation
from checkins.campaign import model, randomizer_config, task
from checkins.protocol import rules
from checkins.randomizers import grid, randomizer
from tests.campaign import strategies as campaign_strategies
from tests.randomizers import strategies as randomizer_strategies
from tests.strategies import DESCRIPTIONS as DESIGNS

MODULES = (
    *(design, noise_strategy, random_allocation, model, randomizer_config, task, rules),
    *(grid, randomizer),
)
RESULTS = {design.NamedRandomizer, rules.Rules, rules.RunSchedule}
"""What is computed, or only a base class, and not described."""

DESCRIPTIONS: dict[type, SearchStrategy[object]] = {
    **DESIGNS,
    **campaign_strategies.DESCRIPTIONS,
    **randomizer_strategies.RANDOMIZERS,
    grid.Grid: st.builds(grid.Grid, st.floats(1e-300, 1e300)),
    rules.SlidingWindow: st.builds(rules.SlidingWindow, st.integers(1, 10**12)),
    rules.FixedWindow: st.builds(
        rules.FixedWindow,
        st.one_of(
            st.integers(1, 10**6).map(lambda slots: range(1, slots + 1)),
            st.sets(st.integers(1, 10**6), min_size=1).map(lambda slots: tuple(sorted(slots))),
        ),
    ),
}


def test_every_description_has_a_strategy() -> None:
    described = {
        found
        for module in MODULES
        for _, found in inspect.getmembers(module, dataclasses.is_dataclass)
        if isinstance(found, type) and found.__module__ == module.__name__
    }
    assert described - RESULTS == set(DESCRIPTIONS)


@pytest.mark.parametrize("description", DESCRIPTIONS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_a_description_is_a_frozen_value(description: type, data: st.DataObject) -> None:
    value = data.draw(DESCRIPTIONS[description])
    assert isinstance(value, description)
    fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}  # type: ignore[arg-type]
    twin = description(**fields)
    assert twin == value
    assert hash(twin) == hash(value)
    assert repr(twin) == repr(value)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, next(iter(fields)), None)
