"""What an audit found: measured bounds, held against the certificates they must not beat."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from checkins.accounting import Certificate
from checkins.accounting.certificate import OF_DESIGN
from checkins.audit.bounds import CHOOSING, Bound, best_of_each
from checkins.audit.power import Rates, runs_needed
from checkins.audit.trade_off_curve import Curve
from checkins.formatting import finite

SHARE = 0.8
"""Of the largest epsilon that is known to be true: an audit that measures it has the power to."""
ROUNDING = "epsilon_certified up, epsilon_lower and what is measured down, epsilon_exact to nearest"
MARK = "simulated: seeded randomness, no real client's data"


class Verdict(StrEnum):
    """Whether what was measured can be true if the certificate is."""

    CONSISTENT = "consistent"
    CONTRADICTED = "contradicted"


@dataclass(frozen=True, slots=True, eq=False)
class Finding:
    """One attack: what it measured, and how much it could measure at all.

    ``exact`` is the epsilon of the attack's own laws at each delta, where they are known. ``rates``
    are the chances of its events, exact or as they were seen, and ``failure`` is what one event
    may fail with.
    """

    canary: str
    explained: str
    engine: str
    statistic: str
    runs: int
    bounds: tuple[Bound, ...]
    seconds: float
    exact: Mapping[float, float] = field(default_factory=dict)
    rates: tuple[Rates, ...] = ()
    failure: float = 1.0
    curve: Curve | None = None
    note: str = ""

    def at(self, delta: float) -> Bound:
        """The best of its bounds at a delta."""
        return best_of_each(self.bounds, [delta])[0]

    def runs_needed(self, delta: float, epsilon: float) -> int | None:
        """Runs of each half after which this attack would measure ``epsilon``, by its rates."""
        if not epsilon > 0.0:
            return None
        fresh = runs_needed(self.rates, delta=delta, epsilon=epsilon, failure=self.failure)
        return None if fresh is None else math.ceil(fresh / (1.0 - CHOOSING))

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
class Promise:
    """A certificate for each delta that was audited, and what was held against it."""

    certificates: Mapping[float, Certificate]
    findings: tuple[Finding, ...]

    def certified(self, delta: float) -> float:
        return self.certificates[delta].epsilon

    def best(self, delta: float) -> Bound | None:
        every = [bound for finding in self.findings for bound in finding.bounds]
        return best_of_each(every, [delta])[0] if every else None

    def measured(self, delta: float) -> float:
        """The largest lower bound at a delta; 0 if nothing was measured."""
        found = self.best(delta)
        return 0.0 if found is None else found.epsilon

    def known(self, delta: float) -> float:
        """The largest epsilon that theory says is true at least: of the design, or of an attack."""
        exact = (finding.exact.get(delta, 0.0) for finding in self.findings)
        certificate = self.certificates[delta]
        of_design = certificate.epsilon_lower_of == OF_DESIGN
        lower = max(certificate.epsilon_lower if of_design else 0.0, *exact, 0.0)
        return min(lower, self.certified(delta))

    def runs_needed(self, delta: float) -> int | None:
        """Runs after which the best attack would measure ``SHARE`` of what is known to be true.

        By exact laws where any are known, else by the rates that were seen.
        """
        target = SHARE * self.known(delta)
        exact = [finding for finding in self.findings if finding.exact]
        found = (finding.runs_needed(delta, target) for finding in exact or self.findings)
        return min((runs for runs in found if runs is not None), default=None)

    @property
    def contradicted(self) -> tuple[float, ...]:
        """The deltas at which more was measured than certified."""
        return tuple(
            delta for delta in self.certificates if self.measured(delta) > self.certified(delta)
        )

    @property
    def verdict(self) -> Verdict:
        return Verdict.CONTRADICTED if self.contradicted else Verdict.CONSISTENT

    def rows(self) -> list[dict[str, object]]:
        """One row for each delta."""
        return [
            {
                "delta": delta,
                "epsilon_certified": finite(certificate.epsilon),
                "epsilon_lower": certificate.epsilon_lower,
                "epsilon_lower_of": certificate.epsilon_lower_of,
                "method": certificate.method,
                "epsilon_measured_lower": self.measured(delta),
                "contradicted": delta in self.contradicted,
                **({} if (best := self.best(delta)) is None else {"best": best.as_dict()}),
            }
            for delta, certificate in self.certificates.items()
        ]
