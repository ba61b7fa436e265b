"""`init` writes a file that `check` accepts, and never writes over another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from checkins.campaign import parse_campaign, read_campaign
from checkins.campaign.file import Template, template_text

ROOT = Path(__file__).resolve().parents[2]


def test_without_options_it_writes_campaign_toml_here(checkins, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = checkins("init")
    assert (outcome.code, outcome.err) == (0, "")
    assert "checkins check campaign.toml" in outcome.out
    assert read_campaign(tmp_path / "campaign.toml").campaign.name == "patients"


@pytest.mark.parametrize("template", Template)
def test_a_dash_prints_the_file_and_nothing_else(checkins, template: Template) -> None:
    outcome = checkins("init", "--task", str(template), "--out", "-")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == template_text(template)


def test_the_example_is_what_it_writes(checkins, tmp_path: Path) -> None:
    path = tmp_path / "new.toml"
    assert checkins("init", "--task", "patients", "--out", str(path)).code == 0
    assert path.read_bytes() == (ROOT / "examples" / "patients.toml").read_bytes()


def test_a_template_for_a_file_marks_its_columns(checkins) -> None:
    lines = checkins("init", "--task", "file", "--out", "-").out.splitlines()
    for key in ("file", "client_column", "label_column", "features", "[task.data.ranges]"):
        (line,) = (line for line in lines if line.startswith(key))
        assert "(choose)" in line
    assert any("divide_by: the expected number of reports per slot" in line for line in lines)


def test_an_existing_file_is_kept_without_force(checkins, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("mine")
    outcome = checkins("init", "--out", str(path))
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.endswith("mine.toml: exists already; --force overwrites it\n")
    assert path.read_text() == "mine"
    assert checkins("init", "--out", str(path), "--force").code == 0
    assert path.read_text() == template_text(Template.PATIENTS)


def test_json_tells_where_it_is_and_its_seal(checkins, tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    outcome = checkins("init", "--task", "file", "--out", str(path), "--json")
    found = json.loads(outcome.out)
    assert (found["task"], found["path"]) == ("file", str(path))
    assert found["text"] == path.read_text()
    assert found["seal"] == parse_campaign(found["text"]).campaign.seal
    assert json.loads(checkins("init --out - --json").out)["path"] is None


@pytest.mark.parametrize(
    ("words", "starts"),
    [
        (["--task", "mnist"], "--task mnist: must be patients, fashion-mnist, synthetic or file"),
        (["--task", "file", "--task", "file"], "--task: was given more than once"),
        (["--out", "."], "--out .: is a folder"),
        (["--out", "a\0b"], "--out a\\x00b: is not the name of a file"),
    ],
)
def test_a_mistake_is_one_line(checkins, tmp_path, monkeypatch, words, starts) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = checkins("init", *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"checkins: {starts}")
    assert outcome.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_does_not_exist_is_named(checkins, tmp_path: Path) -> None:
    outcome = checkins("init", "--out", str(tmp_path / "none" / "c.toml"))
    assert (outcome.code, outcome.out) == (2, "")
    assert "there is no folder" in outcome.err
