"""The files of deploy/ fit the program: metrics, options, units and services."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from checkins.cli.main import PROGRAM
from checkins.service.metrics import Metrics

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted(path.name for pattern in ("*.service", "*.timer") for path in DEPLOY.glob(pattern))
SUFFIXES = {"Histogram": ("_bucket", "_sum", "_count")}


def rules() -> list[dict[str, Any]]:
    content = yaml.safe_load((DEPLOY / "alerts.yml").read_text(encoding="utf-8"))
    return [rule for group in content["groups"] for rule in group["rules"]]


def metric_labels() -> dict[str, set[str]]:
    """The labels of each time series that a coordinator exports, by its name."""
    found = {}
    for kind, name, labels, _ in Metrics().descriptions:
        for suffix in SUFFIXES.get(kind.__name__, ("",)):
            found[name + suffix] = {*labels, *({"le"} if suffix == "_bucket" else ())}
    return found


def test_every_metric_in_a_rule_is_one_of_the_coordinator() -> None:
    known = metric_labels()
    used = {name for rule in rules() for name in re.findall(r"checkins_\w+", rule["expr"])}
    assert used - set(known) == set()
    assert len(used) >= 7


def test_every_label_in_a_text_is_one_of_the_metric() -> None:
    known = metric_labels()
    for rule in rules():
        names = re.findall(r"checkins_\w+", rule["expr"])
        allowed = {"instance", "job"}.union(*(known[name] for name in names))
        for text in rule["annotations"].values():
            assert set(re.findall(r"\$labels\.(\w+)", text)) <= allowed, rule["alert"]


def test_what_an_operator_must_notice_has_a_rule() -> None:
    text = " ".join(rule["expr"] for rule in rules())
    for name in ("slot_late_seconds", "task_restarts_total", "clock_off_seconds", "free_bytes"):
        assert name in text
    assert all(rule["annotations"].keys() == {"summary", "action"} for rule in rules())


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_the_rules_fire_when_they_should() -> None:
    for command in (("check", "rules", "alerts.yml"), ("test", "rules", "alerts.test.yml")):
        done = subprocess.run(["promtool", *command], cwd=DEPLOY, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for name in UNITS:
        text = (DEPLOY / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace("/opt/checkins/bin/checkins", sys.executable))
    command = ["systemd-analyze", "verify", *(str(tmp_path / name) for name in UNITS)]
    done = subprocess.run(command, capture_output=True, text=True)
    ours = [line for line in done.stderr.splitlines() if str(tmp_path) in line]
    assert (done.returncode, ours) == (0, []), done.stderr


def command_in(file: str) -> tuple[str, set[str]]:
    """The command of checkins in a unit, and the options that it is given."""
    lines = (DEPLOY / file).read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#"))
    [(name, rest)] = re.findall(r"bin/checkins ([a-z-]+)(.*?)(?:\n[A-Z]|;)", text, re.DOTALL)
    return name, set(re.findall(r"(?<!\S)(--[a-z-]+)", rest))


@pytest.mark.parametrize("file", ["checkins.service", "checkins-backup.service"])
def test_every_option_in_a_unit_exists(file: str) -> None:
    name, used = command_in(file)
    command = PROGRAM.get_command(None, name)  # type: ignore[arg-type]
    assert command is not None
    assert len(used) >= 2
    assert used - {option for each in command.params for option in each.opts} == set()


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    return found


def test_every_option_of_the_coordinator_in_the_compose_file_exists() -> None:
    name, *words = compose()["services"]["coordinator"]["command"]
    command = PROGRAM.get_command(None, name)  # type: ignore[arg-type]
    assert command is not None
    used = {word.partition("=")[0] for word in words}
    assert used - {option for each in command.params for option in each.opts} == set()
    assert "--plain-http" not in used


def test_what_the_compose_file_names_is_there() -> None:
    found = compose()
    for service in found["services"].values():
        for secret in service.get("secrets", []):
            assert secret in found["secrets"]
        for config in service.get("configs", []):
            assert (DEPLOY / found["configs"][config["source"]]["file"]).is_file()
        if "build" in service:
            assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    assert all(each["file"].startswith("./secrets/") for each in found["secrets"].values())
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert "deploy/secrets/" in ignored


def test_every_alert_is_on_the_page() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(Checkins\w+)`", page, re.MULTILINE) == [
        rule["alert"] for rule in rules()
    ]


def test_every_command_on_the_page_and_in_the_script_has_the_options_that_it_is_given() -> None:
    text = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    text += (DEPLOY / "walkthrough.sh").read_text(encoding="utf-8")
    joined = text.replace("\\\n", " ")
    commands = re.findall(r"(?:^|[ (])checkins ([a-z-]+) ([^\n|)]*)", joined, re.MULTILINE)
    checked = 0
    for name, rest in commands:
        command = PROGRAM.get_command(None, name)  # type: ignore[arg-type]
        if command is None:
            continue
        known = {option for each in command.params for option in each.opts}
        used = set(re.findall(r"(?<!\S)(--[a-z-]+)", rest.partition("#")[0]))
        assert used - known == set(), name
        checked += 1
    assert checked >= 12


def test_the_progress_file_is_never_in_the_folder_of_the_store() -> None:
    """Whoever copies or restores that folder would copy both, and hide a rollback."""
    unit = (DEPLOY / "checkins.service").read_text(encoding="utf-8")
    store = re.search(r"sqlite:///(\S+)", unit)
    progress = re.search(r"--progress-file (\S+)", unit)
    assert store is not None
    assert progress is not None
    assert Path(store[1]).parent != Path(progress[1]).parent
