"""Exchange campaigns with dp_accounting: events, an accountant, and privacy loss distributions.

dp_accounting describes a mechanism by a ``DpEvent``, and its accountants compose events.
``CheckInsDpEvent`` is the event of a ``Design`` or a ``RandomAllocation``. ``CheckInsAccountant``
supports it, and all events of dp_accounting's ``PLDAccountant``. ``epsilon_with`` composes
campaigns with any mechanism that is given as dp_accounting's privacy loss distribution.

The package ``checkins.accounting`` does not import this module, so that it can be used if
dp_accounting is not installed.

>>> event = to_dp_event(RandomAllocation(1000, 10, 1.0, StepDraw.EACH_EPOCH))
>>> accountant = CheckInsAccountant(adjacency=Adjacency.ADD_REMOVE, smallest_delta=1e-5)
>>> round(accountant.compose(event).get_epsilon(1e-5), 3)
1.702
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.privacy_accountant import NeighboringRelation

from checkins import validate
from checkins.accounting.accountant import check_arguments, loss_distribution
from checkins.accounting.composition import Composition
from checkins.accounting.design import Adjacency, Design
from checkins.accounting.exact.dominating_pair import NO_LOSS, ROUND_OFF, DominatingPair
from checkins.accounting.exact.grid_distribution import Rounding, Side
from checkins.accounting.exact.slot_ratio import FloatArray
from checkins.accounting.random_allocation import RandomAllocation, StepDraw
from checkins.accounting.solve import crossing
from checkins.errors import InvalidValue, NotCovered

if TYPE_CHECKING:
    from dp_accounting.pld.pld_pmf import PLDPmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

Mechanism = Design | RandomAllocation
"""What an event describes: one campaign, or training by random allocation."""
NEIGHBORING_RELATIONS = {
    Adjacency.ADD_REMOVE: NeighboringRelation.ADD_OR_REMOVE_ONE,
    Adjacency.REPLACE_ONE: NeighboringRelation.REPLACE_ONE,
}
"""dp_accounting's name of each neighbour relation."""
_MAX_LOSS = 600.0  # e^loss of a larger loss does not fit the sums of a dominating pair


@attrs.frozen
class CheckInsDpEvent(dp_event.DpEvent):  # type: ignore[misc]  # dp_accounting has no types
    """One campaign of a ``Design``, or the training of a ``RandomAllocation``.

    In a campaign, a client is a record. Campaigns that run one after the other, with fresh
    randomness, are composed events.
    """

    mechanism: Mechanism

    def __attrs_post_init__(self) -> None:
        validate.one_of((Design, RandomAllocation), mechanism=self.mechanism)


def to_dp_event(
    mechanism: Mechanism | Sequence[Mechanism], *, campaigns: int = 1
) -> dp_event.DpEvent:
    """Return the event of one mechanism or of a sequence, which runs ``campaigns`` times."""
    validate.count(most=validate.MAX_CAMPAIGNS, campaigns=campaigns)
    if isinstance(mechanism, Sequence):
        event = dp_event.ComposedDpEvent([CheckInsDpEvent(one) for one in mechanism])
    else:
        event = CheckInsDpEvent(mechanism)
    return event if campaigns == 1 else dp_event.SelfComposedDpEvent(event, campaigns)


def from_dp_event(event: dp_event.DpEvent) -> list[tuple[Mechanism, int]]:
    """Return the mechanisms of an event, in order, each with the number of times that it runs.

    Raise ``NotCovered`` if the event contains a mechanism of another kind. The event
    ``RandomAllocationDpEvent`` of newer versions of dp_accounting is a ``RandomAllocation`` whose
    examples draw their steps from the whole run, if its inner event is Gaussian.
    """
    mechanism = _mechanism_of(event)
    if mechanism is not None:
        return [(mechanism, 1)]
    match event:
        case dp_event.NoOpDpEvent():
            return []
        case dp_event.ComposedDpEvent(events=events):
            return [found for one in events for found in from_dp_event(one)]
        case dp_event.SelfComposedDpEvent(event=inner, count=times):
            found, count = from_dp_event(inner), int(times)
            if len(found) == 1:
                return [(found[0][0], found[0][1] * count)]
            return found * count
    raise NotCovered("event", event, "is neither a campaign nor a composition of campaigns")


