"""Compare measured lower bounds with certificates, and report the verdict of an audit.

An audit runs a campaign many times with one client, the canary, and many times without it. Each of
its attacks measures a lower bound on epsilon. A certificate states an upper bound.

``trade_off_figure`` plots the best attack: its error rates, and its lower bounds on epsilon. A test
compares the score of a run with a threshold, to tell whether one client, the canary, took part. Let
FP and FN be the false positive and false negative rates of a test. If the campaign is (ε, δ)-DP,
then for every test [KOV17, Thm 2.1]

    FN >= max(0, 1 − δ − e^ε FP, e^−ε (1 − δ − FP)).

The left panel draws the largest of these lower limits over all audited deltas. A point below that
line contradicts the certificate. The right panel draws, for each answer of each test, the lower
bound log((P − δ)/Q) on epsilon. P is the probability of the answer in the runs in which it is
right, and Q its probability in the runs in which it is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from checkins.accounting import Adjacency, Certificate
from checkins.accounting.certificate import OF_DESIGN
from checkins.audit.bounds import SELECTION_SHARE, Bound, Direction, best_at_each_delta
from checkins.audit.statistics import EventRates, TradeOffCurve, TradeOffPoint, runs_needed
from checkins.campaign import Campaign, PartialRun, certify_runs
from checkins.formatting import down_for_page as down
from checkins.formatting import finite_or_none
from checkins.formatting import up_for_page as up

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@lru_cache(maxsize=64)
def certificate_at(campaign: Campaign, delta: float) -> Certificate:
    """Return the campaign's certificate at ``delta``. Raises if no certificate can be computed."""
    budget = replace(campaign.budget, delta=delta)
    return certify_runs((PartialRun.whole(replace(campaign, budget=budget)),))


POWERFUL_SHARE = 0.8
"""An audit is powerful if it measures at least this share of the known lower bound on epsilon."""
ROUNDING_NOTE = (  # how the numbers of a report are rounded
    "epsilon_certified up, epsilon_lower and epsilon_measured_lower down, epsilon_exact nearest"
)
SIMULATED_NOTE = "simulated with seeded randomness, without any real client"


class Verdict(StrEnum):
    """Whether the measurements are consistent with the certificates."""

    CONSISTENT = "consistent"
    CONTRADICTED = "contradicted"


@dataclass(frozen=True, slots=True, eq=False)
class AttackResult:
    """The measured bounds and the power of one attack.

    ``explained`` describes the canary, and ``statistic`` the score. ``exact`` maps each delta to
    the epsilon that unlimited runs of the attack would measure. It is empty if that epsilon is not
    known. ``rates`` are the exact probabilities of the attack's events or, if these are not known,
    the observed rates. ``failure`` is the probability with which the bound of one event may be
    false. ``curve`` is None if no trade-off curve was measured.
    """

    canary: str
    explained: str
    engine: str
    statistic: str
    runs: int
    bounds: tuple[Bound, ...]
    seconds: float
    exact: Mapping[float, float] = field(default_factory=dict)
    rates: tuple[EventRates, ...] = ()
    failure: float = 1.0
    curve: TradeOffCurve | None = None
    note: str = ""

    def at(self, delta: float) -> Bound:
        """Return the largest measured bound at a delta."""
        return best_at_each_delta(self.bounds, [delta])[0]

    def runs_needed(self, delta: float, epsilon: float) -> int | None:
        """Return how many runs this attack needs to measure a lower bound of ``epsilon``.

        It needs this number of runs with the canary, and the same number without it. Return None
        if no number of runs is enough.
        """
        if not epsilon > 0.0:
            return None
        counted_runs = runs_needed(self.rates, delta=delta, epsilon=epsilon, failure=self.failure)
        return None if counted_runs is None else math.ceil(counted_runs / (1.0 - SELECTION_SHARE))

    def as_dict(self, delta: float, target: float) -> dict[str, object]:
        best = self.at(delta)
        return {
            "canary": self.canary,
            "explained": self.explained,
            "engine": self.engine,
            "statistic": self.statistic,
            "trials": self.runs,
            "epsilon_measured_lower": best.epsilon,
            "epsilon_exact": self.exact.get(delta),
            "trials_needed": self.runs_needed(delta, target),
            "best": best.as_dict(),
            "seconds": round(self.seconds, 3),
            **({"note": self.note} if self.note else {}),
        }


