"""The trainer of docs/devices.md takes part in a real campaign."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkins.campaign.file import Template, template_text
from checkins.client import CampaignRefused, CampaignView, Outcome, fetch_campaign
from tests.docs.test_code_blocks import ROOT, blocks
from tests.support.coordinator import serving

PAGE = ROOT / "docs" / "devices.md"
START_S = 8


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A coordinator with one slot, in which there is time on a slow machine."""
    folder = tmp_path_factory.mktemp("service")
    text = template_text(Template.PATIENTS)
    for before, after in {
        "slots = 200 ": "slots = 1 ",
        "epsilon = 0.5 ": "epsilon = 50.0 ",
        "noise_multiplier = 0.1 ": "noise_multiplier = 4.0 ",
        "slot_s = 1.0": "slot_s = 30.0",
        "choose_s = 0.3": "choose_s = 5.0",
    }.items():
        assert before in text, before
        text = text.replace(before, after)
    with serving(folder, text, start=f"+{START_S}", real=False) as served:
        yield served.url


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the page's code defines."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for line, code in blocks(PAGE, "python"):
        exec(compile("\n" * (line - 1) + code, str(PAGE), "exec"), names)
    return names


def device_of(page: dict[str, Any], url: str, view: CampaignView) -> Any:
    (size,) = view.shapes["weights"]
    rows = page["MyRows"](np.linspace(-1.0, 1.0, 2 * size).reshape(2, size), [0, 1])
    return replace(page["device"], url=url, campaign=view.id, trainer=rows)


@pytest.mark.slow
def test_the_trainer_of_the_page_takes_part(page: dict[str, Any], url: str) -> None:
    view = fetch_campaign(url)
    device = device_of(page, url, view)
    with pytest.raises(CampaignRefused, match="more than I agree to"):
        device.run()  # the page accepts an epsilon of 1 at most, and this campaign may spend 50
    assert replace(device, accept=None).run() is Outcome.REPORTED
    kept = Path(page["device"].state) / f"{view.id}.json"
    assert json.loads(kept.read_text()) == {"schema": 1, "campaign": view.id, "ended": "REPORTED"}


def test_every_outcome_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for outcome in Outcome:
        assert f"| `{outcome.name}` | {outcome}" in text


def test_every_public_name_of_the_sdk_is_on_the_page() -> None:
    import checkins.client

    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in checkins.client.__all__ if f"`{name}" not in text] == []


def test_every_argument_of_a_participant_is_on_the_page() -> None:
    from dataclasses import fields

    from checkins.client import Participant

    text = PAGE.read_text(encoding="utf-8")
    assert [field.name for field in fields(Participant) if f"`{field.name}`" not in text] == []