def _mechanism_of(event: dp_event.DpEvent) -> Mechanism | None:
    """Return the mechanism that one event describes, or None if it is an event of another kind."""
    if isinstance(event, CheckInsDpEvent):
        return event.mechanism
    # dp_accounting 0.6 does not have this class yet, so it can be recognized only by its name.
    if type(event).__name__ == "RandomAllocationDpEvent" and isinstance(
        event.event, dp_event.GaussianDpEvent
    ):
        return RandomAllocation(
            event.num_steps, event.num_selected, event.event.noise_multiplier, StepDraw.WHOLE_RUN
        )
    return None


class CheckInsAccountant(PLDAccountant):  # type: ignore[misc]  # dp_accounting has no types
    """dp_accounting's ``PLDAccountant`` that supports ``CheckInsDpEvent`` too.

    ``smallest_delta`` is the smallest delta at which epsilon will be asked for. ``interval`` is the
    distance between neighbouring points of the grid of privacy losses.

    Rounding:    up (pessimistic).
    """

    _pld: PrivacyLossDistribution

    def __init__(
        self, *, adjacency: Adjacency, smallest_delta: float, interval: float = 1e-4
    ) -> None:
        validate.one_of(Adjacency, adjacency=adjacency)
        validate.open_unit(smallest_delta=smallest_delta)
        super().__init__(NEIGHBORING_RELATIONS[adjacency], interval)
        self._adjacency = adjacency
        self._smallest_delta = smallest_delta
        self._loss_distributions: dict[tuple[Mechanism, int], PrivacyLossDistribution] = {}

    def _maybe_compose(self, event: dp_event.DpEvent, count: int, do_compose: bool) -> Any:
        """Compose an event if ``do_compose``. Return an error if it is not supported, or None."""
        try:
            mechanism = _mechanism_of(event)
            if mechanism is None:
                return super()._maybe_compose(event, count, do_compose)
            distribution = self._loss_distribution(mechanism, max(count, 1))
        except InvalidValue as refused:
            return self.CompositionErrorDetails(event, str(refused))
        if do_compose and count:
            self._pld = self._pld.compose(distribution)
        return None

    def _loss_distribution(self, mechanism: Mechanism, count: int) -> PrivacyLossDistribution:
        """Return the privacy loss distribution of ``count`` runs. Results are cached."""
        if (mechanism, count) not in self._loss_distributions:
            designs, repeats = _campaigns_of(mechanism)
            self._loss_distributions[mechanism, count] = loss_distribution(
                designs,
                delta=self._smallest_delta,
                adjacency=self._adjacency,
                interval=self._value_discretization_interval,
                campaigns=repeats * count,
            )
        return self._loss_distributions[mechanism, count]


def _campaigns_of(mechanism: Mechanism | Sequence[Design]) -> tuple[tuple[Design, ...], int]:
    """Return the designs of campaigns that dominate the mechanism, and how often to run them."""
    if isinstance(mechanism, RandomAllocation):
        return mechanism.designs, mechanism.repeats
    return ((mechanism,) if isinstance(mechanism, Design) else tuple(mechanism)), 1


