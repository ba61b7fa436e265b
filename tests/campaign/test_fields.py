"""A key of a campaign file is declared once; reading, sealing, writing and the docs follow."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest

from checkins.campaign import (
    Budget,
    Campaign,
    DataFile,
    InvalidCampaign,
    Optimizer,
    RandomizerConfig,
    Schedule,
    Task,
    campaign_from_canonical,
    campaign_text,
    fields,
    file,
    parse_campaign,
)
from checkins.campaign.field_types import Key, Sealed
from checkins.campaign.file import Template, template_text
from checkins.campaign.toml import TomlSource
from tools import campaign_keys

TEXT = template_text(Template.PATIENTS)
SEAL = parse_campaign(TEXT).campaign.seal


@dataclasses.dataclass(frozen=True, slots=True)
class ScheduleWithGrace(Schedule):
    """A schedule with one attribute more: the code that uses a new key."""

    grace_s: float = 0.0


GRACE = Key(
    section="schedule",
    name="grace_s",
    read=TomlSource.number,
    default=0.0,
    sealed=Sealed.UNLESS_DEFAULT,
    comment="seconds that a late report is waited for",
    accepts="0 or more",
    meaning="seconds after the end of a slot in which its reports are still taken",
    privacy="none",
)


def declare(key: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the two changes that a new key takes: its declaration, and the class that holds it."""
    *others, schedule = fields.SECTIONS
    sections = (*others, replace(schedule, keys=(*schedule.keys, key)))
    monkeypatch.setattr(fields, "SECTIONS", sections)
    monkeypatch.setattr(file, "Schedule", ScheduleWithGrace)


def test_a_new_key_is_one_declaration_and_the_attribute_that_holds_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    declare(GRACE, monkeypatch)
    assert parse_campaign(TEXT).campaign.seal == SEAL  # older files keep their seal

    campaign = parse_campaign(TEXT + "grace_s = 2\n").campaign
    assert campaign.schedule.grace_s == 2.0
    assert campaign.seal != SEAL
    assert '"grace_s":2.0' in campaign.canonical()
    assert campaign_from_canonical(campaign.canonical()) == campaign

    written = campaign_text(campaign)
    assert "grace_s = 2.0                 # seconds that a late report is waited for" in written
    assert parse_campaign(written).campaign == campaign

    with pytest.raises(InvalidCampaign, match=r"^c.toml:41: .schedule. grace_s = .x.: must be"):
        parse_campaign(TEXT + 'grace_s = "x"\n', path="c.toml")
    assert list(campaign_keys.table("schedule"))[-1] == (
        "| `grace_s` | 0 or more | seconds after the end of a slot in which its reports are still"
        " taken | none |"
    )


def test_a_key_that_is_not_sealed_does_not_change_the_seal(monkeypatch: pytest.MonkeyPatch) -> None:
    declare(replace(GRACE, sealed=Sealed.NEVER), monkeypatch)
    campaign = parse_campaign(TEXT + "grace_s = 2\n").campaign
    assert campaign.schedule.grace_s == 2.0
    assert campaign.seal == SEAL
    assert "grace_s = 2.0" in campaign_text(campaign)


def test_every_attribute_of_a_description_has_a_key() -> None:
    parts = {
        "": Campaign,
        "budget": Budget,
        "randomizer": RandomizerConfig,
        "task": Task,
        "task.data": DataFile,
        "task.optimizer": Optimizer,
        "schedule": Schedule,
    }
    attributes = {
        f"{owner}.{field.name}".removeprefix(".")
        for owner, part in parts.items()
        for field in dataclasses.fields(part)
    }
    tables = {"budget", "design", "randomizer", "task", "schedule"}
    assert attributes - tables <= {
        key.attribute for section in fields.SECTIONS for key in section.keys
    }


def test_every_key_is_in_the_section_that_it_names_and_there_once() -> None:
    for section in fields.SECTIONS:
        assert {key.section for key in section.keys} == {section.name}
        assert len({key.name for key in section.keys}) == len(section.keys)
