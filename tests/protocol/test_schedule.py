"""Slots follow each other without a gap, over all runs of a campaign."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.campaign import parse_campaign
from checkins.campaign.file import Template, template_text
from checkins.errors import InvalidValue
from checkins.protocol.rules import RELEASE_DELAY_S, RunSchedule

CAMPAIGN = replace(parse_campaign(template_text(Template.PATIENTS)).campaign, repeats=3)
SLOT_S, CHOOSE_S, SLOTS = 1.0, 0.3, 200

runs = st.integers(1, 3).map(lambda run: RunSchedule.of(CAMPAIGN, run))


@given(run=runs, slot=st.integers(1, SLOTS))
def test_a_slot_collects_then_chooses_then_ends_where_the_next_begins(
    run: RunSchedule, slot: int
) -> None:
    assert run.begins(slot) < run.chooses(slot) < run.ends(slot) < run.releases(slot)
    assert run.ends(slot) == run.begins(slot + 1)
    assert run.releases(slot) - run.ends(slot) <= RELEASE_DELAY_S


@given(run=runs, slot=st.integers(1, SLOTS), share=st.floats(0.01, 0.99))
def test_a_moment_in_a_slot_belongs_to_that_slot(run: RunSchedule, slot: int, share: float) -> None:
    moment = run.begins(slot) + share * SLOT_S
    if abs(share - CHOOSE_S / SLOT_S) > 1e-3:
        assert run.first_open_slot(moment) == (slot if share < CHOOSE_S / SLOT_S else slot + 1)


def test_the_first_slot_is_open_before_a_run_and_the_next_run_follows_without_a_gap() -> None:
    run = RunSchedule.of(CAMPAIGN, 2)
    assert run.first_open_slot(run.begins(1) - 100.0) == 1
    assert RunSchedule.of(CAMPAIGN, 3).begins(1) == run.ends(SLOTS)


def test_a_campaign_without_a_schedule_is_refused() -> None:
    with pytest.raises(InvalidValue, match="schedule"):
        RunSchedule.of(replace(CAMPAIGN, schedule=None))
