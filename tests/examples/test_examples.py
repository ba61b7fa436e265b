"""The examples run as they stand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.program import run_python

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_an_example_is_short_enough_to_read(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 100


@pytest.mark.slow
def test_epsilon_is_computed_by_every_method_and_plotted(tmp_path: Path) -> None:
    done = run_python(ROOT / "examples" / "epsilon_by_method.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("exact", "paper", "lower bound", "poisson", "shuffling"):
        assert word in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    picture = tmp_path / "out" / "epsilon-by-method.png"
    assert "out/epsilon-by-method.png" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.slow
def test_the_small_campaign_leaves_a_ledger_that_verifies(tmp_path: Path) -> None:
    script = ROOT / "examples" / "small_campaign.py"
    done = run_python(script, tmp_path / "small")
    assert (done.returncode, done.stderr) == (0, "")
    assert "recomputed from the ledger" in done.stdout
    words = ("verify", tmp_path / "small", "--closed", "--json")
    verified = run_python("-m", "checkins", *words)
    assert verified.returncode == 0, verified.stderr
    assert json.loads(verified.stdout)["within_budget"] is True
