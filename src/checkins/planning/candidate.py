"""A design whose level of noise is not chosen yet, and the expected load of its slots.

Clients draw slots at random, so the number of clients in a slot is Binomial(n, p/m), where n is the
number of clients, p the participation and m the number of slots from which a client draws. This
distribution is approximated by a Poisson distribution. Certificates do not depend on these
estimates. A *dummy* is a report that the server draws in place of a missing report.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from scipy.special import pdtr

from checkins.accounting import (
    Design,
    GaussianNoise,
    LaplaceReports,
    LocalRandomizer,
    NoiseAt,
    NoiseStrategy,
    Population,
    PrivUnitReports,
    Protocol,
)
from checkins.accounting.precision import (
    Method,
    Precision,
    Target,
    calibrate_at,
    estimated_level,
    method_at,
    seems_out_of_reach,
)
from checkins.campaign import RandomizerKind
from checkins.planning.question import Question
from checkins.randomizers import Laplace, PrivUnit
from checkins.strategies import Workload, square_root


@dataclass(frozen=True, slots=True)
class DesignCandidate:
    """The parameters of a design, except its level of noise.

    The *level* is the noise multiplier of Gaussian noise, or the local epsilon of a pure
    randomizer. If ``capacity`` is None, a slot uses every check-in. ``population`` is None unless
    the certificate depends on it. ``dimension`` is the number of parameters of the model if reports
    are randomized by PrivUnit, and None otherwise. With more than one of ``bands``, the server
    correlates the noise of slots by the square-root strategy (``checkins.strategies``).
    """

    protocol: Protocol
    slots: int
    participation: float
    capacity: int | None
    window: int | None
    minibatch: int
    repeats: int
    randomizer: RandomizerKind
    noise_at: NoiseAt
    population: Population | None = None
    dimension: int | None = None
    bands: int = 1

    @property
    def is_gaussian(self) -> bool:
        return self.randomizer is RandomizerKind.GAUSSIAN

    @property
    def has_dummies(self) -> bool:
        """Whether the server replaces missing reports by dummies."""
        return self.capacity is not None and self.noise_at is NoiseAt.CLIENT

    @property
    def drawable_slots(self) -> int:
        """The number of slots from which a client draws its slot."""
        return self.slots if self.window is None else self.window

    @property
    def steps(self) -> int:
        """The number of model steps in all runs together."""
        return max(1, self.active_slots // self.minibatch) * self.repeats

    @property
    def active_slots(self) -> int:
        """The number of slots in one run that release a model.

        These are all slots, except the first ``window - 1`` slots of the sliding protocol.
        """
        return self.slots if self.window is None else self.slots - self.window + 1

    @property
    def simplest_equivalent(self) -> DesignCandidate:
        """The simplest candidate that has the same epsilon as this candidate at every level."""
        is_averaged = self.protocol is Protocol.AVERAGED
        if self.is_gaussian:
            slots = 1 if is_averaged else self.drawable_slots
            protocol = self.protocol if is_averaged else Protocol.FIXED
            return replace(self, protocol=protocol, slots=slots, window=None, minibatch=1)
        if is_averaged:
            laplace = replace(self, randomizer=RandomizerKind.LAPLACE, dimension=None)
            return replace(laplace, slots=1, minibatch=1)
        return replace(
            self,
            protocol=Protocol.FIXED,
            slots=self.drawable_slots,
            window=None,
            population=None,
            minibatch=1,
        )

    def design(self, level: float) -> Design:
        """Return the design at this noise multiplier or local epsilon."""
        return Design(
            self.protocol,
            slots=self.slots,
            participation=self.participation,
            randomizer=self._randomizer_at(level),
            capacity=self.capacity,
            window=self.window,
            population=self.population,
        )

    def _randomizer_at(self, level: float) -> GaussianNoise | LocalRandomizer:
        if self.is_gaussian:
            return GaussianNoise(level, self.noise_at, self.strategy)
        if self.randomizer is RandomizerKind.LAPLACE:
            return LaplaceReports(level)
        if self.dimension is not None:
            return PrivUnitReports(level, dimension=self.dimension)
        return LocalRandomizer(level)

    def _reference_design(self) -> Design:
        """Return the design at a level that is valid for every candidate.

        With Gaussian noise, the noise of a slot's sum has a standard deviation of one clip norm.
        """
        reports = self.capacity if self.noise_at is NoiseAt.CLIENT else None
        return self.design(1.0 / math.sqrt(reports or 1))

    def method(self, target: Target) -> Method:
        """Return the method that proves that a level meets the target, the same for every level."""
        return method_at(self._reference_design(), delta=target.delta, campaigns=self.repeats)

    def estimated_level(self, target: Target) -> float:
        """Return a level that approximately meets the target."""
        if self.strategy is None:
            return estimated_level(self._reference_design(), target, self.repeats)
        # Every g-th slot is a design with fewer slots and independent noise, but its noise is
        # smaller by the root of A_g (docs/theory/correlated-noise.md).
        levels = []
        for spacing in spacings(self.bands):
            grouped = replace(self, slots=max(1, self.drawable_slots // spacing), window=None)
            independent = replace(grouped, protocol=Protocol.FIXED, minibatch=1, bands=1)
            loss = math.sqrt(_square_root_sensitivity(self.bands, spacing))
            levels.append(_independent_level(independent, target) * loss)
        return min(levels)

    @property
    def strategy(self) -> NoiseStrategy | None:
        """The strategy of correlated noise; None if the noise of all slots is independent."""
        return None if self.bands == 1 else _square_root(self.bands)

    @property
    def noise_gain(self) -> float:
        """The mean square of the noise in all released models, compared with independent noise.

        The mean is over the models of a run that makes plain gradient steps. The noise of a slot
        has the same level in both cases, so a small gain must outweigh a larger level.
        """
        return 1.0 if self.bands == 1 else _noise_gain(self.bands, self.active_slots)

    def seems_out_of_reach(self, target: Target) -> bool:
        """Return True if no level meets the target, according to the estimates."""
        return seems_out_of_reach(self._reference_design(), target, self.repeats)

    def proven_level(
        self,
        target: Target,
        precision: Precision,
        *,
        guess: float | None = None,
        noise_tolerance: float = 0.004,
    ) -> float | None:
        """Return the level with the least noise that is proved to meet the target.

        Return None if no level is proved. ``noise_tolerance`` is the accepted excess over the least
        noise, as a fraction. The search starts at ``guess``, or at the estimate if it is None.
        """
        return calibrate_at(
            self._reference_design(),
            target,
            precision,
            campaigns=self.repeats,
            guess=guess,
            noise_tolerance=noise_tolerance,
        )

    def report_variance(self, level: float, *, dimension: int) -> float:
        """Return the squared error per coordinate of one report, in squared L2 clip norms.

        Laplace noise needs a limit on the L1 norm, which is up to √dimension times the L2 norm. So
        the L1 clip norm is √dimension times the L2 clip norm. With Gaussian noise at the server,
        return the squared error of a slot's sum.
        """
        if self.is_gaussian:
            return level * level
        if self.randomizer is RandomizerKind.LAPLACE:
            laplace = Laplace(math.sqrt(dimension), level)
            return laplace.variance(dimension=dimension) / dimension
        privunit = PrivUnit(1.0, max(level, 1e-6), dimension)
        return privunit.variance(dimension=dimension) / dimension

    def slot_variance(self, level: float, *, dimension: int, reports: float) -> float:
        """Return the variance of one coordinate of a slot's sum, dummies included.

        The unit is the squared L2 clip norm. ``reports`` is the number of client reports.
        """
        noise_variance = self.report_variance(level, dimension=dimension)
        if self.noise_at is NoiseAt.SERVER:
            return noise_variance
        return noise_variance * (reports if self.capacity is None else self.capacity)


def spacings(bands: int) -> Iterator[int]:
    """Yield the powers of two up to ``bands``, as spacings of slots that share no noise."""
    return (2**power for power in range(bands.bit_length()))


def grouped_sensitivity(coefficients: Sequence[float], spacing: int) -> float:
    """Return A_g of docs/theory/correlated-noise.md: the sum of (Σ c_k, k ≡ r mod g)² over r.

    >>> grouped_sensitivity((0.8, 0.6), 2), round(grouped_sensitivity((0.8, 0.6), 1), 2)
    (1.0, 1.96)
    """
    return sum(sum(coefficients[rest::spacing]) ** 2 for rest in range(spacing))


# A search asks for the same few strategies and levels thousands of times.
_square_root = lru_cache(maxsize=64)(square_root)


@lru_cache(maxsize=256)
def _square_root_sensitivity(bands: int, spacing: int) -> float:
    return grouped_sensitivity(_square_root(bands).coefficients, spacing)


@lru_cache(maxsize=4096)
def _independent_level(candidate: DesignCandidate, target: Target) -> float:
    return candidate.estimated_level(target)


@lru_cache(maxsize=1024)
def _noise_gain(bands: int, slots: int) -> float:
    workload = Workload(slots)
    return workload.error(_square_root(bands).coefficients) / workload.error((1.0,))


BYTES_PER_NUMBER = 4
"""Size of a report per model coordinate, which is one int32."""
CHECK_IN_SHARE = 0.3
"""Share of a slot's time for check-ins. The rest is for reports."""
MIN_SLOT_S = 1.0
"""Shortest slot in seconds that a plan uses."""
UPLOAD_SAFETY_FACTOR = 2.0
"""Time for an upload, divided by the time that the rate of the uplink implies."""


