"""The table of docs/other-accountants.md is true of this code."""

from __future__ import annotations

import re
from pathlib import Path

import dp_accounting
import pytest

from bench.accountants import DELTA, DRAWS, RUNS, by_checkins, last_table, shuffled_lower_bound
from checkins.accounting import Adjacency, StepDraw

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "other-accountants.md"


def row(accountant: str, draws: str) -> list[float]:
    """The numbers in the column epsilon of a row of the first training."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[1].startswith(accountant) and cells[2] == draws:
            return [float(number) for number in re.findall(r"\d+\.\d+", cells[3])]
    raise AssertionError(f"no row for {accountant} and {draws}")


def test_the_page_shows_the_last_measurement() -> None:
    assert last_table() in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("draw", [StepDraw.EACH_EPOCH, StepDraw.FIRST_EPOCH])
def test_a_certificate_is_the_one_that_the_page_shows(draw: StepDraw) -> None:
    lower, upper = row("checkins, add-remove", DRAWS[draw])
    found = by_checkins(RUNS[0], draw, Adjacency.ADD_REMOVE)
    assert found[:2] == pytest.approx((lower, upper), abs=1.01e-4)
    assert lower <= found[0] <= found[1] <= upper


def test_dp_accounting_says_what_the_page_shows() -> None:
    noise, steps, epochs = RUNS[0]
    event = dp_accounting.PoissonSampledDpEvent(1 / steps, dp_accounting.GaussianDpEvent(noise))
    found = dp_accounting.pld.PLDAccountant().compose(event, steps * epochs).get_epsilon(DELTA)
    assert row("dp_accounting", "Poisson") == [pytest.approx(found, abs=1.01e-4)]


def test_shuffled_batches_cost_at_least_what_the_page_shows() -> None:
    (shown,) = row("any", "shuffled, fixed sizes")
    assert shown <= shuffled_lower_bound(RUNS[0][0], RUNS[0][1], DELTA) <= shown + 1e-4
