"""The flow of one device in one run of a campaign, from its first view to its end.

A view is the public description of the run that the service sends. The state machine in
``checkins.protocol.participant`` decides what to do. This flow turns its effects into actions, and
passes their results back to it as events. The state is durable before any message depends on it. A
device that crashes therefore resumes with the same token, slot and report, or abstains because its
slot has passed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import numpy as np

from checkins.accounting import NoiseAt
from checkins.campaign import Campaign
from checkins.client.actions import (
    CampaignRefused,
    Flow,
    LogEvent,
    NoResponse,
    Request,
    Response,
    Save,
    SleepUntil,
    Train,
)
from checkins.client.clock import DeviceRandomness
from checkins.client.service_client import (
    RESPONSE_TIMEOUT_S,
    ServiceClient,
    check_in_request,
    ledger_head_request,
    model_request,
    outcome_request,
    report_request,
    safe_secret,
)
from checkins.client.state import SavedState
from checkins.client.trainer import Trainer
from checkins.client.view import CampaignView
from checkins.errors import OutOfOrder
from checkins.protocol import participant as events
from checkins.protocol import wire
from checkins.protocol.machine import Effect, Event
from checkins.protocol.participant import Outcome, Participant, participant_of, step
from checkins.protocol.report import Report, model_from_bytes, most_model_bytes, report_to_bytes
from checkins.randomizers import DeviceReport
from checkins.tasks.model import flatten, unflatten

LONG_SLEEP_S = 60.0
"""If its slot is more seconds away, the device reads the server's clock again before it."""
LOOK_AGAIN_S = (5.0, 30.0)
"""Range of a random number: so many seconds before its slot, a device reads the clock again."""
SPREAD = 0.25
"""Devices spread their check-ins over this share of the check-in period."""
MAX_POLL_S = 30
"""Longest wait in seconds of one long poll."""
MAX_LOGGED_UNITS = 10_000
"""Largest number of values of a report that is written to the journal."""


@dataclass(frozen=True, slots=True)
class ParticipationConfig:
    """Parameters of a participation. ``checkins.client.Participant`` explains them."""

    url: str
    campaign: str
    trainer: Trainer
    key: str | None = field(default=None, repr=False)
    seal: str | None = None
    accept: Callable[[Campaign], None] | None = None
    patience_s: float = 60.0