@dataclass(frozen=True, slots=True)
class SlotLoad:
    """The expected load of one slot of a candidate."""

    check_ins: float
    reports: float
    """Expected number of client reports that arrive, without dummies."""
    empty_probability: float
    """The probability that no client report arrives in a slot."""
    dummies_share: float
    """If the server draws dummies, their share of a slot's reports. Otherwise the share of empty
    slots."""
    slot_s: float
    duration_s: float
    upload_bytes: int
    clients: int

    def share_that_uploads(self, candidate: DesignCandidate) -> float:
        """Return the share of all clients that upload in one run."""
        return min(1.0, self.reports * candidate.active_slots / self.clients)

    def upload_bytes_per_client(self, candidate: DesignCandidate) -> float:
        """Return the expected number of bytes that one client uploads in all runs."""
        return self.share_that_uploads(candidate) * self.upload_bytes * candidate.repeats

    @property
    def server_updates_per_s(self) -> float:
        """Reports per second during the part of a slot that is for reports."""
        return self.reports / ((1.0 - CHECK_IN_SHARE) * self.slot_s)


def slot_load(
    candidate: DesignCandidate, question: Question, *, clients: int, slot_s: float | None = None
) -> SlotLoad:
    """Return the expected load of a slot if there are ``clients`` clients.

    If ``slot_s`` is None, the slot is as short as the server and the uplink allow for the largest
    declared population.
    """
    upload_bytes = BYTES_PER_NUMBER * question.dimension
    length_s = shortest_slot_s(candidate, question) if slot_s is None else slot_s
    run_s = candidate.slots * length_s
    drawable_s = run_s if candidate.window is None else candidate.window * length_s
    # the probability that a client is available during the slot that it drew
    availability = min(1.0, question.availability_s / drawable_s)
    check_ins = clients * candidate.participation / candidate.slots * availability
    reports = _expected_reports(check_ins, candidate.capacity) * (1.0 - question.devices.dropout)
    empty_probability = math.exp(-min(reports, 700.0))
    dummies_share = empty_probability
    if candidate.has_dummies:
        dummies_share = max(0.0, 1.0 - reports / (candidate.capacity or 1))
    return SlotLoad(
        check_ins=check_ins,
        reports=reports,
        empty_probability=empty_probability,
        dummies_share=dummies_share,
        slot_s=length_s,
        duration_s=run_s * candidate.repeats,
        upload_bytes=upload_bytes,
        clients=clients,
    )


