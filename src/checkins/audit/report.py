"""Compare measured lower bounds with certificates, and report the verdict of an audit.

An audit runs a campaign many times with one client, the canary, and many times without it. Each of
its attacks measures a lower bound on epsilon. A certificate states an upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache

from checkins.accounting import Certificate
from checkins.accounting.certificate import OF_DESIGN
from checkins.audit.bounds import SELECTION_SHARE, Bound, best_at_each_delta
from checkins.audit.statistics import EventRates, TradeOffCurve, runs_needed
from checkins.campaign import Campaign, PartialRun, certify_runs
from checkins.formatting import finite_or_none


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
        """Return how many runs with the canary, and as many without it, would measure ``epsilon``.

        Return None if no number of runs is enough.
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
    "trials": "Clopper-Pearson intervals of events that were chosen on other runs, Bonferroni",
    "one-run": "guesses about many canaries in one run [SNJ23], Bonferroni",
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
        """The number of runs with a canary in all attacks. As many runs were without it."""
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