class Participation:
    """The flow of one device in one run."""

    def __init__(
        self,
        config: ParticipationConfig,
        saved: bytes | None,
        *,
        steady: Callable[[], float],
        randomness: DeviceRandomness,
    ) -> None:
        self._config = config
        self._randomness = randomness
        self._saved = SavedState(config.campaign) if saved is None else SavedState.from_bytes(saved)
        if self._saved.campaign != config.campaign:
            raise CampaignRefused("state", self._saved.campaign, f"must be of {config.campaign}")
        self._service = ServiceClient(
            config.url, config.campaign, config.patience_s, steady=steady, randomness=randomness
        )
        self._view: CampaignView  # set by _fetch_view
        self._state: Participant

    def flow(self) -> Flow[Outcome]:
        """Take part, or resume after a crash; return the outcome."""
        if self._saved.ended is not None:
            return self._ended()
        yield from self._fetch_view()
        self._check_campaign(self._view)
        event: Event = events.Restarted()
        if self._saved.phase is None:
            yield from self._enrol()
            event = events.Draw(
                coin=self._randomness.coin(),
                pick=self._randomness.pick(len(self._state.window)),
                now=self._view.timetable.first_open(self._service.server_s()),
            )
        else:
            yield self._log("restarted", slot=self._saved.slot)
        while True:
            self._state, effects = step(self._state, event)
            next_event = None
            for effect in effects:
                next_event = yield from self._perform(effect)
            if next_event is None:
                return self._ended()
            event = next_event

    def _ended(self) -> Outcome:
        if self._saved.outcome is None:
            why = "this device has withdrawn from it" if self._saved.ended else "is not over"
            raise CampaignRefused("campaign", self._config.campaign, why)
        return self._saved.outcome

    def _check_campaign(self, view: CampaignView) -> None:
        view.check(seal=self._config.seal)
        if self._config.accept is not None:
            self._config.accept(view.campaign)
        if view.over and self._saved.phase is None:
            raise CampaignRefused("campaign", view.id, f"is over: it has {view.status}")
        fresh, sampler = participant_of(view.campaign), view.sampler()
        self._state = self._saved.machine(fresh, grid=sampler.grid, dimension=view.dimension)

    def _fetch_view(self) -> Flow[None]:
        self._view = yield from self._service.fetch_view(self._saved)
        before, self._saved = (
            self._saved,
            self._service.with_rollback_evidence(self._saved, self._view),
        )
        if self._saved.key is not None and self._saved != before:
            yield Save(self._saved.to_bytes())

    def _enrol(self) -> Flow[None]:
        """Get a token.

        The idempotency key is durable before the request is sent. If the response is lost, the same
        key gets the same token.
        """
        if self._saved.key is None:
            self._saved = replace(self._saved, key=self._randomness.key())
            yield Save(self._saved.to_bytes())
        token = yield from self._service.enrol(str(self._saved.key), key=self._config.key)
        self._saved = replace(self._saved, token=token)
        yield self._log("enrolled")

    def _perform(self, effect: Effect) -> Flow[Event | None]:
        """Perform one effect of the state machine; return the next event, or None at the end."""
        match effect:
            case events.RecordDraw():
                yield from self._record()
                yield self._log("drawn", slot=self._state.slot)
                return events.DrawRecorded()
            case events.RecordReport(report):
                yield from self._record(report_to_bytes(report.values))
                return events.ReportRecorded()
            case events.RecordEnd():
                outcome = str(self._state.outcome and self._state.outcome.name)
                self._saved = self._saved.over(outcome)
                yield Save(self._saved.to_bytes())
                yield self._log("done", outcome=outcome.lower())
                return None
            case events.WakeAt(slot):
                return (yield from self._wake(slot))
            case events.SendCheckIn(slot):
                return (yield from self._check_in(slot))
            case events.AskOutcome(receipt):
                return (yield from self._await_outcome(receipt))
            case events.Train(model):
                return (yield from self._train(model))
            case events.SendReport(slot, receipt):
                return (yield from self._send_report(slot, receipt))
        raise OutOfOrder(f"a device cannot perform {type(effect).__name__}")

    def _record(self, report: bytes | None = None) -> Flow[None]:
        state = self._state
        self._saved = replace(
            self._saved, phase=state.phase, slot=state.slot, receipt=state.receipt, report=report
        )
        yield Save(self._saved.to_bytes())

    def _wake(self, slot: int) -> Flow[Event]:
        """Sleep until a random time early in the slot; return ``SlotBegan`` for this slot.

        If the slot has passed or the run is over, return ``SlotBegan`` for the following slot.
        """
        timetable, now = self._view.timetable, self._service.server_s
        if slot > timetable.slots or self._view.over or now() >= timetable.ends(slot):
            return events.SlotBegan(slot + 1)
        begin = timetable.begins(slot)
        yield self._log("asleep", slot=slot, seconds=max(0.0, begin - now()))
        if begin - now() > LONG_SLEEP_S:
            soonest, latest = LOOK_AGAIN_S
            before = soonest + (latest - soonest) * self._randomness.jitter()
            yield from self._sleep_until(begin - before)
            if (yield from self._refresh_view()):
                return events.SlotBegan(slot + 1)
        yield from self._sleep_until(
            begin + SPREAD * timetable.choose_s * self._randomness.jitter()
        )
        return events.SlotBegan(slot if now() < timetable.ends(slot) else slot + 1)

    def _refresh_view(self) -> Flow[bool]:
        """Fetch view and clock again, if the service responds; return whether the run is over."""
        view = yield from self._service.try_fetch_view(self._saved)
        if view is None:
            return False
        self._view = view
        self._saved = self._service.with_rollback_evidence(self._saved, view)
        yield Save(self._saved.to_bytes())
        return view.over

    def _unless_rolled_back(self, slot: int) -> Flow[Event | None]:
        """Return None if the ledger still contains its recorded last line; raise if it differs.

        If a service and its rollback guard were both restored from a backup, the service would
        accept check-ins and reports for a slot that it has already released. The device therefore
        checks the ledger before it checks in or reports. If the check gets no usable response, the
        event ``RetryDue`` or ``SlotBegan`` is returned.
        """
        saved = self._saved
        response = yield from self._in_slot(slot, ledger_head_request, saved.entries)
        if isinstance(response, Event):
            return response
        match self._service.contains_saved_line(response, saved):
            case True:
                return None
            case False:
                yield from self._fetch_view()
                return None
        return (yield from self._retry(slot, response, final=False))

    def _check_in(self, slot: int) -> Flow[Event]:
        event = yield from self._unless_rolled_back(slot)
        if event is not None:
            return event
        yield self._log("checking-in", slot=slot)
        response = yield from self._in_slot(
            slot, check_in_request, slot, token=str(self._saved.token)
        )
        if isinstance(response, Event):
            return response
        found = response.read(wire.Receipt, 202)
        receipt = found and safe_secret(found["receipt"])
        if receipt:
            yield self._log("checked-in", slot=slot, receipt=receipt)
            return events.Acknowledged(receipt)
        if response.problem == "too-early":
            yield from self._refresh_view()
        elif self._service.is_final(response):
            yield self._log("refused", slot=slot, problem=response.problem)
            return events.Refused()
        return (yield from self._retry(slot, response))

    def _await_outcome(self, receipt: str) -> Flow[Event]:
        """Wait for the choice with a long poll. If the device was chosen, fetch the model."""
        slot = self._state.current_slot
        choice = self._view.timetable.chooses(slot)
        if choice - self._service.server_s() > MAX_POLL_S:
            yield from self._sleep_until(choice - 5.0)  # the outcome is not known earlier
        left = choice - self._service.server_s()
        wait_s = min(MAX_POLL_S, 1 + max(0, math.ceil(left)))
        response = yield from self._in_slot(slot, outcome_request, receipt, wait_s=wait_s)
        if isinstance(response, Event):
            return response
        found = response.read(wire.Outcome, 200)
        match found and found["slot"] == slot and found["outcome"]:
            case "dismissed":
                yield self._log("dismissed", slot=slot, receipt=receipt)
                return events.Dismissed(receipt)
            case "chosen":
                yield self._log("chosen", slot=slot, receipt=receipt)
                return (yield from self._fetch_model(slot, receipt))
            case "waiting" if response.received - response.sent > 0.5 * wait_s:
                return events.RetryDue()
        return (yield from self._retry(slot, response, final=False))

    def _fetch_model(self, slot: int, receipt: str) -> Flow[Event]:
        shapes = self._view.shapes
        response = yield from self._in_slot(
            slot, model_request, slot, receipt=receipt, max_bytes=most_model_bytes(shapes)
        )
        if isinstance(response, Event):
            return response
        if response.status == 200:
            with suppress(ValueError):  # the body is no model of this campaign: retry
                tensors, _ = model_from_bytes(response.body)
                return events.Invited(receipt, flatten(tensors, shapes).astype(np.float64))
        return (yield from self._retry(slot, response, final=False))

    def _train(self, model: Any) -> Flow[Event]:
        """Train, clip and draw noise. The report is sent only after it was recorded."""
        view, trainer = self._view, self._config.trainer
        made = yield Train(lambda: make_report(view, trainer, model))
        return events.ReportMade(Report.from_device(made))

    def _send_report(self, slot: int, receipt: str) -> Flow[Event]:
        report = self._saved.report
        if report is None:
            raise OutOfOrder("a report is durable before it is sent")
        event = yield from self._unless_rolled_back(slot)
        if event is not None:
            return event
        yield self._log("reporting", slot=slot, receipt=receipt, **self._identity(report))
        response = yield from self._in_slot(
            slot, report_request, slot, receipt=receipt, report=report
        )
        if isinstance(response, Event):
            return response
        found = response.read(wire.ReportAccepted, 200)
        if found and found["status"] == "taken":
            digest = sha256(report).hexdigest()
            yield self._log("acknowledged", slot=slot, receipt=receipt, sha256=digest)
            return events.ReportAcknowledged(receipt)
        return (yield from self._retry(slot, response))

    def _identity(self, report: bytes) -> dict[str, object]:
        """Return the fields that identify a report in the journal."""
        identity: dict[str, object] = {"sha256": sha256(report).hexdigest()}
        made = self._state.report
        if made is not None and made.values.size <= MAX_LOGGED_UNITS:
            identity["units"] = made.values.tolist()
        return identity

    def _in_slot(
        self, slot: int, request: Callable[..., Request], *values: Any, **named: Any
    ) -> Flow[Response | events.SlotBegan | events.RetryDue]:
        """Send one request unless the slot is over; return an event if there is no response.

        ``request`` is called with the campaign, the other arguments and a timeout to build the
        request.
        """
        left = self._view.timetable.ends(slot) - self._service.server_s()
        if left <= 0.0:
            return events.SlotBegan(slot + 1)
        # If a request is lost, there must be time for another one.
        timeout_s = max(1.0, min(RESPONSE_TIMEOUT_S, left / 3.0))
        response: Response | NoResponse = yield request(
            self._config.campaign, *values, timeout_s=timeout_s, **named
        )
        if isinstance(response, NoResponse):
            return (yield from self._retry(slot, response))
        if response.status < 300:
            self._service.reset_backoff()
        return response

    def _retry(
        self, slot: int, response: Response | NoResponse, *, final: bool = True
    ) -> Flow[events.SlotBegan | events.RetryDue]:
        """Wait and return RetryDue, or SlotBegan if the slot is over.

        If the service refused permanently, wait until the end of the slot. ``final`` is False if
        even such a refusal is retried, because a worker of the service may lag behind another.
        """
        end, slot_s = self._view.timetable.ends(slot), self._view.timetable.slot_s
        now = self._service.server_s()
        backoff_s = self._service.backoff_s(response, least_s=slot_s / 20, most_s=slot_s / 4)
        if final and isinstance(response, Response) and self._service.is_final(response):
            backoff_s = end - now
        yield from self._sleep_until(min(end, now + backoff_s))
        over = self._service.server_s() >= end
        return events.SlotBegan(slot + 1) if over else events.RetryDue()

    def _sleep_until(self, server_s: float) -> Flow[None]:
        yield SleepUntil(self._service.clock.steady_s(server_s))

    def _log(self, event: str, **fields: object) -> LogEvent:
        return LogEvent({"event": event, "campaign": self._config.campaign, **fields})


def make_report(view: CampaignView, trainer: Trainer, model: Any) -> DeviceReport:
    """Return the trainer's update, clipped and rounded, with noise unless the server adds noise."""
    tensors: Mapping[str, Any] = unflatten(model, view.shapes)
    update = flatten(trainer.update(tensors), view.shapes)
    sampler = view.sampler()
    if view.campaign.noise_at is NoiseAt.SERVER:
        return sampler.encode(update)
    return sampler.privatize(update)
