"""Run one campaign from start to end with the real state machines and injected faults.

Server and devices follow the four rules of ``checkins.protocol.machine``. In particular, durable
state is separate from memory, and a server or device that restarts continues from its durable
state. Random draws and noise come from the operating system, as in production.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from checkins.client.clock import OS_RANDOMNESS
from checkins.errors import InvalidValue, ProtocolViolation
from checkins.protocol import participant as clients
from checkins.protocol import participant as events
from checkins.protocol import server as servers
from checkins.protocol import slot as slots
from checkins.protocol.machine import Effect, Event, Message
from checkins.protocol.model_update import Model
from checkins.protocol.participant import Outcome, Participant
from checkins.protocol.report import Report
from checkins.protocol.server import RecordClosing, Release, Server
from checkins.randomizers import DeviceSampler
from checkins.service.runs import randomness


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The faults that are injected into every run of a campaign. By default there are none.

    No fault depends on the canary's data. A correct implementation satisfies its certificate under
    every fault.

    ``repeated``: each message arrives this many additional times.
    ``crashes_after_draw``: a device restarts this many times once its draw is durable.
    ``crashes_after_no``: a device that has drawn not to take part restarts this many times.
    ``crashes_after_report``: a device restarts this many times right after it sent its report.
    ``crashes_while_closing``: in each slot, the server restarts this many times while it closes
    the slot: right after it recorded the closing or released the model.
    ``crashes_at_invitation``: in each slot, the server restarts at most this many times after it
    invited another client and not the canary. An adversary who sees uploads could cause this.
    ``late_report``: the network delays the canary's report until the last slot.
    ``restorations``: in each later slot, the canary's finished device is restored at most this many
    times from a backup that was made before its draw.
    """

    repeated: int = 0
    crashes_after_draw: int = 0
    crashes_after_no: int = 0
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
    repeated=1, crashes_after_draw=1, crashes_after_report=1, crashes_while_closing=1
)
"""Messages arrive twice, and the devices and the server restart."""

CANARY = "canary"
_SERVER = "server"
_JOINED = (Outcome.REPORTED, Outcome.DISMISSED, Outcome.LATE)

Maker = Callable[[str], Report]
"""A function that returns a device's report, with or without noise, given the device's token."""


@dataclass(frozen=True, slots=True, eq=False)
class Observations:
    """Everything that an adversary can observe in one campaign."""

    start: Model
    releases: tuple[tuple[int, Model], ...]
    """Slot and model of each release, in order."""
    closings: tuple[tuple[int, int | None], ...]
    """Slot and number of contributors of each slot entry of the ledger."""
    sent: tuple[Report, ...]
    """All reports that the canary's device sent, including repeated ones."""
    server_disk: Server
    device_disk: Participant | None
    """The durable state of the canary's device at the end. None if there was no canary."""


