"""Compute the epsilon of a campaign by every method, and plot it against the number of slots.

python examples/epsilon_by_method.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from checkins.accounting import (
    Adjacency,
    Certificate,
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Protocol,
    certify,
)
from checkins.cli import terminal
from checkins.cli.views import certificate as views
from checkins.cli.views import paper as plots

DELTA = 1e-6
SLOTS = 1_000
PLOT = Path("out") / "epsilon-by-method.png"

PURE = LocalRandomizer(local_epsilon=1.0)
NOISY = GaussianNoise(noise_multiplier=1.0, at=NoiseAt.SERVER)


def certified(
    randomizer: LocalRandomizer | GaussianNoise, slots: int
) -> dict[Adjacency, Certificate]:
    """Certify a campaign in which each client takes part once, for both neighbour relations."""
    design = Design(Protocol.FIXED, slots=slots, participation=1.0, randomizer=randomizer)
    return {adjacency: certify(design, delta=DELTA, adjacency=adjacency) for adjacency in Adjacency}


def print_tables() -> None:
    terminal.show(f"{SLOTS:,} slots; every client takes part once; delta = {DELTA!r}.", "")
    for title, randomizer in (
        ("Each report is 1-DP", PURE),
        ("The server adds Gaussian noise to each slot, noise multiplier 1", NOISY),
    ):
        with terminal.spinner("computing epsilon", quiet=False):
            certificates = certified(randomizer, SLOTS)
        table = views.methods_by_adjacency(title, certificates)
        terminal.show(table, views.guarantee_sentence(certificates[Adjacency.ADD_REMOVE]), "")


def draw_plot() -> None:
    """Plot ε against the number of slots, if each report is 1-DP."""
    slots = np.unique(np.geomspace(10, 1e6, 11).round().astype(int)).tolist()
    certificates = [certified(PURE, m) for m in slots]
    add, replace = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE

    def line(label: str, method: str, adjacency: Adjacency, *look: str | float) -> plots.Line:
        epsilons = [views.epsilon_of_method(method, one[adjacency]) for one in certificates]
        return plots.Line(label, slots, epsilons, *look)

    PLOT.parent.mkdir(parents=True, exist_ok=True)
    plots.draw_lines(
        [
            line("paper, Theorem 3.2", "paper", replace, plots.ORANGE),
            line(
                "for comparison: shuffling m reports",
                "shuffling-best",
                replace,
                plots.BLUE,
                "-",
                7,
                0.2,
            ),
            line("exact, replace-one", "exact", replace, plots.BLUE),
            line("lower bound, replace-one", views.LOWER_BOUND, replace, plots.BLUE, ":"),
            line("exact, add/remove", "exact", add, plots.GREEN),
            line("for comparison: Poisson sampling, add/remove", "poisson", add, plots.GREY, "--"),
        ],
        PLOT,
        title=f"ε of random check-ins with m slots: ε₀ = 1, δ = {DELTA:g}",
        x_label="slots m",
        y_label="ε",
        log_x=True,
    )


if __name__ == "__main__":
    print_tables()
    with terminal.spinner("drawing", quiet=False):
        draw_plot()
    terminal.show_plain(f"Plot: {PLOT.as_posix()}")
