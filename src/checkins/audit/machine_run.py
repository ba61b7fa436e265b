"""Run one campaign from start to end with the real state machines and injected faults.

A state machine maps a state and an event to the next state and to effects, such as a message to
send or a state to write to disk. This module performs the effects. Memory and disk are separate,
and a server or device that restarts continues from its state on disk
(``checkins.protocol.machine``). Random draws and noise come from the operating system, as in
production. The canary is the client whose participation an audit tries to detect.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from checkins.client.clock_and_randomness import OS_RANDOMNESS
from checkins.errors import InvalidValue, ProtocolViolation
from checkins.protocol import participant as clients  # for the state machine of a client
from checkins.protocol import participant as events  # the same module, for events and effects
from checkins.protocol import server as servers
from checkins.protocol import slot as slots
from checkins.protocol.machine import Effect, Event, Message
from checkins.protocol.model_update import Model
from checkins.protocol.participant import Outcome, Participant
from checkins.protocol.report import Report
from checkins.protocol.server import RecordClosing, Release, Server
from checkins.randomizers import DeviceSampler
from checkins.service.runs import slot_transitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The faults that are injected into every run of a campaign. By default there are none.

    No fault depends on the canary's data. A correct implementation satisfies its certificate under
    every fault.

    ``repeated_messages``: each message arrives this many additional times.
    ``crashes_after_draw``: a device restarts this many times after its draw is on disk.
    ``crashes_after_declining``: a device that has drawn not to take part restarts this many times.
    ``crashes_after_report``: a device restarts this many times right after it sent its report.
    ``crashes_while_closing``: in each slot, the server restarts this many times while it closes
    the slot: right after it recorded the closing or released the model.
    ``crashes_at_invitation``: in each slot, the server restarts at most this many times after it
    has invited another client instead of the canary. An adversary who sees uploads could cause
    these restarts.
    ``late_report``: the network delays the canary's report until the last slot.
    ``restorations``: after the canary's device has finished, it is restored in each later slot at
    most this many times, from a backup that was made before its draw.
    """

    repeated_messages: int = 0
    crashes_after_draw: int = 0
    crashes_after_declining: int = 0
    crashes_after_report: int = 0
    crashes_while_closing: int = 0
    crashes_at_invitation: int = 0
    late_report: bool = False
    restorations: int = 0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not isinstance(value, int) or not 0 <= value <= 1000:
                raise InvalidValue(name, value, "must be an integer from 0 to 1,000")


NO_FAULTS = Faults()
ORDINARY_FAULTS = Faults(
    repeated_messages=1, crashes_after_draw=1, crashes_after_report=1, crashes_while_closing=1
)
"""Messages arrive twice, and the devices and the server restart."""

CANARY = "canary"  # the token of the canary's device
_SERVER = "server"  # the address of the server in messages
_CHECKED_IN = (Outcome.REPORTED, Outcome.DISMISSED, Outcome.LATE)

ReportMaker = Callable[[str], Report]
"""A function from a device's token to its report. The report has noise if devices add noise."""


@dataclass(frozen=True, slots=True, eq=False)
class Observations:
    """Everything that an adversary can observe in one campaign."""

    start_model: Model
    releases: tuple[tuple[int, Model], ...]
    """Slot and model of each release, in order."""
    closings: tuple[RecordClosing, ...]
    """What the server writes to the ledger for each slot."""
    sent_reports: tuple[Report, ...]
    """All reports that the canary's device sent, including repeated ones."""
    server_disk: Server
    """The state on the server's disk after the end."""
    device_disk: Participant | None
    """The state on the disk of the canary's device after the end. None if there was no canary."""

    @property
    def contributors(self) -> dict[int, int | None]:
        """The number of contributors of each slot in the ledger, None if the ledger has none."""
        return {closing.slot: closing.contributors for closing in self.closings}