@dataclass(slots=True, eq=False)
class MachineRun:
    """A server, its devices, and the faulty network between them."""

    start: Server
    sampler: DeviceSampler
    devices: Mapping[str, Participant]
    make: Maker
    faults: Faults = NO_FAULTS
    wake: int = 1
    """The slot at which all devices wake up and draw."""
    server: Server = field(init=False)
    server_disk: Server = field(init=False)
    memory: dict[str, Participant] = field(init=False)
    disk: dict[str, Participant] = field(init=False)
    _mail: deque[tuple[str, Message]] = field(default_factory=deque)
    _held: list[Message] = field(default_factory=list)
    _spent: set[str] = field(default_factory=set)
    _owners: dict[str, str] = field(default_factory=dict)
    _began: int = 0
    _crashed: dict[tuple[str, str], int] = field(default_factory=dict)
    _closing_crashes: int = 0
    _invitation_crashes: int = 0
    _releases: list[tuple[int, Model]] = field(default_factory=list)
    _closings: list[tuple[int, int | None]] = field(default_factory=list)
    _sent: list[Report] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.server = self.server_disk = self.start
        self.memory, self.disk = dict(self.devices), dict(self.devices)

    def run(self) -> Observations:
        """Run all slots, and return what the adversary observes."""
        if self.wake == 1:
            for token in self.devices:
                self._wake_up(token, now=1)
        while self.server.phase is not servers.Phase.DONE:
            self._tick()
        self._begin(2 * self.start.rules.slots + 1)  # devices see that the last slot is over
        return Observations(
            self.start.learner.model,
            tuple(self._releases),
            tuple(self._closings),
            tuple(self._sent),
            self.server_disk,
            self.disk.get(CANARY),
        )

    # ---- the clock ---------------------------------------------------------------------------

    def _tick(self) -> None:
        slot = self.server.slot
        if slot is None or self.server.phase is servers.Phase.WAITING:
            number = self.server.closed + 1
            self._server_step(servers.SlotBegan(number))
            self._begin(number)
        elif slot.phase is slots.Phase.COLLECTING:
            self._server_step(randomness.choice(slot))
            self._deliver()
        else:
            if slot.number == self.start.rules.affordable:
                self._mail.extend((_SERVER, message) for message in self._held)
                self._deliver()
                slot = self.server.slot or slot
            self._server_step(randomness.expiry(slot, self.sampler))
            self._deliver()

    def _begin(self, number: int) -> None:
        if number > self._began:
            self._began, self._closing_crashes, self._invitation_crashes = number, 0, 0
        for token in self.devices:
            if self.wake == number > 1:
                self._wake_up(token, now=number)
            self._device_step(token, events.SlotBegan(number))
        self._deliver()
        self._restore(number)

    def _restore(self, number: int) -> None:
        """Restore the canary's device, if it is done, to its state before the draw.

        Keep the restored state only if its new draw is the current slot.
        """
        for _ in range(self.faults.restorations):
            canary = self.memory.get(CANARY)
            if canary is None or canary.outcome not in (*_JOINED, Outcome.REFUSED):
                return
            if self.server.slot is None:
                return
            fresh = self.devices[CANARY]
            self.memory[CANARY] = self.disk[CANARY] = fresh
            self._wake_up(CANARY, now=number)
            if self.memory[CANARY].slot != number:  # undo the restoration
                self.memory[CANARY] = self.disk[CANARY] = canary
                continue
            self._device_step(CANARY, events.SlotBegan(number))
            self._deliver()

    # ---- the network ------------------------------------------------------------------------

    def _send(self, address: str, message: Message) -> None:
        for _ in range(1 + self.faults.repeated):
            self._mail.append((address, message))

    def _deliver(self) -> None:
        while self._mail:
            address, message = self._mail.popleft()
            if address != _SERVER:
                self._device_step(address, message)
                continue
            try:
                self._server_step(self._with_receipt(message))
            except ProtocolViolation:
                if isinstance(message, slots.CheckedIn):
                    self._send(message.token, events.Refused())

    def _with_receipt(self, message: Message) -> Message:
        """Return the message. A check-in gets a receipt, numbered in the order of arrival.

        Such receipts are the worst case, because they reveal the order.
        """
        if not isinstance(message, slots.CheckedIn):
            return message
        receipt = f"{len(self._owners):08}"
        self._owners[receipt] = message.token
        spent = message.token in self._spent
        return slots.CheckedIn(message.slot, message.token, receipt, spent)

    # ---- the server --------------------------------------------------------------------------

    def _server_step(self, event: Event) -> None:
        after, effects = servers.step(self.server, event)
        self.server = after
        for effect in effects:
            if self._perform(effect, after):
                self._restart_server()
                return

    def _restart_server(self) -> None:
        self._mail.clear()  # messages in transit are lost
        self.server = self.server_disk
        pending = servers.unrecorded(self.server)
        if pending is not None:
            self._server_step(pending)
        for token, device in list(self.memory.items()):
            if device.phase not in (clients.Phase.NEW, clients.Phase.DONE):
                self._device_step(token, events.RetryDue())

    def _perform(self, effect: Effect, state: Server) -> bool:
        """Perform an effect. Return True if the server crashes right after it."""
        match effect:
            case slots.RecordCheckIn(token, _):
                self.server_disk = state
                self._spent.add(token)
            case slots.RecordReport():
                self.server_disk = state
            case slots.Acknowledge(token, receipt):
                self._send(token, events.Acknowledged(receipt))
            case slots.RecordChoice():
                self.server_disk = state
                self._server_step(slots.ChoiceRecorded(state.slot.number if state.slot else 0))
            case slots.Invite(receipt):
                model = self.server.learner.model
                self._send(self._owners[receipt], events.Invited(receipt, model))
                return self._invitation_crash(receipt)
            case slots.Dismiss(receipt):
                self._send(self._owners[receipt], events.Dismissed(receipt))
            case slots.AcknowledgeReport(receipt):
                self._send(self._owners[receipt], events.ReportAcknowledged(receipt))
            case RecordClosing(slot, _, contributors):
                self.server_disk = state
                self._closings.append((slot, contributors))
                if self._closing_crash():
                    return True
                self._server_step(servers.ClosingRecorded(slot))
            case Release(slot, model):
                self._releases.append((slot, model))
                return self._closing_crash()
        return False

    def _closing_crash(self) -> bool:
        crashes = self._closing_crashes < self.faults.crashes_while_closing
        self._closing_crashes += crashes
        return crashes

    def _invitation_crash(self, receipt: str) -> bool:
        slot = self.server.slot
        if slot is None or CANARY not in slot.waiting or self._owners[receipt] == CANARY:
            return False
        chosen = slot.waiting[CANARY] in slot.chosen
        crashes = self._invitation_crashes < self.faults.crashes_at_invitation and not chosen
        self._invitation_crashes += crashes
        return crashes

    # ---- the devices -------------------------------------------------------------------------

    def _wake_up(self, token: str, *, now: int) -> None:
        device = self.memory[token]
        draw = events.Draw(OS_RANDOMNESS.coin(), OS_RANDOMNESS.pick(len(device.window)), now)
        self._device_step(token, draw)

    def _restart_device(self, token: str) -> None:
        self.memory[token] = self.disk[token]
        self._device_step(token, events.Restarted())
        if self.memory[token].phase is clients.Phase.NEW:  # it has no durable draw
            self._wake_up(token, now=max(1, self._began))

    def _device_step(self, token: str, event: Event) -> None:
        try:
            after, effects = clients.step(self.memory[token], event)
        except ProtocolViolation:
            return
        self.memory[token] = after
        for effect in effects:
            if self._device_perform(token, effect, after):
                self._restart_device(token)
                return

    def _device_perform(self, token: str, effect: Effect, state: Participant) -> bool:
        """Perform an effect. Return True if the device crashes right after it."""
        match effect:
            case events.RecordEnd():
                self.disk[token] = state
            case events.RecordDraw():
                self.disk[token] = state
                if self._crashes(token, "draw", self.faults.crashes_after_draw):
                    return True
                no = state.slot is None
                if no and self._crashes(token, "no", self.faults.crashes_after_no):
                    return True
                self._device_step(token, events.DrawRecorded())
            case events.SendCheckIn(slot):
                self._send(_SERVER, slots.CheckedIn(slot, token, "", spent=False))
            case events.AskOutcome(receipt):
                self._send(_SERVER, slots.OutcomeAsked(state.slot or 0, receipt))
            case events.Train():
                self._device_step(token, events.ReportMade(self.make(token)))
            case events.RecordReport():
                self.disk[token] = state
                self._device_step(token, events.ReportRecorded())
            case events.SendReport(slot, receipt, report):
                self._send_report(token, slots.ReportArrived(slot, receipt, report))
                return self._crashes(token, "report", self.faults.crashes_after_report)
        return False

    def _send_report(self, token: str, message: slots.ReportArrived) -> None:
        if token == CANARY:
            self._sent.append(message.report)
            if self.faults.late_report:
                self._held.append(message)
                return
        self._send(_SERVER, message)

    def _crashes(self, token: str, where: str, most: int) -> bool:
        so_far = self._crashed.get((token, where), 0)
        self._crashed[token, where] = so_far + 1
        return so_far < most
