"""The comparison page shows every row and every peer that was measured."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tools import comparison

PAGE = Path(__file__).resolve().parents[2] / "docs" / "comparison.md"
PEERS = {
    "accountants": "accountant",
    "beside_bare": "loop",
    "beside_peers": "simulator",
    "check_ins": "service",
}
"""The column that names peers, by figure."""


@pytest.mark.parametrize(("figure", "column"), PEERS.items())
def test_every_peer_of_a_measurement_is_on_the_page(figure: str, column: str) -> None:
    shown = PAGE.read_text(encoding="utf-8")
    peers = {row[column] for row in comparison.rows_of(figure)}
    peers -= {peer for peer in peers if "checkins" in peer or peer == "any"}
    assert peers
    assert [peer for peer in peers if peer not in shown] == []


@pytest.mark.parametrize(
    ("section", "figure"),
    [
        (comparison.accountant, "named"),
        (comparison.accountant, "peer"),
        (comparison.accountant, "calibration"),
        (comparison.device, "device_noise"),
        (comparison.accuracy, "fashion-mnist"),
        (comparison.simulator, "on_device"),
    ],
)
def test_no_row_of_a_measurement_is_left_out(
    section: Callable[[], Iterator[str]], figure: str
) -> None:
    parts = list(section())
    table = parts[parts.index(comparison.measured(figure)) - 1]
    assert table.count("\n") - 2 == len(comparison.rows_of(figure))


def test_the_better_number_is_named_with_its_owner() -> None:
    assert comparison.better(2.0, 1.0, "Opacus", smaller=True) == "Opacus, 2.00 times"
    assert comparison.better(2.0, 1.0, "Opacus", smaller=False) == "checkins, 2.00 times"
    assert comparison.better(1.0, 1.0, "Opacus", smaller=False) == "equal"
    assert comparison.better(1.001, 1.0, "Opacus", smaller=True) == "Opacus, 1.001 times"


def test_every_table_of_the_page_has_the_day_and_the_commit_of_its_measurement() -> None:
    shown = PAGE.read_text(encoding="utf-8")
    dates = re.findall(r"(?:on|since) (20\d\d-\d\d-\d\d), at commit `[0-9a-f]{7}`", shown)
    assert len(dates) == shown.count("\n|---")


def test_an_accountant_that_was_not_measured_is_refused() -> None:
    with pytest.raises(KeyError, match="no accountant"):
        comparison.side_by_side("Unknown")
