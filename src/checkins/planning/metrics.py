"""What a design is expected to be worth, and what it takes: the four axes of a plan, and more.

The proxy is one number for every design, so that they can be compared; smaller is better:

    proxy = R/(2ηT) + √V,     V = g²/N + d s²/T

in clips times the distance R that the model must go. T model steps of the largest stable size η
leave R/(2ηT) of the way (momentum lengthens them); V is the variance of the mean of all steps: g²
the mean square of an update in clips, N how many people it is taken from, s the standard deviation
of one coordinate of one step's mean update, d the dimension. s counts dummies, dropouts and
dismissed check-ins: it is the noise of a slot's sum over the real reports in it.

Theorem:     the shape of thm:util_new2 for smooth losses ([B15, Thm 6.3]), without its constants.
             Where a theorem of the paper covers a design, its risk stands beside the proxy.
Rounding:    none: a proxy promises nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from checkins.accounting import NoiseAt, Protocol
from checkins.accounting.paper.occupancy import expected_inverse_load
from checkins.accounting.paper.utility import averaged_risk, fixed_window_risk
from checkins.errors import InvalidValue
from checkins.planning.candidate import DesignCandidate
from checkins.planning.question import Question
from checkins.planning.turnout import Turnout, turnout

EFFECTIVE_NOISE = "effective-noise"


@dataclass(frozen=True, slots=True)
class Figures:
    """A design's expected accuracy and its cost to devices and server."""

    proxy: float
    noise_per_step: float
    variance: float
    """V: of the mean of all steps."""
    steps: int
    clients_per_step: float
    turnout: Turnout

    @property
    def duration_s(self) -> float:
        return self.turnout.duration_s


@dataclass(frozen=True, slots=True)
class TheoremRisk:
    """What a theorem of the paper bounds the excess risk by, unit Lipschitz and unit diameter."""

    risk: float
    theorem: str


def figures(
    shape: DesignCandidate,
    level: float,
    question: Question,
    *,
    clients: int | None = None,
    slot_s: float | None = None,
) -> Figures:
    """The figures of a shape at this noise; by default for the clients that are reckoned with."""
    count = question.clients if clients is None else clients
    seen = turnout(shape, question, clients=count, slot_s=slot_s)
    dimension, batch, steps = question.dimension, shape.minibatch, shape.steps
    reports = max(seen.reports, 1e-12)
    working = float(steps)
    if shape.protocol is Protocol.AVERAGED:
        one = shape.report_variance(level, dimension=dimension)
        square = one * _inverse_load(reports)
        working *= max(1.0 - seen.empty, 1e-12)
    else:
        slot = shape.slot_variance(level, dimension=dimension, reports=reports)
        square = slot / (batch * reports * reports)
    people = max(min(reports * batch * working, seen.share_that_uploads(shape) * count), 1e-12)
    variance = question.learning.spread / people + dimension * square / working
    proxy = question.learning.bias(working) + math.sqrt(variance)
    return Figures(
        proxy=proxy,
        noise_per_step=math.sqrt(square),
        variance=variance,
        steps=steps,
        clients_per_step=seen.reports * batch,
        turnout=seen,
    )


def theorem_risk(shape: DesignCandidate, level: float, question: Question) -> TheoremRisk | None:
    """The paper's bound where it covers the design: one report a slot, or averages, one run."""
    if shape.repeats > 1 or shape.minibatch > 1:
        return None
    try:
        if shape.protocol is Protocol.AVERAGED:
            std = math.sqrt(shape.report_variance(level, dimension=question.dimension))
            risk = averaged_risk(
                clients=question.clients,
                slots=shape.slots,
                lipschitz=1.0,
                diameter=1.0,
                dimension=question.dimension,
                noise_std=std,
            )
            return TheoremRisk(risk, "thm:util_new2")
        alone = shape.is_gaussian and shape.noise_at is NoiseAt.CLIENT and shape.capacity == 1
        if shape.protocol is Protocol.FIXED and alone:
            risk = fixed_window_risk(
                clients=question.clients,
                slots=shape.slots,
                participation=shape.participation,
                lipschitz=1.0,
                diameter=1.0,
                dimension=question.dimension,
                noise_std=level,
            )
            return TheoremRisk(risk, "thm:util_new")
    except InvalidValue:
        return None
    return None


def _inverse_load(reports: float) -> float:
    """E[1/S | S > 0] for about so many reports a slot."""
    if reports >= 200.0:
        return 1.0 / reports * (1.0 + 1.0 / reports)
    many = 100_000  # clients and slots in this ratio: nearly Poisson
    return expected_inverse_load(clients=many, slots=max(2, round(many / reports)))