def epsilon_with(
    mechanism: Mechanism | Sequence[Design],
    others: PrivacyLossDistribution,
    *,
    delta: float,
    adjacency: Adjacency,
    campaigns: int = 1,
) -> float:
    """Return an epsilon of ``campaigns`` runs of a mechanism, composed with other mechanisms.

    ``others`` is dp_accounting's privacy loss distribution of all other mechanisms together, for
    the same neighbour relation. It must be a pessimistic estimate.

    Rounding:    up, apart from floating-point errors in ``others``.
    """
    designs, repeats = _campaigns_of(mechanism)
    check_arguments(designs, delta=delta, adjacency=adjacency, campaigns=repeats * campaigns)
    rounding = Rounding.near(delta, side=Side.UP)
    ours = Composition(designs, adjacency, repeats * campaigns).pair(adjacency, delta, Side.UP)
    remove = ours.compose(from_pmf(others._pmf_remove, rounding), rounding)
    add = ours.compose(mirrored(from_pmf(others._pmf_add, rounding)), rounding)

    def delta_of(epsilon: float) -> float:
        return max(remove.remove(epsilon), add.add(epsilon)) * (1.0 + ROUND_OFF)

    return crossing(delta_of, delta, guess=1.0, precision=1e-9).upper


def from_pmf(pmf: PLDPmf, rounding: Rounding) -> DominatingPair:
    """Return a pair that dominates one direction of a privacy loss distribution, on our grid.

    A probability mass function of dp_accounting holds the distribution of the loss log P/Q under P.
    The mass of an outcome under Q is that under P, times e^-loss. For very small losses, tiny
    errors of a convolution would be multiplied by a huge e^-loss, and the masses under Q would sum
    to more than 1. Therefore the smallest losses are raised until this sum is at most 1.

    Rounding:    up.
    """
    if not pmf._pessimistic_estimate:
        raise InvalidValue("others", "an optimistic estimate", "must be a pessimistic estimate")
    dense = pmf.to_dense_pmf()
    losses = (dense._lower_loss + np.arange(dense.size)) * dense._discretization
    masses = np.maximum(np.asarray(dense._probs, dtype=np.float64), 0.0)
    infinite = max(0.0, float(dense._infinity_mass), 1.0 - math.fsum(masses))
    too_large = losses > _MAX_LOSS
    infinite += math.fsum(masses[too_large])
    losses, masses = losses[~too_large], masses[~too_large]
    losses, masses = _raise_smallest(np.maximum(losses, -_MAX_LOSS), masses)
    absent = masses * np.exp(-losses)
    pair = DominatingPair(
        absent,
        masses,
        masses * -np.expm1(-losses),
        min(1.0, infinite),
        max(0.0, 1.0 - math.fsum(absent)),
    )
    return NO_LOSS.compose(pair, rounding)


def _raise_smallest(losses: FloatArray, masses: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Raise the smallest losses until the sum of mass times e^-loss is at most 1. Drop zero masses.

    All mass below some loss is moved to that loss, and a share of the mass at that loss is moved to
    the next larger one.
    """
    keep = masses > 0.0
    losses, masses = losses[keep], masses[keep]
    up_to = np.cumsum(masses)
    above = np.cumsum((masses * np.exp(-losses))[::-1])[::-1] - masses * np.exp(-losses)
    fits = above + up_to * np.exp(-losses) <= 1.0
    least = int(np.argmax(fits)) if fits.any() else len(losses) - 1
    raised = masses[least:].copy()
    raised[0] = up_to[least]
    if least == 0 or not fits[least]:
        return losses[least:], raised
    # some of the mass can stay at the last loss that does not fit
    low, high = math.exp(-losses[least - 1]), math.exp(-losses[least])
    moved = up_to[least - 1]
    stays = max(0.0, 1.0 - above[least] - up_to[least] * high) / (low - high)
    raised[0] = up_to[least] - min(stays, moved)
    return losses[least - 1 :], np.concatenate(([min(stays, moved)], raised))


def mirrored(pair: DominatingPair) -> DominatingPair:
    """Return the pair with P and Q exchanged."""
    return DominatingPair(
        pair.present[::-1],
        pair.absent[::-1],
        -pair.gains[::-1],
        pair.only_absent,
        pair.only_present,
    )
