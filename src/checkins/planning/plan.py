"""From a question to a plan: a recommended design, the front it lies on, and why.

>>> from checkins.accounting import Adjacency, Population
>>> asked = Question(Population(9000, 11000), 1.0, 1e-6, Adjacency.ADD_REMOVE, dimension=14)
>>> plan = make_plan(asked)
>>> plan.recommended.shape.protocol.value, plan.certificate.epsilon <= 1.0
('fixed', True)
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from checkins.accounting import Certificate
from checkins.accounting.certificate import versions
from checkins.campaign import Campaign
from checkins.planning.campaign import written
from checkins.planning.curves import budget_curve, slots_curve
from checkins.planning.pareto_front import pareto, shown
from checkins.planning.priced import PricedDesign
from checkins.planning.proof import settled
from checkins.planning.question import Question
from checkins.planning.reasons import Reason, reasons
from checkins.planning.search import search
from checkins.planning.sensitivity import Row, sensitivity


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer: every epsilon in it is a proven upper bound within the budget."""

    question: Question
    recommended: PricedDesign
    front: tuple[PricedDesign, ...]
    reasons: tuple[Reason, ...]
    sensitivity: tuple[Row, ...]
    curves: dict[str, list[dict[str, object]]]
    campaign: Campaign
    text: str
    certificate: Certificate
    seconds: float

    def as_json(self) -> dict[str, object]:
        """Plain values: what ``checkins plan --json`` prints, and the page shows."""
        return {
            "question": self.question.as_dict(),
            "recommended": self.recommended.as_dict(),
            "front": [design.as_dict() for design in self.front],
            "reasons": [reason.as_dict() for reason in self.reasons],
            "sensitivity": [row.as_dict() for row in self.sensitivity],
            "curves": self.curves,
            "campaign": self.text,
            "certificate": self.certificate.as_dict(),
            "seconds": round(self.seconds, 3),
            "versions": versions("checkins", "numpy", "scipy"),
        }


def make_plan(question: Question) -> Plan:
    """Search, prove, recommend and explain.

    Raises ``InvalidValue`` where nothing that was asked for keeps the budget or the time.
    """
    started = time.perf_counter()
    found = search(question)
    design, campaign, certificate = settled(found.recommended)
    others = [one for one in found.front if one is not found.recommended]
    front = pareto([design, *others])
    curve = [design if one is found.recommended else one for one in found.slots]
    return Plan(
        question=question,
        recommended=design,
        front=tuple(shown(front, design)),
        reasons=tuple(reasons(design, front, curve)),
        sensitivity=tuple(sensitivity(design)),
        curves={"slots": slots_curve(curve), "budget": budget_curve(design)},
        campaign=campaign,
        text=written(design, campaign),
        certificate=certificate,
        seconds=time.perf_counter() - started,
    )
