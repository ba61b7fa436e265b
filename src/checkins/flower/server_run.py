"""One run of a campaign inside Flower's ServerApp: the state machine, the ledger and the used keys.

This module does not import Flower. ``checkins.flower.strategy`` passes it the public keys of the
nodes that check in and their updates. Two files are durable in ``folder``:

- ``ledger.jsonl`` is a ledger as a coordinator writes it, so ``checkins verify`` accepts it.
- ``used-keys.json`` holds a hash of each public key that has checked in. It is saved before anyone
  is chosen, so that no key takes part twice, even if the process is killed. It contains no slot and
  no time, and is erased at the end of the run.

If the process is killed, a later process continues the run after the last slot in the ledger. The
slot that was in progress, and all slots that have passed meanwhile, close without reports.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from checkins import durable_file
from checkins.accounting import Certificate, NoiseAt
from checkins.campaign import Campaign
from checkins.errors import InvalidValue, OutOfOrder, ProtocolViolation
from checkins.ledger import (
    Closed,
    Ledger,
    LedgerFile,
    Reason,
    SlotClosed,
    certificate,
    lines,
    spending_of,
)
from checkins.protocol import wire
from checkins.protocol.machine import Effects, Event
from checkins.protocol.report import Report
from checkins.protocol.rules import RunSchedule, sampler_of
from checkins.protocol.server import (
    ClosingRecorded,
    Phase,
    RecordClosing,
    Server,
    SlotBegan,
    server_of,
    step,
)
from checkins.protocol.slot import (
    CheckedIn,
    ChoiceRecorded,
    Choose,
    Expired,
    Invite,
    RecordCheckIn,
    ReportArrived,
    Slot,
)
from checkins.randomizers import DeviceReport, DeviceSampler

USED_KEYS_NAME = "used-keys.json"
SCHEMA = 1
"""Version of the format of ``used-keys.json``."""

DIFFERENCES = (
    "Flower: a node that is online at the choice has checked in. Its gate drew the slot, and the"
    " server sends it a message; so the gate and not the server must decide when a node is online,"
    " and every node must have one gate",
    "Flower: each public key takes part at most once, so a client must not have two registered"
    " keys: the SuperLink must run with --enable-supernode-auth",
    "Flower: the adversary sees the releases, and not the SuperLink: its database and its log have"
    " the times when each node was online, which tell the slot of the node, until they are deleted",
    "Flower: while a node is online, every app that is submitted to the SuperLink can use its data;"
    " only this app's releases are covered",
)
"""What a certificate assumes in addition if a SuperLink carries the messages."""


@dataclass(slots=True, eq=False)
class ServerRun:
    """A run that is open in ``folder``. ``open_run`` creates it.

    ``server`` is the state of the state machine, and ``used_keys`` are the hashes of the public
    keys that have checked in. ``simulated`` marks a run whose slots the server itself has drawn.
    """

    campaign: Campaign
    folder: Path
    file: LedgerFile
    server: Server
    sampler: DeviceSampler
    simulated: bool
    used_keys: set[str] = field(default_factory=set)

    @property
    def id(self) -> str:
        """The id of the run, as a coordinator would name it."""
        return wire.run_id(self.campaign.seal, 1)

    @property
    def schedule(self) -> RunSchedule:
        return RunSchedule.of(self.campaign)

    @property
    def is_over(self) -> bool:
        return self.server.phase is Phase.DONE

    @property
    def slot(self) -> int:
        """The slot in progress, or the next slot."""
        return self.server.closed + 1

    @property
    def model(self) -> NDArray[np.float64]:
        """The model that was released last, or the initial model."""
        return self.server.learner.model

    @property
    def noise_at_server(self) -> bool:
        """Whether reports come without noise, and the server adds it to their sum."""
        return self.campaign.noise_at is NoiseAt.SERVER

    @property
    def spent(self) -> float:
        """Epsilon of the slots that are closed so far, together with all earlier runs."""
        earlier = spending_of(self.file.ledger, self.campaign)
        return earlier.epsilon_after(self.server.closed) if self.server.closed else 0.0

    def begin_slot(self) -> int:
        """Begin the next slot and return its number."""
        slot = self.slot
        self._step(SlotBegan(slot))
        return slot

    def choose(self, public_keys: Iterable[bytes]) -> dict[str, bytes]:
        """Check in the nodes with these keys; return the receipts and keys of the chosen nodes.

        A key that has checked in before is ignored. The keys are durably marked as used before the
        choice. If the process is killed after that, nobody else is chosen in their place.
        """
        slot, keys_by_receipt = self.slot, {}
        for key in public_keys:
            token, receipt = self._hash(key), secrets.token_hex(16)
            has_participated = token in self.used_keys
            try:
                effects = self._step(CheckedIn(slot, token, receipt, has_participated))
            except ProtocolViolation:
                continue  # the key is used up
            if any(isinstance(effect, RecordCheckIn) for effect in effects):
                keys_by_receipt[receipt] = key
        if keys_by_receipt:
            self._save_used_keys(self._hash(key) for key in keys_by_receipt.values())
        draws = tuple(secrets.randbelow(bound) for bound in self._open_slot.ranges)
        self._step(Choose(slot, draws))
        effects = self._step(ChoiceRecorded(slot))
        chosen = [effect.receipt for effect in effects if isinstance(effect, Invite)]
        return {receipt: keys_by_receipt[receipt] for receipt in chosen}

    def add_update(self, receipt: str, update: NDArray[np.float64]) -> None:
        """Clip the update of a chosen node, and accept it as the node's report.

        NaN and infinite numbers are clipped too (``checkins.randomizers.grid``).
        """
        if not self.noise_at_server:
            raise ProtocolViolation("clients add the noise, so they send reports and no updates")
        self._add(receipt, self.sampler.encode(update))

    def add_report(self, receipt: str, units: NDArray[np.int32]) -> None:
        """Accept a report: an update that its client has clipped and, if it must, randomized.

        Raise ProtocolViolation or InvalidValue if it cannot be a report of this campaign, for
        example because its norm is too large.
        """
        self._add(receipt, DeviceReport(units, self.sampler.grid))

    def _add(self, receipt: str, report: DeviceReport) -> None:
        self._step(ReportArrived(self.slot, receipt, Report.from_device(report)))

    def close_slot(self) -> NDArray[np.float64]:
        """Draw dummies or noise, write the slot to the ledger, and return the released model."""
        slot, sampler = self._open_slot, self.sampler
        dummies = tuple(Report.from_device(sampler.dummy()) for _ in range(slot.missing_dummies))
        noise = Report.from_noise(sampler.noise()) if slot.needs_noise else None
        effects = self._step(Expired(slot.number, dummies, noise))
        (closing,) = (effect for effect in effects if isinstance(effect, RecordClosing))
        self.file.append(
            SlotClosed.of(
                slot=closing.slot,
                total=closing.total,
                model=closing.model,
                contributors=closing.contributors,
            )
        )
        self._step(ClosingRecorded(slot.number))
        return self.model

    def finish(self) -> Certificate:
        """Write the certificate of the run to the ledger, erase the used keys, and return it."""
        if not self.is_over:
            raise OutOfOrder("the run is not over")
        certified = with_differences(certificate(self.file.ledger))
        is_complete = self.server.closed == self.server.rules.slots
        reason = Reason.COMPLETED if is_complete else Reason.STOPPED
        self.file.append(Closed(reason, certified.as_dict()))
        (self.folder / USED_KEYS_NAME).unlink(missing_ok=True)
        return certified

    @property
    def _open_slot(self) -> Slot:
        if self.server.slot is None:
            raise OutOfOrder("no slot is in progress")
        return self.server.slot

    def _step(self, event: Event) -> Effects:
        self.server, effects = step(self.server, event)
        return effects

    def _hash(self, public_key: bytes) -> str:
        """Return the hash of a public key that is saved. It differs between runs."""
        return hashlib.sha256(self.campaign.seal.encode() + public_key).hexdigest()

    def _save_used_keys(self, new: Iterable[str]) -> None:
        self.used_keys.update(new)
        _save_used_keys(self.folder, self.id, self.used_keys)


def with_differences(certified: Certificate) -> Certificate:
    """Return a certificate that also lists what holds only inside Flower's server."""
    return replace(certified, assumptions=(*certified.assumptions, *DIFFERENCES))


