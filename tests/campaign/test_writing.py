"""A campaign that is written reads back as itself."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given

from checkins.campaign import Campaign, campaign_text, parse_campaign
from checkins.campaign.file import LONGEST_LINE, Template, template_text
from tests.campaign.strategies import campaigns

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@given(campaign=campaigns())
def test_what_is_written_reads_back_as_the_same_campaign(campaign: Campaign) -> None:
    text = campaign_text(campaign, head=("A line.", "", "Another = [line]"))
    assert parse_campaign(text).campaign == campaign


@given(campaign=campaigns())
def test_what_is_written_is_toml_for_other_readers_too(campaign: Campaign) -> None:
    values = tomllib.loads(campaign_text(campaign))
    assert values["name"] == campaign.name
    assert values["budget"]["delta"] == campaign.budget.delta


@pytest.mark.parametrize("template", Template)
def test_a_template_is_complete_and_readable(template: Template) -> None:
    text = template_text(template)
    assert parse_campaign(text).campaign.missing == ()
    assert max(len(line) for line in text.splitlines()) <= LONGEST_LINE
    assert all(line == line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize("template", Template)
def test_every_value_that_privacy_depends_on_says_that_it_must_be_chosen(
    template: Template,
) -> None:
    lines = template_text(template).splitlines()
    for key in ("epsilon", "delta", "adjacency", "slots", "participation", "clip"):
        (line,) = (line for line in lines if line.startswith(f"{key} = "))
        assert "# (choose) " in line, line
    noise = [line for line in lines if line.startswith(("noise_multiplier", "local_epsilon"))]
    assert len(noise) == 1
    assert "# (choose) " in noise[0]


def test_the_example_is_the_template() -> None:
    text = (EXAMPLES / "patients.toml").read_text(encoding="utf-8")
    assert text == template_text(Template.PATIENTS), "checkins init --out examples/patients.toml"
