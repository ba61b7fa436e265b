"""Certificates, seals, ledgers, reports and a simulation are those that were recorded.

Where floating-point functions have the results of the machine that recorded, they are equal bit for
bit. Elsewhere, the last bits differ, searches may stop at another grid, and numbers are compared to
four digits.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from checkins.randomizers import device
from tests.golden import record
from tests.golden.questions import questions

pytestmark = pytest.mark.slow

RECORDED: dict[str, Any] = json.loads((record.HERE / "recorded.json").read_text(encoding="utf-8"))
SAME_ARITHMETIC = RECORDED["arithmetic"] == record.arithmetic()
EVERY = 1 if os.environ.get("CHECKINS_SOAK") else 8
"""Certificates recomputed: one of eight, or all of them in ``make soak``."""


def agree(found: object, recorded: object) -> bool:
    """Compare exactly where floating-point functions are those of the recording, and else to four
    digits."""
    if isinstance(recorded, dict) and isinstance(found, dict):
        return found.keys() == recorded.keys() and all(
            agree(found[key], recorded[key]) for key in recorded
        )
    if isinstance(recorded, list) and isinstance(found, list | tuple):
        return len(found) == len(recorded) and all(map(agree, found, recorded))
    if SAME_ARITHMETIC or not isinstance(recorded, float):
        return found == recorded
    return found == pytest.approx(recorded, rel=1e-4)


def test_at_least_three_hundred_certificates_are_recorded_and_each_question_once() -> None:
    assert list(RECORDED["certificates"]) == list(questions())
    certified = [c for c in RECORDED["certificates"].values() if "refused" not in c]
    assert len(certified) >= 300


@pytest.mark.parametrize("question", questions()[::EVERY])
def test_a_certificate_is_the_recorded_one(question: str) -> None:
    found = json.loads(json.dumps(record.certificate(question)))
    assert agree(found, RECORDED["certificates"][question]), found


def test_seals_are_the_recorded_ones() -> None:
    assert record.seals() == RECORDED["seals"]


@pytest.mark.parametrize("name", record.runs())
def test_a_recorded_ledger_verifies_and_its_slots_are_written_byte_for_byte(name: str) -> None:
    file = record.HERE / "ledgers" / f"{name}.jsonl"
    *lines, last = file.read_bytes().splitlines()
    found = record.answer(["verify", str(file)])
    assert found["valid"] is True
    closing = json.loads(last)["certificate"]
    assert agree(record.numbers(found["certificate"]), record.numbers(closing))
    if SAME_ARITHMETIC:  # the last line holds how long its certificate took
        assert record.ledger(record.runs()[name]).splitlines()[:-1] == lines


@pytest.mark.parametrize("name", ["fixed", "minibatches"])
def test_a_ledger_of_an_earlier_version_verifies_and_its_epsilon_is_not_smaller(name: str) -> None:
    """Written before dummies of named randomizers counted: what it states is still true."""
    file = record.HERE / "earlier" / f"{name}.jsonl"
    found = record.answer(["verify", str(file)])
    stated = json.loads(file.read_bytes().splitlines()[-1])["certificate"]
    assert found["valid"] is True
    assert found["certificate"]["epsilon"] <= stated["epsilon"]


def test_reports_have_the_recorded_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_RANDOMNESS", device._RANDOMNESS)  # put back afterwards
    assert record.reports() == RECORDED["reports"]


def test_a_simulation_gives_the_recorded_result() -> None:
    found = json.loads(json.dumps(record.simulated()))
    assert agree(found, RECORDED["simulated"]), found