def shortest_slot_s(candidate: DesignCandidate, question: Question) -> float:
    """Return the length in seconds of the shortest slot in which all reports can be uploaded.

    It is computed for the largest declared population, and for the number of reports that the
    server can process per second.
    """
    upload_s = BYTES_PER_NUMBER * question.dimension / question.devices.uplink_bytes_per_s
    most_check_ins = question.population.most * candidate.participation / candidate.slots
    reports = _expected_reports(most_check_ins, candidate.capacity)
    server_s = reports / question.server.updates_per_s
    needed_s = max(UPLOAD_SAFETY_FACTOR * upload_s, server_s) / (1.0 - CHECK_IN_SHARE)
    return _rounded_up_to_two_digits(max(MIN_SLOT_S, needed_s))


def _expected_reports(check_ins: float, capacity: int | None) -> float:
    """Return E min(X, K) for X ~ Poisson(check_ins) and capacity K, where None is no limit."""
    if capacity is None:
        return check_ins
    probability_below = float(pdtr(capacity - 2, check_ins)) if capacity >= 2 else 0.0
    probability_not_full = float(pdtr(capacity - 1, check_ins))
    return min(check_ins, check_ins * probability_below + capacity * (1.0 - probability_not_full))


def _rounded_up_to_two_digits(seconds: float) -> float:
    """Return the seconds, rounded up to two significant digits."""
    place = 10.0 ** (math.floor(math.log10(seconds)) - 1)
    return float(f"{math.ceil(seconds / place - 1e-9) * place:.3g}")
