"""The odometer of a device: an upper bound on the privacy loss of all its participations.

A device has no accountant. It adds up budgets, which are part of the sealed campaign:

- A coordinator releases nothing that would exceed the budget of its campaign, together with all
  earlier campaigns in the same ledger. So one budget bounds all campaigns of a ledger whose budgets
  are not larger. A later campaign with a larger budget is added in full.
- Budgets of different ledgers, and raised budgets, are added: epsilon and delta.

Two campaigns have the same ledger if the ledger of the second contains the line that was the last
line of the first. The device asks the service for the hash of that line. If the hash differs, or
the service cannot show it, the campaign is charged as if it had a ledger of its own. A ledger that
was continued twice from this line, by two stores, counts as one.

Theorem:     docs/theory/device-odometer.md. A limit on epsilon that was fixed beforehand holds even
             if campaigns are chosen after earlier releases.
Neighbours:  those of the budgets. If these differ, replace-one: a pair of replace-one neighbours is
             two steps of add-remove, so (epsilon, delta) is (2 epsilon, (1 + exp(epsilon)) delta).
Rounding:    up.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from checkins import durable_file, validate
from checkins.accounting.design import Adjacency, Protocol
from checkins.client.actions import CampaignRefused
from checkins.client.state import SavedState, file_lock, make_private_folder
from checkins.client.view import CampaignView
from checkins.errors import InvalidValue
from checkins.protocol import wire
from checkins.protocol.participant import Phase

SCHEMA = 1
"""Version of the stored format."""
FILE_NAME = "odometer.json"
_STATE_FILE = re.compile(rf"({wire.RUN_ID})\.json")


@dataclass(frozen=True, slots=True)
class Charge:
    """An upper bound on the device's privacy loss in the campaigns of one ledger within one budget.

    ``entries`` and ``head`` are the length of the ledger and the hash of its last line when the
    device last joined one of its campaigns. ``runs`` are the runs that are charged here.
    """

    population: str
    adjacency: Adjacency
    epsilon: float
    delta: float
    entries: int
    head: str
    runs: tuple[str, ...] = ()

    @classmethod
    def of(cls, view: CampaignView) -> Charge:
        """Return the charge of one campaign, as if it had a ledger of its own.

        Epsilon is infinite for averaged updates without ``least_reports``, because it depends on
        the number of clients, which nobody knows before the end.
        """
        campaign, budget = view.campaign, view.campaign.budget
        is_averaged = campaign.design.protocol is Protocol.AVERAGED
        is_bounded = not is_averaged or campaign.design.least_reports is not None
        return cls(
            campaign.population_key,
            budget.adjacency,
            budget.epsilon if is_bounded else math.inf,
            budget.delta,
            view.entries,
            view.head,
            (view.id,),
        )

    def covers(self, other: Charge) -> bool:
        """Return whether this charge also bounds ``other``, a charge of the same ledger."""
        return (
            (self.population, self.adjacency) == (other.population, other.adjacency)
            and self.epsilon >= other.epsilon
            and self.delta >= other.delta
        )


@dataclass(frozen=True, slots=True)
class PrivacyLoss:
    """An upper bound on a privacy loss, for one adjacency."""

    epsilon: float
    delta: float
    adjacency: Adjacency

    def as_json(self) -> dict[str, object]:
        """Return the privacy loss as JSON values. Epsilon is None if there is no bound."""
        return {**asdict(self), "epsilon": self.epsilon if math.isfinite(self.epsilon) else None}


@dataclass(frozen=True, slots=True)
class Odometer:
    """All charges of a device.

    >>> Odometer().total().epsilon
    0.0
    """

    charges: tuple[Charge, ...] = ()

    def charged(self, view: CampaignView, *, same_ledger: Collection[str]) -> Odometer:
        """Return the odometer with the charge of a campaign. A run is charged once.

        ``same_ledger`` are the heads in ``charges`` that the ledger of the campaign contains.
        """
        new = Charge.of(view)
        for place, old in enumerate(self.charges):
            is_same = old.head in same_ledger or old.head == new.head
            if (is_same or view.id in old.runs) and old.covers(new):
                runs = tuple(dict.fromkeys((*old.runs, view.id)))
                merged = replace(old, entries=new.entries, head=new.head, runs=runs)
                return Odometer((*self.charges[:place], merged, *self.charges[place + 1 :]))
        return Odometer((*self.charges, new))

    def total(self) -> PrivacyLoss:
        """Return the sum of all charges, rounded up."""
        is_mixed = any(charge.adjacency is Adjacency.REPLACE_ONE for charge in self.charges)
        losses = [_as_replace_one(charge) if is_mixed else charge for charge in self.charges]
        return PrivacyLoss(
            _sum_up(loss.epsilon for loss in losses),
            min(1.0, _sum_up(loss.delta for loss in losses)),
            Adjacency.REPLACE_ONE if is_mixed else Adjacency.ADD_REMOVE,
        )

    def to_bytes(self) -> bytes:
        """Encode the odometer as one JSON object. An infinite epsilon is null."""
        charges: list[dict[str, Any]] = [asdict(charge) for charge in self.charges]
        for charge in charges:
            if math.isinf(charge["epsilon"]):
                charge["epsilon"] = None
        return json.dumps({"schema": SCHEMA, "charges": charges}, indent=1).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> Odometer:
        """Decode an odometer; raise InvalidValue if the bytes are damaged."""
        try:
            values = json.loads(data)
            if values["schema"] != SCHEMA:
                raise ValueError("the odometer has another schema")
            return cls(tuple(_charge_of(fields) for fields in values["charges"]))
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidValue(
                "state",
                data[:40],
                f"{FILE_NAME} is not a device's odometer ({type(error).__name__}), so what this"
                " device has spent is unknown: repair the file",
            ) from error


def _charge_of(fields: dict[str, Any]) -> Charge:
    epsilon = math.inf if fields["epsilon"] is None else fields["epsilon"]
    adjacency, runs = Adjacency(fields["adjacency"]), tuple(fields["runs"])
    charge = Charge(**{**fields, "adjacency": adjacency, "epsilon": epsilon, "runs": runs})
    if not math.isinf(charge.epsilon):
        validate.non_negative(epsilon=charge.epsilon)
    validate.non_negative(delta=charge.delta)
    return charge


def _as_replace_one(charge: Charge) -> PrivacyLoss:
    if charge.adjacency is Adjacency.REPLACE_ONE:
        return PrivacyLoss(charge.epsilon, charge.delta, Adjacency.REPLACE_ONE)
    factor = math.inf if charge.epsilon > 700.0 else 1.0 + math.exp(charge.epsilon)
    delta = charge.delta * factor * (1.0 + 1e-12)  # more than all rounding errors
    return PrivacyLoss(2.0 * charge.epsilon, delta, Adjacency.REPLACE_ONE)


def _sum_up(values: Iterator[float]) -> float:
    terms = list(values)
    total = math.fsum(terms)  # rounded to nearest
    return total if len(terms) < 2 or math.isinf(total) else math.nextafter(total, math.inf)


@dataclass(frozen=True, slots=True)
class OdometerFile:
    """The odometer in a device's folder of states. It is durable when ``charge`` returns."""

    folder: Path

    def load(self) -> Odometer:
        """Return the stored odometer, which is empty if nothing was charged yet."""
        try:
            return Odometer.from_bytes((self.folder / FILE_NAME).read_bytes())
        except FileNotFoundError:
            return Odometer()

    def check(
        self, view: CampaignView, *, same_ledger: Collection[str], most_epsilon: float | None
    ) -> Odometer:
        """Return the odometer after this campaign; raise CampaignRefused if it is above the limit.

        ``most_epsilon`` is the limit; None means no limit.
        """
        after = self.load().charged(view, same_ledger=same_ledger)
        if most_epsilon is None:
            return after
        if unknown := self._uncharged_runs(after):
            raise CampaignRefused(
                "most_epsilon",
                most_epsilon,
                f"cannot be kept: this device took part in {', '.join(unknown[:3])} before it had"
                " an odometer, so what it has spent is unknown",
            )
        epsilon = after.total().epsilon
        if not epsilon <= most_epsilon:
            spent = "more than any number" if math.isinf(epsilon) else f"{epsilon!r}"
            raise CampaignRefused(
                "most_epsilon",
                most_epsilon,
                f"would be exceeded: with this campaign, this device has spent up to {spent}",
            )
        return after

    def charge(
        self, view: CampaignView, *, same_ledger: Collection[str], most_epsilon: float | None
    ) -> PrivacyLoss:
        """Charge a campaign durably, and return the total; raise as ``check`` does."""
        with self._lock():
            before = self.load()
            after = self.check(view, same_ledger=same_ledger, most_epsilon=most_epsilon)
            if after != before:
                path = self.folder / FILE_NAME
                durable_file.replace_content(path, after.to_bytes(), mode=0o600)
        return after.total()

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with file_lock(make_private_folder(self.folder) / "odometer.lock"):
            yield

    def _uncharged_runs(self, odometer: Odometer) -> list[str]:
        """Return the runs in which this folder's device drew a slot, and which are not charged."""
        charged = {run for charge in odometer.charges for run in charge.runs}
        uncharged = []
        for path in sorted(self.folder.glob("*.json")):
            match = _STATE_FILE.fullmatch(path.name)
            if match is None or match[1] in charged:
                continue
            state = SavedState.from_bytes(path.read_bytes())
            if state.ended is not None or state.phase not in (None, Phase.NEW):
                uncharged.append(match[1])
        return uncharged