@dataclass(frozen=True, slots=True, eq=False)
class CertificateCheck:
    """The certificate at each audited delta, and the results of all attacks."""

    certificates: Mapping[float, Certificate]
    results: tuple[AttackResult, ...]

    def certified(self, delta: float) -> float:
        """Return the certified epsilon at a delta."""
        return self.certificates[delta].epsilon

    def best(self, delta: float) -> Bound | None:
        """Return the largest measured bound of all attacks, or None if there is no attack."""
        bounds = [bound for result in self.results for bound in result.bounds]
        return best_at_each_delta(bounds, [delta])[0] if bounds else None

    def measured(self, delta: float) -> float:
        """Return the largest measured lower bound at a delta, or 0 if there is none."""
        best = self.best(delta)
        return 0.0 if best is None else best.epsilon

    def known_lower_bound(self, delta: float) -> float:
        """Return the largest known lower bound on the design's epsilon.

        It is the larger of the certificate's lower bound and the exact epsilon of the attacks.
        """
        exact = (result.exact.get(delta, 0.0) for result in self.results)
        certificate = self.certificates[delta]
        is_of_design = certificate.epsilon_lower_of == OF_DESIGN
        lower = max(certificate.epsilon_lower if is_of_design else 0.0, *exact, 0.0)
        return min(lower, self.certified(delta))

    def runs_needed(self, delta: float) -> int | None:
        """Return how many runs measure ``POWERFUL_SHARE`` of the known lower bound.

        The number is for the best attack with exact event rates or, if no attack has them, for the
        best attack with observed rates. Return None if no number of runs is enough.
        """
        target = POWERFUL_SHARE * self.known_lower_bound(delta)
        exact = [result for result in self.results if result.exact]
        needed = (result.runs_needed(delta, target) for result in exact or self.results)
        return min((runs for runs in needed if runs is not None), default=None)

    @property
    def contradicted_deltas(self) -> tuple[float, ...]:
        """The deltas at which the measured bound exceeds the certified epsilon."""
        return tuple(
            delta for delta in self.certificates if self.measured(delta) > self.certified(delta)
        )

    @property
    def verdict(self) -> Verdict:
        return Verdict.CONTRADICTED if self.contradicted_deltas else Verdict.CONSISTENT

    def rows(self) -> list[dict[str, object]]:
        """Return one JSON object for each delta."""
        return [
            {
                "delta": delta,
                "epsilon_certified": finite_or_none(certificate.epsilon),
                "epsilon_lower": certificate.epsilon_lower,
                "epsilon_lower_of": certificate.epsilon_lower_of,
                "method": certificate.method,
                "epsilon_measured_lower": self.measured(delta),
                "contradicted": delta in self.contradicted_deltas,
                **({} if (best := self.best(delta)) is None else {"best": best.as_dict()}),
            }
            for delta, certificate in self.certificates.items()
        ]


METHOD_DESCRIPTIONS = {
    "trials": "Clopper-Pearson intervals, Bonferroni correction, events chosen on separate runs",
    "one-run": "guesses about many canaries in one run [SNJ23], with Bonferroni correction",
}
"""How bounds are computed from many runs (``trials``) and from a single run (``one-run``)."""


@dataclass(frozen=True, slots=True, eq=False)
class Audit:
    """The result of an audit.

    ``check`` is about the campaign. ``machines`` is about a smaller campaign that was run by the
    real state machines, and is None if the state machines were not run. All bounds hold
    simultaneously with ``confidence``.
    """

    campaign: Campaign
    check: CertificateCheck
    machines: CertificateCheck | None
    confidence: float
    seed: int
    one_run: bool
    notes: tuple[str, ...]
    seconds: float

    @property
    def headline_delta(self) -> float:
        """The delta that the report is mainly about: the first of the audited deltas."""
        return next(iter(self.check.certificates))

    @property
    def contradicted(self) -> bool:
        return self.verdict is Verdict.CONTRADICTED

    @property
    def verdict(self) -> Verdict:
        parts = [self.check, *([] if self.machines is None else [self.machines])]
        contradicted = any(part.verdict is Verdict.CONTRADICTED for part in parts)
        return Verdict.CONTRADICTED if contradicted else Verdict.CONSISTENT

    @property
    def trials(self) -> int:
        """The number of runs with a canary, summed over all attacks.

        The number of runs without a canary is the same.
        """
        return sum(result.runs for result in self.check.results)

    @property
    def powerful(self) -> bool:
        """True if the audit measured at least ``POWERFUL_SHARE`` of the known lower bound."""
        known = self.check.known_lower_bound(self.headline_delta)
        return self.check.measured(self.headline_delta) >= POWERFUL_SHARE * known

    def as_dict(self) -> dict[str, object]:
        """Return plain values for JSON."""
        check, delta = self.check, self.headline_delta
        certificate = check.certificates[delta]
        best, target = check.best(delta), POWERFUL_SHARE * check.known_lower_bound(delta)
        answer: dict[str, object] = {
            "epsilon_certified": finite_or_none(certificate.epsilon),
            "epsilon_lower": certificate.epsilon_lower,
            "epsilon_lower_of": certificate.epsilon_lower_of,
            "epsilon_exact": check.known_lower_bound(delta),
            "epsilon_measured_lower": check.measured(delta),
            "confidence": self.confidence,
            "verdict": str(self.verdict),
            "delta": delta,
            "adjacency": str(certificate.adjacency),
            "method": METHOD_DESCRIPTIONS["one-run" if self.one_run else "trials"],
            "certificate_method": certificate.method,
            "rounding": ROUNDING_NOTE,
            "trials": self.trials,
            "trials_needed": check.runs_needed(delta),
            "trials_needed_for": target,
            "canary": None if best is None else best.canary,
            "statistic": next(
                (f.statistic for f in check.results if best and f.canary == best.canary), None
            ),
            "deltas": check.rows(),
            "views": [result.as_dict(delta, target) for result in check.results],
            "machines": None if self.machines is None else _machines_as_dict(self.machines),
            "notes": list(self.notes),
            "seed": self.seed if check.results else None,
            "simulated": SIMULATED_NOTE if check.results else None,
            "name": self.campaign.name,
            "seal": self.campaign.seal,
            "seconds": round(self.seconds, 3),
        }
        return answer