@contextmanager
def open_run(
    campaign: Campaign,
    model: NDArray[np.float64],
    folder: str | os.PathLike[str],
    *,
    now_s: float,
    simulated: bool = False,
) -> Iterator[ServerRun]:
    """Open the run of a campaign, or continue it, during the ``with`` block.

    ``model`` is the initial model. ``folder`` must exist. The ledger in it may contain earlier
    campaigns on the same population. ``now_s`` is the time in seconds since 1970.
    """
    _check_campaign(campaign)
    folder = Path(folder)
    with LedgerFile(folder / "ledger.jsonl") as file:
        _check_not_mixed(campaign, file, simulated=simulated)
        running = file.ledger.running
        if running is None:
            # A process that was killed at its end has left the keys of a run that is over.
            (folder / USED_KEYS_NAME).unlink(missing_ok=True)
            affordable = _open_in_ledger(campaign, model, file, now_s=now_s, simulated=simulated)
            server = server_of(campaign, model, affordable=affordable)
            used_keys: set[str] = set()
        else:
            if running.seal != campaign.seal:
                expected = (
                    f"cannot run while campaign {running.campaign.name!r} is open in {folder}"
                )
                raise InvalidValue("campaign", campaign.name, expected)
            server = _continued(campaign, model, file)
            used_keys = _load_used_keys(folder / USED_KEYS_NAME, wire.run_id(campaign.seal, 1))
        sampler = sampler_of(campaign, dimension=model.size)
        yield ServerRun(campaign, folder, file, server, sampler, simulated, used_keys)