@dataclass(slots=True, eq=False)
class MachineRun:
    """One run of a campaign: a server, its devices by token, and the faulty network between them.

    ``device_memory`` and ``device_disks`` are the current states of the devices in memory and on
    disk, by token. A restart loses the state in memory.
    """

    initial_server: Server
    sampler: DeviceSampler
    devices: Mapping[str, Participant]
    make_report: ReportMaker
    faults: Faults = NO_FAULTS
    wake_slot: int = 1
    """The slot at which all devices wake up and draw."""
    server: Server = field(init=False)
    server_disk: Server = field(init=False)
    device_memory: dict[str, Participant] = field(init=False)
    device_disks: dict[str, Participant] = field(init=False)
    _messages: deque[tuple[str, Message]] = field(default_factory=deque)
    _delayed_reports: list[Message] = field(default_factory=list)
    _used_tokens: set[str] = field(default_factory=set)
    _token_of_receipt: dict[str, str] = field(default_factory=dict)
    _latest_slot: int = 0
    _crash_counts: dict[tuple[str, str], int] = field(default_factory=dict)
    _closing_crashes: int = 0
    _invitation_crashes: int = 0
    _releases: list[tuple[int, Model]] = field(default_factory=list)
    _closings: list[RecordClosing] = field(default_factory=list)
    _sent_reports: list[Report] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.server = self.server_disk = self.initial_server
        self.device_memory, self.device_disks = dict(self.devices), dict(self.devices)

    def run(self) -> Observations:
        """Run all slots, and return what the adversary observes."""
        if self.wake_slot == 1:
            for token in self.devices:
                self._wake_up(token, now=1)
        while self.server.phase is not servers.Phase.DONE:
            self._advance_slot()
        # A slot number beyond the end tells the devices that the last slot is over.
        self._begin_slot(2 * self.initial_server.rules.slots + 1)
        return Observations(
            self.initial_server.learner.model,
            tuple(self._releases),
            tuple(self._closings),
            tuple(self._sent_reports),
            self.server_disk,
            self.device_disks.get(CANARY),
        )

    # ---- the clock ---------------------------------------------------------------------------

    def _advance_slot(self) -> None:
        """Begin the next slot, or end the check-ins or the reports of the current slot."""
        slot = self.server.slot
        if slot is None or self.server.phase is servers.Phase.WAITING:
            number = self.server.closed + 1
            self._server_step(servers.SlotBegan(number))
            self._begin_slot(number)
        elif slot.phase is slots.Phase.COLLECTING:
            self._server_step(slot_transitions.draw_choice(slot))
            self._deliver()
        else:
            if slot.number == self.initial_server.rules.affordable:
                self._messages.extend((_SERVER, message) for message in self._delayed_reports)
                self._deliver()
                slot = self.server.slot or slot
            self._server_step(slot_transitions.draw_expiry(slot, self.sampler))
            self._deliver()

    def _begin_slot(self, number: int) -> None:
        """Tell all devices that a slot begins. If it is the slot to wake up, they draw first."""
        if number > self._latest_slot:
            self._latest_slot, self._closing_crashes, self._invitation_crashes = number, 0, 0
        for token in self.devices:
            if self.wake_slot == number > 1:
                self._wake_up(token, now=number)
            self._device_step(token, events.SlotBegan(number))
        self._deliver()
        self._restore_canary(number)

    def _restore_canary(self, number: int) -> None:
        """Restore the canary's device, if its participation is over, to its state before the draw.

        If its new draw is not the current slot, undo the restoration.
        """
        for _ in range(self.faults.restorations):
            canary = self.device_memory.get(CANARY)
            if canary is None or canary.outcome not in (*_CHECKED_IN, Outcome.REFUSED):
                return
            if self.server.slot is None:
                return
            self.device_memory[CANARY] = self.device_disks[CANARY] = self.devices[CANARY]
            self._wake_up(CANARY, now=number)
            if self.device_memory[CANARY].slot != number:
                self.device_memory[CANARY] = self.device_disks[CANARY] = canary
                continue
            self._device_step(CANARY, events.SlotBegan(number))
            self._deliver()

    # ---- the network ------------------------------------------------------------------------

    def _send(self, address: str, message: Message) -> None:
        for _ in range(1 + self.faults.repeated_messages):
            self._messages.append((address, message))

    def _deliver(self) -> None:
        while self._messages:
            address, message = self._messages.popleft()
            if address != _SERVER:
                self._device_step(address, message)
                continue
            try:
                self._server_step(self._with_receipt(message))
            except ProtocolViolation:
                if isinstance(message, slots.CheckedIn):
                    self._send(message.token, events.Refused())

    def _with_receipt(self, message: Message) -> Message:
        """Return the message. If it is a check-in, add a receipt, numbered in order of arrival.

        These receipts are the worst case, because they reveal the order of arrival.
        """
        if not isinstance(message, slots.CheckedIn):
            return message
        receipt = f"{len(self._token_of_receipt):08}"
        self._token_of_receipt[receipt] = message.token
        spent = message.token in self._used_tokens
        return slots.CheckedIn(message.slot, message.token, receipt, spent)

    # ---- the server --------------------------------------------------------------------------

    def _server_step(self, event: Event) -> None:
        after, effects = servers.step(self.server, event)
        self.server = after
        for effect in effects:
            if self._perform_server_effect(effect, after):
                self._restart_server()
                return

    def _restart_server(self) -> None:
        self._messages.clear()  # messages in transit are lost
        self.server = self.server_disk
        pending = servers.event_after_restart(self.server)
        if pending is not None:
            self._server_step(pending)
        for token, device in list(self.device_memory.items()):
            if device.phase not in (clients.Phase.NEW, clients.Phase.DONE):
                self._device_step(token, events.RetryDue())

    def _perform_server_effect(self, effect: Effect, state: Server) -> bool:
        """Perform an effect. Return True if the server crashes right after it."""
        match effect:
            case slots.RecordCheckIn(token, _):
                self.server_disk = state
                self._used_tokens.add(token)
            case slots.RecordReport():
                self.server_disk = state
            case slots.Acknowledge(token, receipt):
                self._send(token, events.Acknowledged(receipt))
            case slots.RecordChoice():
                self.server_disk = state
                self._server_step(slots.ChoiceRecorded(state.slot.number if state.slot else 0))
            case slots.Invite(receipt):
                model = self.server.learner.model
                self._send(self._token_of_receipt[receipt], events.Invited(receipt, model))
                return self._crashes_at_invitation(receipt)
            case slots.Dismiss(receipt):
                self._send(self._token_of_receipt[receipt], events.Dismissed(receipt))
            case slots.AcknowledgeReport(receipt):
                self._send(self._token_of_receipt[receipt], events.ReportAcknowledged(receipt))
            case RecordClosing(slot) as closing:
                self.server_disk = state
                self._closings.append(closing)
                if self._crashes_while_closing():
                    return True
                self._server_step(servers.ClosingRecorded(slot))
            case Release(slot, model):
                self._releases.append((slot, model))
                return self._crashes_while_closing()
        return False

    def _crashes_while_closing(self) -> bool:
        """Return True, and count a crash, if the server crashes now, while it closes the slot."""
        crashes = self._closing_crashes < self.faults.crashes_while_closing
        self._closing_crashes += crashes
        return crashes

    def _crashes_at_invitation(self, receipt: str) -> bool:
        """Return True, and count a crash, if another client was invited instead of the canary."""
        slot = self.server.slot
        if (
            slot is None
            or CANARY not in slot.receipts_by_token
            or self._token_of_receipt[receipt] == CANARY
        ):
            return False
        is_chosen = slot.receipts_by_token[CANARY] in slot.chosen_receipts
        crashes = self._invitation_crashes < self.faults.crashes_at_invitation and not is_chosen
        self._invitation_crashes += crashes
        return crashes

    # ---- the devices -------------------------------------------------------------------------

    def _wake_up(self, token: str, *, now: int) -> None:
        device = self.device_memory[token]
        draw = events.Draw(OS_RANDOMNESS.coin(), OS_RANDOMNESS.pick(len(device.window)), now)
        self._device_step(token, draw)

    def _restart_device(self, token: str) -> None:
        self.device_memory[token] = self.device_disks[token]
        self._device_step(token, events.Restarted())
        if self.device_memory[token].phase is clients.Phase.NEW:  # its draw was not yet on disk
            self._wake_up(token, now=max(1, self._latest_slot))

    def _device_step(self, token: str, event: Event) -> None:
        try:
            after, effects = clients.step(self.device_memory[token], event)
        except ProtocolViolation:
            return
        self.device_memory[token] = after
        for effect in effects:
            if self._perform_device_effect(token, effect, after):
                self._restart_device(token)
                return

    def _perform_device_effect(self, token: str, effect: Effect, state: Participant) -> bool:
        """Perform an effect. Return True if the device crashes right after it."""
        match effect:
            case events.RecordEnd():
                self.device_disks[token] = state
            case events.RecordDraw():
                self.device_disks[token] = state
                if self._device_crashes(token, "draw", self.faults.crashes_after_draw):
                    return True
                declines = state.slot is None
                if declines and self._device_crashes(
                    token, "no", self.faults.crashes_after_declining
                ):
                    return True
                self._device_step(token, events.DrawRecorded())
            case events.SendCheckIn(slot):
                self._send(_SERVER, slots.CheckedIn(slot, token, "", has_participated=False))
            case events.AskOutcome(receipt):
                self._send(_SERVER, slots.OutcomeAsked(state.slot or 0, receipt))
            case events.Train():
                self._device_step(token, events.ReportMade(self.make_report(token)))
            case events.RecordReport():
                self.device_disks[token] = state
                self._device_step(token, events.ReportRecorded())
            case events.SendReport(slot, receipt, report):
                self._send_report(token, slots.ReportArrived(slot, receipt, report))
                return self._device_crashes(token, "report", self.faults.crashes_after_report)
        return False

    def _send_report(self, token: str, message: slots.ReportArrived) -> None:
        if token == CANARY:
            self._sent_reports.append(message.report)
            if self.faults.late_report:
                self._delayed_reports.append(message)
                return
        self._send(_SERVER, message)

    def _device_crashes(self, token: str, cause: str, limit: int) -> bool:
        """Return True, and count a crash, if the device crashed less than ``limit`` times."""
        crashes_so_far = self._crash_counts.get((token, cause), 0)
        self._crash_counts[token, cause] = crashes_so_far + 1
        return crashes_so_far < limit