def _machines_as_dict(check: CertificateCheck) -> dict[str, object]:
    delta = next(iter(check.certificates))
    return {
        "of": "a smaller campaign, run by the real state machines and samplers",
        "verdict": str(check.verdict),
        "deltas": check.rows(),
        "views": [result.as_dict(delta, 0.0) for result in check.results],
    }


FloatArray = NDArray[np.float64]

PLOT_FILE_NAME = "trade-off.png"
BLUE, GREY, RED, ORANGE = "#0072b2", "#8a8a8a", "#cc3311", "#d55e00"
THIN_LINE: dict[str, Any] = {"linewidth": 1.0, "alpha": 0.6}
COLOUR_OF_DIRECTION = {Direction.REMOVE: BLUE, Direction.ADD: ORANGE}
CASE_LABELS = {
    Adjacency.ADD_REMOVE: {Direction.REMOVE: "present", Direction.ADD: "missing"},
    Adjacency.REPLACE_ONE: {Direction.REMOVE: "first data", Direction.ADD: "other data"},
}
"""The answers of a test about the canary, by neighbour relation and direction of the event."""


def certified_line(false_positive: FloatArray, pairs: Iterable[tuple[float, float]]) -> FloatArray:
    """Return the smallest false negative rates that all (epsilon, delta) pairs allow."""
    smallest = np.zeros_like(false_positive)
    for epsilon, delta in pairs:
        if math.isfinite(epsilon):
            flat_part = math.exp(-epsilon) * (1.0 - delta - false_positive)
            steep_part = 1.0 - delta - math.exp(min(epsilon, 700.0)) * false_positive
            smallest = np.maximum(smallest, np.maximum(steep_part, flat_part))
    return smallest


def save_trade_off_plot(audit: Audit, path: Path) -> None:
    """Save the figure of the attack with the largest measured bound."""
    trade_off_figure(audit).savefig(path, metadata={"Software": "checkins"})


