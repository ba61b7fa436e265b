"""The demo in a short form: few devices, few slots, the same programs."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from checkins.campaign import read_campaign
from checkins.protocol.report import model_from_bytes
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "demo.py"
SHORTER = {
    "slots = 50": "slots = 4",
    "slot_s = 2.0": "slot_s = 0.8",
    "choose_s = 1.0": "choose_s = 0.4",
    "divide_by = 100": "divide_by = 15",
    "epsilon = 1.0": "epsilon = 10.0",
}


@contextmanager
def running(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The short demo; the temporary files of all its processes go below ``folder``."""
    text = (ROOT / "examples" / "demo.toml").read_text(encoding="utf-8")
    for long, short in SHORTER.items():
        assert long in text
        text = text.replace(long, short)
    (folder / "short.toml").write_text(text, encoding="utf-8")
    (folder / "tmp").mkdir()
    command = [sys.executable, "-u", str(DEMO), "--campaign", "short.toml", "--clients", "60"]
    process = subprocess.Popen(
        [*command, *options],
        cwd=folder,
        env=os.environ | {"TMPDIR": str(folder / "tmp"), "COLUMNS": "80", "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.terminate()  # a demo that is killed cannot end what it started


def left_running(folder: Path, port: int = 0) -> list[str]:
    """Command lines of programs that were started with ``folder``, or for the service at a port."""
    found = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True)
    marks = (str(folder / "tmp"), f"http://127.0.0.1:{port} ")
    return [line for line in found.stdout.splitlines() if any(mark in line for mark in marks)]


def is_answered(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def port_in(text: str) -> int:
    found = re.search(r"http://127\.0\.0\.1:(\d+)/", text)
    assert found is not None, text
    return int(found[1])


def test_the_demo_ends_with_a_model_its_epsilon_and_a_report(tmp_path: Path) -> None:
    with running(tmp_path, "--begins-in", "5") as demo:
        output, errors = demo.communicate(timeout=PATIENCE_S)
    assert (demo.returncode, errors) == (0, "")
    assert max(map(len, output.splitlines())) <= 80
    for words in (
        "AUC",
        "at delta = 1e-06",
        "add-remove",
        "of 60 devices reported",
        "the ledger is intact",
        "out/demo/report.html",
        "/take-part",
    ):
        assert words in output
    out = tmp_path / "out" / "demo"
    assert set(os.listdir(out)) == {
        "report.html",
        "model.safetensors",
        "ledger.jsonl",
        "certificate.json",
    }
    certificate = json.loads((out / "certificate.json").read_text(encoding="utf-8"))
    page = (out / "report.html").read_text(encoding="utf-8")
    lines = (out / "ledger.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 6
    assert json.loads(lines[-1])["hash"] in page
    assert f"{certificate['delta']!r}, add-remove" in page
    assert page.count("<svg") == 2
    assert "http" not in page
    _, told = model_from_bytes((out / "model.safetensors").read_bytes())
    assert told["slot"] == "4"
    assert not left_running(tmp_path, port_in(output))
    assert not is_answered(port_in(output))
    assert os.listdir(tmp_path / "tmp") == []


@contextmanager
def taken(port: int) -> Iterator[None]:
    """A port of this machine that a program has: this one, or whoever had it before."""
    with socket.socket() as owner:
        owner.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            owner.bind(("127.0.0.1", port))
            owner.listen()
        except OSError:
            pass  # somebody else has it: as good
        yield


@pytest.mark.usefixtures("default_interrupt")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_beside_another_program_takes_a_free_port_and_when_stopped_leaves_nothing_running(
    tmp_path: Path, number: int
) -> None:
    with taken(8470), running(tmp_path, "--begins-in", "30") as demo:
        assert demo.stdout is not None
        read = ""
        while "devices enrol" not in read:
            line = demo.stdout.readline()
            assert line, read
            read += line
        port = port_in(read)
        assert port != 8470
        assert len(left_running(tmp_path, port)) == 2
        demo.send_signal(number)
        _, errors = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 128 + number
    assert errors == "Stopped; no program of the demo is left running.\n"
    assert not left_running(tmp_path, port)
    assert not is_answered(port)
    assert os.listdir(tmp_path / "tmp") == []


def test_a_coordinator_that_cannot_start_is_told_and_ends_the_demo(tmp_path: Path) -> None:
    with running(tmp_path, "--campaign", "missing.toml") as demo:
        output, errors = demo.communicate(timeout=PATIENCE_S)
    assert (demo.returncode, output) == (1, "")
    assert errors.startswith("demo: checkins serve ended with exit code 2.\ncheckins: ")
    assert not left_running(tmp_path)
    assert os.listdir(tmp_path / "tmp") == []


def test_the_demo_keeps_its_budget_below_an_epsilon_of_one() -> None:
    from checkins.campaign.spending import Spending

    campaign = read_campaign(ROOT / "examples" / "demo.toml").campaign
    spending = Spending(campaign)
    assert spending.affordable_slots == campaign.design.slots
    assert spending.after(campaign.design.slots).epsilon < 1.0
    assert not campaign.missing
