"""The plot of an audit: the line that no test of a correct campaign may cross."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from checkins.audit import Attacks, Settings, audit_campaign
from checkins.audit.bounds import Trials
from checkins.audit.report import certified_line, save_trade_off_plot, trade_off_figure
from checkins.audit.statistics import TradeOffCurve
from checkins.campaign import Campaign
from tests.audit.campaigns import REPLACE_ONE, gaussian, pure


def test_the_line_is_that_of_the_definition() -> None:
    """Both inequalities of (eps, delta)-DP, for the test and for its opposite, hold on it."""
    grid = np.linspace(0.0, 1.0, 101)
    line = certified_line(grid, [(1.0, 0.01)])
    slack = 1e-12
    assert np.all(1 - line <= math.e * grid + 0.01 + slack)
    assert np.all(1 - grid <= math.e * line + 0.01 + slack)
    touched = np.minimum(math.e * grid + 0.01 - (1 - line), math.e * line + 0.01 - (1 - grid))
    assert np.all((touched < 1e-9) | (line == 0.0))


def test_more_pairs_never_allow_more() -> None:
    grid = np.linspace(0.0, 1.0, 101)
    one = certified_line(grid, [(1.0, 0.01)])
    assert np.all(certified_line(grid, [(1.0, 0.01), (0.5, 0.1)]) >= one)
    assert np.array_equal(certified_line(grid, [(math.inf, 0.1), (1.0, 0.01)]), one)


def test_points_count_what_the_scores_say() -> None:
    trials = Trials(np.array([1.0, 2.0, 2.0, 3.0]), np.array([0.0, 1.0, 2.0, 0.0]), "x")
    curve = TradeOffCurve.with_thresholds_of(trials).plus(trials)
    for threshold, told, false_positives in zip(
        curve.thresholds, curve.counts_with, curve.counts_without, strict=True
    ):
        assert told == (trials.scores_with >= threshold).sum()
        assert false_positives == (trials.scores_without >= threshold).sum()
    for point in curve.points(confidence=0.99):
        assert point.false_positive_low <= point.false_positive <= point.false_positive_high
        assert point.false_negative_low <= point.false_negative <= point.false_negative_high


@pytest.mark.parametrize("one_run", [False, True])
def test_a_plot_is_drawn(tmp_path: Path, one_run: bool) -> None:
    settings = Settings(one_run=one_run, attacks=Attacks.WORST_CASE, runs=None if one_run else 3000)
    audit = audit_campaign(gaussian(0.5, slots=3, delta=1e-4), settings)
    save_trade_off_plot(audit, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_a_plot_of_few_outcomes_is_drawn(tmp_path: Path) -> None:
    audit = audit_campaign(pure(8.0, slots=2), Settings(runs=500, deltas=(1e-3,)))
    save_trade_off_plot(audit, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("campaign", "sides"),
    [
        (gaussian(0.5, slots=3, delta=1e-4), ("present", "missing")),
        (pure(2.0, slots=4, adjacency=REPLACE_ONE), ("first data", "other data")),
    ],
    ids=["add-remove", "replace-one"],
)
def test_every_curve_is_named_in_the_legend(campaign: Campaign, sides: tuple[str, str]) -> None:
    settings = Settings(attacks=Attacks.WORST_CASE, runs=20_000, deltas=(1e-3,))
    figure = trade_off_figure(audit_campaign(campaign, settings))
    figure.canvas.draw()
    for axes in figure.axes:
        legend = axes.get_legend()
        named = {text.get_text() for text in legend.get_texts()}
        bars = {line for bar in axes.containers for line in bar.get_children()}
        assert all(str(line.get_label()) in named for line in axes.lines if line not in bars)
        assert legend.get_window_extent().y1 < axes.get_window_extent().y0
        assert legend.get_window_extent().x1 < figure.bbox.x1
    for side in sides:
        assert {f"called {side}, exact", f"called {side}, measured lower bound"} <= named
    assert f"called {sides[0]}, but {sides[1]}" in figure.axes[0].get_xlabel()