def _check_campaign(campaign: Campaign) -> None:
    if campaign.missing:
        raise InvalidValue("campaign", campaign.name, f"needs {', '.join(campaign.missing)}")
    if campaign.repeats != 1:
        expected = "must be 1 inside Flower's server: make a campaign for each run"
        raise InvalidValue("repeats", campaign.repeats, expected)


def _check_not_mixed(campaign: Campaign, file: LedgerFile, *, simulated: bool) -> None:
    """Raise if the ledger has simulated and real runs: a simulation spends no real budget."""
    for run in file.ledger.runs:
        if run.simulated != simulated:
            kind, other = ("simulation", "real") if simulated else ("real run", "simulated")
            expected = (
                f"is a {kind}, and {file.path.parent} has the {other} campaign"
                f" {run.campaign.name!r}: give another folder"
            )
            raise InvalidValue("campaign", campaign.name, expected)


def _open_in_ledger(
    campaign: Campaign,
    model: NDArray[np.float64],
    file: LedgerFile,
    *,
    now_s: float,
    simulated: bool,
) -> int:
    """Append the entry that opens the campaign; return how many slots the budget allows."""
    ledger: Ledger = file.ledger
    if any(run.seal == campaign.seal for run in ledger.closed):
        remedy = (
            "give another folder"
            if simulated
            else "change its [schedule], which makes it another campaign"
        )
        expected = f"is over in {file.path.parent}: {remedy}"
        raise InvalidValue("campaign", campaign.name, expected)
    if not simulated and RunSchedule.of(campaign).begins(1) < now_s:
        expected = "has passed, and nodes could not have known of it: give a later start"
        raise InvalidValue("start", campaign.schedule and campaign.schedule.start, expected)
    spending = spending_of(ledger, campaign)
    affordable = spending.affordable_slots_in_run()
    if affordable == 0:
        first = f"the epsilon of the first slot is {spending.epsilon_after(1):.4g}"
        expected = f"allows no slot of this campaign: {first}"
        raise InvalidValue("epsilon", campaign.budget.epsilon, expected)
    # First, so that a run in the ledger without this file is known to have lost it.
    _save_used_keys(file.path.parent, wire.run_id(campaign.seal, 1), ())
    file.append(ledger.opening(campaign, model=model, simulated=simulated))
    return affordable


def _continued(campaign: Campaign, model: NDArray[np.float64], file: LedgerFile) -> Server:
    """Return the state after the last slot in the ledger, computed from its totals."""
    if campaign.strategy is not None:
        expected = (
            "has correlated noise, so the run needs secret sums of earlier slots, which were lost"
            " with the process"
        )
        raise InvalidValue("campaign", campaign.name, expected)
    before, ledger = Ledger(), Ledger()
    entries: list[SlotClosed] = []
    for line in lines(file.path):
        if not line.endswith(b"\n"):
            break  # torn by the crash, and removed before the next append
        ledger, entry = ledger.read(line)
        if isinstance(entry, Closed):
            before, entries = ledger, []
        elif isinstance(entry, SlotClosed):
            entries.append(entry)
        elif not np.array_equal(entry.numbers(), model):
            raise InvalidValue("model", "...", "must be the initial model of the run in the ledger")
    affordable = spending_of(before, campaign).affordable_slots_in_run()
    server = server_of(campaign, model, affordable=affordable)
    learner = server.learner
    for entry in entries:
        if server.rules.releases_model(entry.slot):
            learner = server.rules.update.apply(learner, entry.numbers(), entry.contributors)
    phase = Phase.WAITING if len(entries) < affordable else Phase.DONE
    return replace(server, learner=learner, closed=len(entries), phase=phase)


def _save_used_keys(folder: Path, run: str, used_keys: Iterable[str]) -> None:
    content = {"schema": SCHEMA, "run": run, "keys": sorted(used_keys)}
    path = folder / USED_KEYS_NAME
    durable_file.replace_content(path, json.dumps(content).encode() + b"\n", mode=0o600)


def _load_used_keys(path: Path, run: str) -> set[str]:
    """Return the saved keys of a run that is continued; raise InvalidValue if they are lost."""
    try:
        content = json.loads(path.read_bytes())
        if (content["schema"], content["run"]) != (SCHEMA, run):
            raise ValueError("other schema or run")
        return {str(key) for key in content["keys"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        expected = "must have the keys that took part in this run: without them, it cannot continue"
        raise InvalidValue("state", str(path), expected) from error
