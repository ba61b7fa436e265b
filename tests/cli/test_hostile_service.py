"""`verify` and `export` at a hostile service: bounded, refused in one line, no file is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from checkins.cli import remote
from tests.support.hostile_service import ATTACKS, LARGE, Attack, hostile

RUN = "0123456789ab-1"
VIEW = json.dumps({"tensors": [{"name": "w", "shape": [3]}], "seal": "x", "population_id": "p"})


NOT_JSON = ("endless", "announced")
"""As a ledger this is one line, which may be long, and is refused for what it says."""


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
@pytest.mark.parametrize(
    ("words", "honest"),
    [
        ("verify {url}", {}),
        ("verify {url}/campaigns/{run}", {}),
        ("export {url}/campaigns/{run} --out {folder}/m.safetensors", {}),
        (
            "export {url}/campaigns/{run} --out {folder}/m.safetensors",
            {f"/campaigns/{RUN}": VIEW.encode()},
        ),
    ],
    ids=["listing", "ledger", "view", "model"],
)
def test_commands_refuse_an_answer_beyond_its_limits(
    checkins: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    attack: Attack,
    words: str,
    honest: dict[str, bytes],
) -> None:
    if attack.__name__ not in LARGE:
        monkeypatch.setattr(remote, "TIMEOUT_S", 0.3)
    with hostile(attack, honest) as url:
        done = checkins(*words.format(url=url, run=RUN, folder=tmp_path).split())
    assert done.code in (1, 2), done
    assert done.out == ""
    assert done.err.count("\n") == 1
    assert "its response" in done.err or attack.__name__ in NOT_JSON, done.err
    assert list(tmp_path.iterdir()) == []
