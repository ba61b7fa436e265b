"""Who reports: expected check-ins, reports and dummies of a slot, and the time that they take.

Clients pick slots at random, so the number at a slot is Binomial(n p/m), taken as Poisson here.
Nothing of it enters a price.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.special import pdtr

from checkins.accounting import NoiseAt
from checkins.planning.candidate import DesignCandidate
from checkins.planning.question import Question

BYTES_PER_NUMBER = 4
"""A report is one int32 for each number of the model."""
CHOOSE_SHARE = 0.3
"""Of a slot, check-ins first; the rest is for reports."""
LEAST_SLOT_S = 1.0
SAFETY = 2.0
"""Uploads may take so much longer than the uplink says."""


@dataclass(frozen=True, slots=True)
class Turnout:
    """One slot of a shape with this many clients, on average."""

    check_ins: float
    reports: float
    """Of real clients, that arrive."""
    empty: float
    """The chance that nobody real is in a slot."""
    dummies_share: float
    """Of the reports that a slot adds up; with noise at the server, of slots that hold nobody."""
    slot_s: float
    duration_s: float
    upload_bytes: int
    clients: int

    def share_that_uploads(self, shape: DesignCandidate) -> float:
        """Of all clients, in one run."""
        return min(1.0, self.reports * active_slots(shape) / self.clients)

    def upload_bytes_per_client(self, shape: DesignCandidate) -> float:
        """Expected, over all runs."""
        return self.share_that_uploads(shape) * self.upload_bytes * shape.repeats

    @property
    def server_updates_per_s(self) -> float:
        """While reports come in."""
        return self.reports / ((1.0 - CHOOSE_SHARE) * self.slot_s)


def turnout(
    shape: DesignCandidate, question: Question, *, clients: int, slot_s: float | None = None
) -> Turnout:
    """What a slot of this shape sees when so many clients exist.

    ``slot_s`` is chosen as short as the server and the uplink allow at the largest population that
    was named, unless it is given.
    """
    upload_bytes = BYTES_PER_NUMBER * question.dimension
    seconds = shortest_slot_s(shape, question) if slot_s is None else slot_s
    run_s = shape.slots * seconds
    kept = _kept(shape, question, run_s=run_s, slot_s=seconds)
    check_ins = clients * shape.participation / shape.slots * kept
    used = _used(check_ins, shape.capacity) * (1.0 - question.devices.dropout)
    empty = math.exp(-min(used, 700.0))
    dummies = empty
    if shape.capacity is not None and shape.noise_at is NoiseAt.CLIENT:
        dummies = max(0.0, 1.0 - used / shape.capacity)
    return Turnout(
        check_ins=check_ins,
        reports=used,
        empty=empty,
        dummies_share=dummies,
        slot_s=seconds,
        duration_s=run_s * shape.repeats,
        upload_bytes=upload_bytes,
        clients=clients,
    )


def shortest_slot_s(shape: DesignCandidate, question: Question) -> float:
    """Long enough for a report's way up, and for the server at the largest population named."""
    upload_s = BYTES_PER_NUMBER * question.dimension / question.devices.uplink_bytes_per_s
    most = question.population.most * shape.participation / shape.slots
    reports = _used(most, shape.capacity)
    busy_s = reports / question.server.updates_per_s
    needed = max(SAFETY * upload_s, busy_s) / (1.0 - CHOOSE_SHARE)
    return _rounded_up(max(LEAST_SLOT_S, needed))


def active_slots(shape: DesignCandidate) -> int:
    """Slots of one run that release a model."""
    return shape.slots if shape.window is None else shape.slots - shape.window + 1


def _kept(shape: DesignCandidate, question: Question, *, run_s: float, slot_s: float) -> float:
    """The share of appointments that devices can keep.

    A fixed window spreads them over a whole run; a sliding one over ``window`` slots.
    """
    spread_s = run_s if shape.window is None else shape.window * slot_s
    return min(1.0, question.availability_s / spread_s)


def _used(check_ins: float, capacity: int | None) -> float:
    """E min(X, K) for X ~ Poisson(check_ins)."""
    if capacity is None:
        return check_ins
    below = float(pdtr(capacity - 2, check_ins)) if capacity >= 2 else 0.0
    at_most = float(pdtr(capacity - 1, check_ins))
    return min(check_ins, check_ins * below + capacity * (1.0 - at_most))


def _rounded_up(seconds: float) -> float:
    """Two digits are enough for people, and never too few seconds."""
    place = 10.0 ** (math.floor(math.log10(seconds)) - 1)
    return float(f"{math.ceil(seconds / place - 1e-9) * place:.3g}")