def trade_off_figure(audit: Audit) -> Figure:
    """Return the figure: error rates on the left, epsilon of each test on the right."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    result = _best_with_curve(audit)
    points: tuple[TradeOffPoint, ...] = ()
    if result is not None and result.curve is not None:
        points = result.curve.points(confidence=audit.confidence)
    figure = Figure(figsize=(10.5, 6.0), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)  # never open a window, whatever MPLBACKEND says
    errors, epsilons = figure.subplots(1, 2)
    _draw_errors(errors, audit, result, points)
    _draw_epsilons(epsilons, audit, result, points)
    for axes in (errors, epsilons):
        axes.grid(visible=True, color="#e4e4e4", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.legend(  # below the plot, where it hides no curve
            frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0.0, -0.12)
        )
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return figure


def _best_with_curve(audit: Audit) -> AttackResult | None:
    results = [result for result in audit.check.results if result.curve is not None]
    return max(results, key=lambda result: result.at(audit.headline_delta).epsilon, default=None)


def _draw_errors(
    axes: Axes, audit: Audit, result: AttackResult | None, points: tuple[TradeOffPoint, ...]
) -> None:
    grid = np.linspace(0.0, 1.0, 801)
    pairs = [(c.epsilon, delta) for delta, c in audit.check.certificates.items()]
    line = certified_line(grid, pairs)
    axes.fill_between(grid, line, color=RED, alpha=0.08, linewidth=0)
    axes.plot(grid, line, color=RED, linewidth=1.5, label="certified: no test is below this line")
    axes.plot(grid, 1.0 - grid, ":", color=GREY, linewidth=1.0, label="guessing")
    present, missing = _case_labels(audit).values()
    canary = "" if result is None else result.canary
    for rates in _exact_rates(result):
        if rates.direction is Direction.REMOVE:
            x, y = np.append(0.0, rates.false_positive), 1.0 - np.append(0.0, rates.true_positive)
            axes.plot(x, y, **THIN_LINE, color=BLUE, label=f"{canary}, exact")
    if points:
        _draw_points(
            axes, points, f"{canary}, measured (confidence of each error bar: {audit.confidence:g})"
        )
    axes.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0))
    axes.set_xlabel(f"false positives: called {present}, but {missing}")
    axes.set_ylabel(f"false negatives: called {missing}, but {present}")
    axes.set_title(_title(audit), loc="left", fontsize=11)


def _title(audit: Audit) -> str:
    delta = audit.headline_delta
    certified, measured = audit.check.certified(delta), audit.check.measured(delta)
    if audit.check.contradicted_deltas:
        return f"contradicted: certified ε ≤ {up(certified)} at δ = {delta:g}"
    return f"{audit.verdict}: {down(measured)} ≤ ε ≤ {up(certified)} at δ = {delta:g}"


def _draw_points(axes: Axes, points: tuple[TradeOffPoint, ...], label: str) -> None:
    """Draw the two error rates of each threshold with their Clopper-Pearson intervals."""
    x = np.array([point.false_positive for point in points])
    y = np.array([point.false_negative for point in points])
    x_ends = np.array([[p.false_positive_low, p.false_positive_high] for p in points]).T
    y_ends = np.array([[p.false_negative_low, p.false_negative_high] for p in points]).T
    error_bars = {"xerr": np.abs(x_ends - x), "yerr": np.abs(y_ends - y), "elinewidth": 0.8}
    axes.errorbar(x, y, **error_bars, fmt="o", markersize=2.5, color=BLUE, label=label)


def _case_labels(audit: Audit) -> dict[Direction, str]:
    return CASE_LABELS[audit.campaign.budget.adjacency]


def _exact_rates(result: AttackResult | None) -> tuple[EventRates, ...]:
    return result.rates if result is not None and result.exact else ()


def _draw_epsilons(
    axes: Axes, audit: Audit, result: AttackResult | None, points: tuple[TradeOffPoint, ...]
) -> None:
    """Draw the lower bound of each test. Each bound alone holds with the audit's confidence."""
    delta = audit.headline_delta
    certified = audit.check.certified(delta)
    if math.isfinite(certified):
        label = f"certified: ε ≤ {up(certified)}"
        axes.axhline(certified, color=RED, linewidth=1.5, label=label)
    measured = audit.check.measured(delta)
    label = f"measured by the whole audit: ε ≥ {down(measured)}"
    axes.axhline(measured, color=GREY, linestyle="--", linewidth=1.0, label=label)
    for direction, case in _case_labels(audit).items():
        for rates in _exact_rates(result):
            if rates.direction is direction:
                rows = (rates.true_positive > delta) & (rates.false_positive > 0.0)
                epsilons = np.log((rates.true_positive[rows] - delta) / rates.false_positive[rows])
                label, colour = f"called {case}, exact", COLOUR_OF_DIRECTION[direction]
                axes.plot(
                    rates.false_positive[rows], epsilons, **THIN_LINE, color=colour, label=label
                )
        bounds = [_bound_of_point(point, direction, delta) for point in points]
        pairs = np.array([pair for pair in bounds if pair is not None]).reshape(-1, 2)
        if pairs.size:
            label = f"called {case}, measured lower bound"
            axes.plot(
                *pairs.T, "o", markersize=2.5, color=COLOUR_OF_DIRECTION[direction], label=label
            )
    axes.set_xscale("log")
    lowest = min((p.false_positive_high for p in points), default=1e-3)
    axes.set_xlim(max(1e-7, min(1e-3, lowest) / 2), 1.0)
    top = max(certified if math.isfinite(certified) else 0.0, measured, 1e-3)
    axes.set_ylim(0.0, 1.1 * top)
    axes.set_xlabel("Q, the probability of the answer in runs in which it is wrong")
    axes.set_ylabel("ε")
    axes.set_title(f"lower bound from each threshold at δ = {delta:g}", loc="left", fontsize=11)


def _bound_of_point(
    point: TradeOffPoint, direction: Direction, delta: float
) -> tuple[float, float] | None:
    """Return the upper end of Q and the bound on epsilon at one threshold.

    Return None if the bound is 0.
    """
    low, high = 1.0 - point.false_negative_high, point.false_positive_high
    if direction is Direction.ADD:
        low, high = 1.0 - point.false_positive_high, point.false_negative_high
    is_positive = low > delta and high < 1.0 and low - delta > high
    return (high, math.log((low - delta) / high)) if is_positive else None
