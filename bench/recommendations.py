"""Compare the design that `checkins plan` recommends with similar designs at the same budget.

Every design is simulated. Long simulations may run on another machine: ``bench.neighbours`` writes
the designs, ``bench.trying`` simulates them, and the results are stored in
bench/recommended/NAME.json. They are used as long as the planner recommends the same design.
"""

from __future__ import annotations

import json
from pathlib import Path

from bench.measure import Section
from bench.neighbours import Problem, neighbours, problems
from bench.trying import Tried, tried
from checkins.campaign import Campaign

HERE = Path(__file__).parent
PICTURE = HERE / "recommendations.svg"
COLUMNS = 3
"""Plots in a row of the picture."""
NOISES = 3.0
"""A mean difference of at most this many standard errors counts as noise."""


def recommendations() -> Section:
    """Check on each problem that no similar design is better by more than noise."""
    rows, holds, drawn, kept_files = [], True, [], []
    for problem in problems():
        every, kept = measured(problem)
        kept_files += [f"recommended-{Path(problem.file_name).stem}"] if kept else []
        sign = -1.0 if problem.metric == "loss" else 1.0
        recommended, best = every[0], max(every, key=lambda one: sign * one.mean)
        gap, noise = recommended.behind(best, sign=sign)
        holds = holds and gap <= NOISES * noise
        drawn.append((problem, every))
        rows += [_row(problem, one, recommended, sign) for one in every]
    draw(drawn)
    return Section(
        "The planner: the recommended design compared with similar designs",
        f"The recommended design is within {NOISES:g} standard errors (paired by seed) of the best"
        " similar design, all at the same add/remove budget. Each similar design is planned again"
        " with one parameter changed; step sizes are also halved and doubled."
        " ![Plot](recommendations.svg)",
        holds,
        (
            "task",
            "budget",
            "design",
            "slots x runs",
            "bands",
            "metric",
            "mean",
            "behind the recommended",
        ),
        rows,
        kept=kept_files,
    )


def measured(problem: Problem) -> tuple[list[Tried], bool]:
    """Return the results, and True if they are stored ones or False if measured now."""
    designs = dict(neighbours(problem))
    kept = _kept(problem, designs)
    if kept is not None:
        return kept, True
    now = [
        tried(name, campaign, metric=problem.metric, seeds=problem.seeds)
        for name, campaign in designs.items()
    ]
    return now, False


def _kept(problem: Problem, designs: dict[str, Campaign]) -> list[Tried] | None:
    file = HERE / "recommended" / problem.file_name
    if not file.exists():
        return None
    held = json.loads(file.read_text())
    same = {name: campaign.canonical() for name, campaign in designs.items()} == held["designs"]
    if not same or set(held["found"]) != set(designs):
        return None
    return [Tried(name, campaign, tuple(held["found"][name])) for name, campaign in designs.items()]


def _row(problem: Problem, one: Tried, recommended: Tried, sign: float) -> list[str]:
    design = one.campaign.design
    gap, noise = one.behind(recommended, sign=sign)
    return [
        problem.title,
        f"({problem.epsilon:g}, {problem.delta:g})",
        one.name,
        f"{design.slots:,} x {one.campaign.repeats}",
        f"{one.campaign.strategy.bands}" if one.campaign.strategy else "1",
        problem.metric,
        f"{one.mean:.4f}",
        "" if one is recommended else f"{gap:+.4f} ± {noise:.4f}",
    ]


def draw(drawn: list[tuple[Problem, list[Tried]]]) -> None:
    """Plot a dot per seed and a line per mean, with the recommended design at the top."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "checkins"
    import matplotlib.pyplot as plt

    rows = -(-len(drawn) // COLUMNS)
    figure, axes = plt.subplots(
        rows, COLUMNS, figsize=(4.6 * COLUMNS, 4.2 * rows), layout="constrained"
    )
    for axis, (problem, every) in zip(axes.flat, drawn, strict=True):
        for height, one in enumerate(reversed(every)):
            colour = "#c2410c" if one is every[0] else "#475569"
            axis.plot(one.found, [height] * len(one.found), "o", color=colour, alpha=0.35, ms=4)
            axis.plot([one.mean], [height], "|", color=colour, ms=14, mew=2)
        axis.set_yticks(range(len(every)), [one.name.strip("*") for one in reversed(every)])
        axis.set_title(f"{problem.title}, ε = {problem.epsilon:g}")
        axis.set_xlabel(problem.metric + (", less is better" if problem.metric == "loss" else ""))
        axis.grid(axis="x", alpha=0.3)
    figure.savefig(PICTURE, metadata={"Date": None})
    plt.close(figure)
