"""The steps of the page for users of Flower."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkins.campaign import parse_campaign
from checkins.tasks.loaded_task import model_of

PAGE = Path(__file__).resolve().parents[2] / "docs/coming-from/flower.md"


def block(language: str, containing: str) -> str:
    """The code block of this language that contains a text, without indentation."""
    blocks = re.findall(rf"^( *)```{language}\n(.*?)^ *```", PAGE.read_text("utf-8"), re.M | re.S)
    [found] = [(indent, text) for indent, text in blocks if containing in text]
    return "\n".join(line.removeprefix(found[0]) for line in found[1].splitlines()) + "\n"


def test_the_campaign_of_the_page_has_the_certificate_of_the_page(
    tmp_path: Path, checkins: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "initial_arrays.py").write_text(block("py", "# initial_arrays.py"), "utf-8")
    file = tmp_path / "campaign.toml"
    file.write_text(block("toml", "[task]"), "utf-8")
    outcome = checkins("check", str(file), "--json")
    assert outcome.code == 0, outcome.err
    certificate = json.loads(outcome.out)["certificate"]
    assert certificate["epsilon"] <= 0.8586
    task = parse_campaign(file.read_text("utf-8")).campaign.task
    assert task is not None
    model = model_of(task, folder=tmp_path)
    assert model.shapes == {"0": (3, 4), "1": (3,)}
    sys.modules.pop("initial_arrays", None)
