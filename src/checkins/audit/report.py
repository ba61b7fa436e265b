"""An audit as a whole: its verdict, and the object that the command line prints."""

from __future__ import annotations

from dataclasses import dataclass

from checkins.audit.verdict import MARK, ROUNDING, SHARE, Promise, Verdict
from checkins.campaign import Campaign
from checkins.formatting import finite

METHOD = {
    "trials": "Clopper-Pearson on fresh runs, events chosen on others, Bonferroni over all of them",
    "one-run": "guesses about many canaries of one run [SNJ23], Bonferroni over all of them",
}
"""How bounds were made of runs."""


@dataclass(frozen=True, slots=True, eq=False)
class Audit:
    """What was measured of a campaign, and of its small form run by the real machines.

    Everything in it holds together with ``confidence``.
    """

    campaign: Campaign
    promise: Promise
    machines: Promise | None
    confidence: float
    seed: int
    one_run: bool
    notes: tuple[str, ...]
    seconds: float

    @property
    def headline(self) -> float:
        """The delta of the first line."""
        return next(iter(self.promise.certificates))

    @property
    def contradicted(self) -> bool:
        return self.verdict is Verdict.CONTRADICTED

    @property
    def verdict(self) -> Verdict:
        parts = [self.promise, *([] if self.machines is None else [self.machines])]
        guilty = any(part.verdict is Verdict.CONTRADICTED for part in parts)
        return Verdict.CONTRADICTED if guilty else Verdict.CONSISTENT

    @property
    def trials(self) -> int:
        """Runs of each half, over all canaries."""
        return sum(finding.runs for finding in self.promise.findings)

    @property
    def powerful(self) -> bool:
        """Whether it measured most of what is known to be true."""
        known = self.promise.known(self.headline)
        return self.promise.measured(self.headline) >= SHARE * known

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        promise, delta = self.promise, self.headline
        certificate = promise.certificates[delta]
        best, target = promise.best(delta), SHARE * promise.known(delta)
        answer: dict[str, object] = {
            "epsilon_certified": finite(certificate.epsilon),
            "epsilon_lower": certificate.epsilon_lower,
            "epsilon_lower_of": certificate.epsilon_lower_of,
            "epsilon_exact": promise.known(delta),
            "epsilon_measured_lower": promise.measured(delta),
            "confidence": self.confidence,
            "verdict": str(self.verdict),
            "delta": delta,
            "adjacency": str(certificate.adjacency),
            "method": METHOD["one-run" if self.one_run else "trials"],
            "certificate_method": certificate.method,
            "rounding": ROUNDING,
            "trials": self.trials,
            "trials_needed": promise.runs_needed(delta),
            "trials_needed_for": target,
            "canary": None if best is None else best.canary,
            "statistic": next(
                (f.statistic for f in promise.findings if best and f.canary == best.canary), None
            ),
            "deltas": promise.rows(),
            "views": [finding.as_dict(delta, target) for finding in promise.findings],
            "machines": None if self.machines is None else _machines(self.machines),
            "notes": list(self.notes),
            "seed": self.seed if promise.findings else None,
            "simulated": MARK if promise.findings else None,
            "name": self.campaign.name,
            "seal": self.campaign.seal,
            "seconds": round(self.seconds, 3),
        }
        return answer


def _machines(promise: Promise) -> dict[str, object]:
    delta = next(iter(promise.certificates))
    return {
        "of": "the campaign made small, run by the real machines and samplers",
        "verdict": str(promise.verdict),
        "deltas": promise.rows(),
        "views": [finding.as_dict(delta, 0.0) for finding in promise.findings],
    }
