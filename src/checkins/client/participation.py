"""The flow of one device in one run of a campaign, from its first request to its end.

A flow is a generator that yields actions to a driver. The state machine in
``checkins.protocol.participant`` decides what the device does. This flow turns the effects of the
state machine into actions, and passes the results of the actions back to it as events. The flow
saves the state durably before it sends a message that depends on the state. A device that crashes
therefore resumes with the same token, slot and report, or misses its slot if the slot has passed.

A view is the public description of the run that the service sends. The odometer (``odometer.py``)
is an upper bound on the privacy loss of all participations of the device.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

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
    UseFiles,
)
from checkins.client.clock_and_randomness import DeviceRandomness
from checkins.client.odometer import Charge, OdometerFile
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
from checkins.client.trainer import SlotTrainer, Trainer, make_dummy, make_report
from checkins.client.view import CampaignView
from checkins.errors import InvalidValue, OutOfOrder, first_line
from checkins.protocol import participant as events  # the state machine's events and effects
from checkins.protocol import wire
from checkins.protocol.machine import Effect, Event
from checkins.protocol.participant import Outcome, Participant, participant_of, step
from checkins.protocol.report import Report, most_model_bytes, report_to_bytes
from checkins.randomizers import DeviceReport

LONG_SLEEP_S = 60.0
"""Seconds of sleep that count as long. After a longer sleep, the device's own clock may have
drifted, so the device reads the server's clock again shortly before the slot."""
CLOCK_CHECK_BEFORE_SLOT_S = (5.0, 30.0)
"""Shortest and longest time in seconds before the slot at which the device reads the clock again.
The time is random."""
CHECK_IN_SPREAD = 0.25
"""Devices check in at a random time in the first quarter of a slot's check-in period."""
MAX_POLL_S = 30
"""Longest wait in seconds of one long poll."""
WAIT_AFTER_CHECK_IN_S = 2.0
"""A check-in waits for the outcome if clients are chosen within this number of seconds. This saves
the request for the outcome. For an earlier check-in, the service sends the receipt at once, so that
a device soon notices if a message was lost."""
MAX_LOGGED_VALUES = 10_000
"""Largest number of values of a report that is written to the journal, the owner's log."""


@dataclass(frozen=True, slots=True)
class ParticipationConfig:
    """Parameters of a participation. ``checkins.client.Participant`` explains them."""

    url: str
    campaign: str
    trainer: Trainer | SlotTrainer
    key: str | None = field(default=None, repr=False)
    seal: str | None = None
    accept: Callable[[Campaign], None] | None = None
    retry_timeout_s: float = 60.0
    most_epsilon: float | None = None
    ca: str | os.PathLike[str] | None = None
    plain_http: bool = False


class Participation:
    """The flow of one device in one run. ``saved`` is its stored state, or None at the start.

    The campaign is charged to ``odometer`` before the draw is saved. None means that no odometer is
    kept, as in load tests.
    """

    def __init__(
        self,
        config: ParticipationConfig,
        saved: bytes | None,
        *,
        monotonic: Callable[[], float],
        randomness: DeviceRandomness,
        odometer: OdometerFile | None = None,
    ) -> None:
        self._config = config
        self._odometer = odometer
        if odometer is None and config.most_epsilon is not None:
            raise InvalidValue("most_epsilon", config.most_epsilon, "needs an odometer")
        self._randomness = randomness
        self._saved = SavedState(config.campaign) if saved is None else SavedState.from_bytes(saved)
        if self._saved.campaign != config.campaign:
            expected = f"must be the state of a device in {config.campaign}"
            raise CampaignRefused("state", self._saved.campaign, expected)
        self._service = ServiceClient(
            config.url,
            config.campaign,
            config.retry_timeout_s,
            monotonic=monotonic,
            randomness=randomness,
        )
        self._known_heads: frozenset[str] | None = None  # set by _use_odometer
        self._known_outcome: wire.Outcome | None = None  # received with the receipt
        self._training_error: Exception | None = None  # why the report is a dummy
        self._view: CampaignView  # set by _fetch_view
        self._machine: Participant  # state of the state machine, set by _check_campaign

    def flow(self) -> Flow[Outcome]:
        """Take part, or resume after a crash; return the outcome.

        If training fails, take part with a dummy report, and raise the error of the trainer.
        """
        if self._saved.ended is not None:
            return self._final_outcome()
        yield from self._fetch_view()
        self._check_campaign(self._view)
        event: Event = events.Restarted()
        if self._saved.phase is None:
            yield from self._use_odometer(OdometerFile.check)
            yield from self._enrol()
        yield from self._use_odometer(OdometerFile.charge)  # durable before the draw is saved
        if self._saved.phase is None:
            event = events.Draw(
                coin=self._randomness.coin(),
                pick=self._randomness.pick(len(self._machine.window)),
                first_open_slot=self._view.run_schedule.first_open_slot(self._service.server_s()),
            )
        else:
            yield self._log("restarted", slot=self._saved.slot)
        while True:
            self._machine, effects = step(self._machine, event)
            next_event = None
            for effect in effects:
                next_event = yield from self._perform(effect)
            if next_event is None:
                if self._training_error is not None:
                    raise self._training_error
                return self._final_outcome()
            event = next_event

    def _final_outcome(self) -> Outcome:
        if self._saved.outcome is None:
            reason = "this device has withdrawn from it" if self._saved.ended else "is not over"
            raise CampaignRefused("campaign", self._config.campaign, reason)
        return self._saved.outcome

    def _check_campaign(self, view: CampaignView) -> None:
        view.check(seal=self._config.seal)
        if self._config.accept is not None:
            self._config.accept(view.campaign)
        if view.is_over and self._saved.phase is None:
            raise CampaignRefused("campaign", view.id, f"is over: it has {view.status}")
        self._machine = self._saved.restore_machine(
            participant_of(view.campaign), grid=view.sampler().grid, dimension=view.dimension
        )

    def _fetch_view(self) -> Flow[None]:
        self._view = yield from self._service.fetch_view(self._saved)
        previous = self._saved
        self._saved = self._service.with_rollback_evidence(previous, self._view)
        if self._saved.key is not None and self._saved != previous:
            yield Save(self._saved.to_bytes())

    def _use_odometer(self, action: Callable[..., object]) -> Flow[None]:
        """Check or charge the odometer; raise CampaignRefused if the limit would be exceeded."""
        odometer, view, most_epsilon = self._odometer, self._view, self._config.most_epsilon
        if odometer is None:
            return
        if self._known_heads is None:
            charges = (yield UseFiles(odometer.load)).charges
            self._known_heads = yield from self._fetch_known_heads(charges)
        arguments = {"same_ledger": self._known_heads, "most_epsilon": most_epsilon}
        yield UseFiles(lambda: action(odometer, view, **arguments))

    def _fetch_known_heads(self, charges: Sequence[Charge]) -> Flow[frozenset[str]]:
        """Return the ledger heads of earlier ``charges`` that this campaign's ledger contains.

        A head is the hash of a ledger's last line, stored in a charge when the device joined.
        """
        population, found = Charge.of(self._view).population, set()
        entries_of = {each.head: each.entries for each in charges if each.population == population}
        for head, entries in entries_of.items():
            is_possible = entries < self._view.entries
            if is_possible and (yield from self._service.fetch_head(entries)) == head:
                found.add(head)
        return frozenset(found)

    def _enrol(self) -> Flow[None]:
        """Get a token.

        The idempotency key is durable before the request is sent. If the response is lost, the same
        key gets the same token.
        """
        if self._saved.key is None:
            self._saved = replace(self._saved, key=self._randomness.idempotency_key())
            yield Save(self._saved.to_bytes())
        token = yield from self._service.enrol(str(self._saved.key), secret=self._config.key)
        self._saved = replace(self._saved, token=token)
        yield self._log("enrolled")

    def _perform(self, effect: Effect) -> Flow[Event | None]:
        """Perform one effect of the state machine; return the next event, or None at the end."""
        match effect:
            case events.RecordDraw():
                yield from self._save_progress()
                yield self._log("drawn", slot=self._machine.slot)
                return events.DrawRecorded()
            case events.RecordReport(report):
                yield from self._save_progress(report_to_bytes(report.values))
                return events.ReportRecorded()
            case events.RecordEnd():
                outcome = str(self._machine.outcome and self._machine.outcome.name)
                self._saved = self._saved.ended_with(outcome)
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

    def _save_progress(self, report: bytes | None = None) -> Flow[None]:
        machine = self._machine
        self._saved = replace(
            self._saved,
            phase=machine.phase,
            slot=machine.slot,
            receipt=machine.receipt,
            report=report,
        )
        yield Save(self._saved.to_bytes())

    def _wake(self, slot: int) -> Flow[Event]:
        """Sleep until a random time early in the slot; return ``SlotBegan`` for this slot.

        If the slot has passed or the run is over, return ``SlotBegan`` for the following slot, so
        that the device misses its slot.
        """
        run_schedule, server_s = self._view.run_schedule, self._service.server_s
        if slot > run_schedule.slots or self._view.is_over or server_s() >= run_schedule.ends(slot):
            return events.SlotBegan(slot + 1)
        begin_s = run_schedule.begins(slot)
        yield self._log("asleep", slot=slot, seconds=max(0.0, begin_s - server_s()))
        if begin_s - server_s() > LONG_SLEEP_S:
            shortest_s, longest_s = CLOCK_CHECK_BEFORE_SLOT_S
            before_s = shortest_s + (longest_s - shortest_s) * self._randomness.jitter()
            yield from self._sleep_until(begin_s - before_s)
            if (yield from self._refresh_view()):
                return events.SlotBegan(slot + 1)
        yield from self._sleep_until(
            begin_s + CHECK_IN_SPREAD * run_schedule.choose_s * self._randomness.jitter()
        )
        return events.SlotBegan(slot if server_s() < run_schedule.ends(slot) else slot + 1)

    def _refresh_view(self) -> Flow[bool]:
        """Fetch the view once; return whether the run is over, or False without a response."""
        view = yield from self._service.try_fetch_view(self._saved)
        if view is None:
            return False
        self._view = view
        self._saved = self._service.with_rollback_evidence(self._saved, view)
        yield Save(self._saved.to_bytes())
        return view.is_over

    def _check_rollback(self, slot: int) -> Flow[Event | None]:
        """Return None if the service's ledger still contains the last line that the device saved.

        Raise if the line has changed. A service detects that it was restored from a backup, unless
        its progress file was restored too. Then it would accept check-ins and reports for a slot
        that it has already released. The device therefore checks the ledger before it checks in
        or reports. If the check gets no usable response, return ``RetryDue`` or ``SlotBegan``.
        """
        saved = self._saved
        response = yield from self._send_in_slot(slot, ledger_head_request, saved.entries)
        if isinstance(response, Event):
            return response
        match self._service.contains_saved_line(response, saved):
            case True:
                return None
            case False:
                yield from self._fetch_view()
                return None
        return (yield from self._retry(slot, response, accept_refusal=False))

    def _check_in(self, slot: int) -> Flow[Event]:
        event = yield from self._check_rollback(slot)
        if event is not None:
            return event
        yield self._log("checking-in", slot=slot)
        response = yield from self._send_in_slot(
            slot,
            check_in_request,
            slot,
            token=str(self._saved.token),
            wait_s=self._wait_s(slot) if self._choice_in_s(slot) <= WAIT_AFTER_CHECK_IN_S else None,
        )
        if isinstance(response, Event):
            return response
        body = response.parse_json(wire.Receipt, 202)
        receipt = body and safe_secret(body["receipt"])
        if receipt:
            yield self._log("checked-in", slot=slot, receipt=receipt)
            self._known_outcome = response.parse_json(wire.Outcome, 202)
            return events.Acknowledged(receipt)
        if response.problem == "too-early":
            yield from self._refresh_view()
        elif self._service.is_final(response):
            yield self._log("refused", slot=slot, problem=response.problem)
            return events.Refused()
        return (yield from self._retry(slot, response))

    def _await_outcome(self, receipt: str) -> Flow[Event]:
        """Ask with a long poll whether the device was chosen. If it was, get the model.

        If the outcome came with the receipt, do not ask.
        """
        slot = self._machine.drawn_slot
        known, self._known_outcome = self._known_outcome, None
        event = yield from self._event_of_outcome(slot, receipt, known)
        if event is not None:
            return event
        if self._choice_in_s(slot) > MAX_POLL_S:  # the outcome is not known earlier
            yield from self._sleep_until(self._view.run_schedule.chooses(slot) - 5.0)
        wait_s = self._wait_s(slot)
        response = yield from self._send_in_slot(slot, outcome_request, receipt, wait_s=wait_s)
        if isinstance(response, Event):
            return response
        body = response.parse_json(wire.Outcome, 200)
        event = yield from self._event_of_outcome(slot, receipt, body)
        if event is not None:
            return event
        has_waited = response.received_s - response.sent_s > 0.5 * wait_s
        if body and body["slot"] == slot and body["outcome"] == "waiting" and has_waited:
            return events.RetryDue()
        return (yield from self._retry(slot, response, accept_refusal=False))

    def _choice_in_s(self, slot: int) -> float:
        """Return the seconds until the choice of this slot; negative after it."""
        return self._view.run_schedule.chooses(slot) - self._service.server_s()

    def _wait_s(self, slot: int) -> int:
        """Return how many seconds a request for the outcome of this slot should wait."""
        return min(MAX_POLL_S, 1 + max(0, math.ceil(self._choice_in_s(slot))))

    def _event_of_outcome(
        self, slot: int, receipt: str, body: wire.Outcome | None
    ) -> Flow[Event | None]:
        """Return the event for the outcome in ``body``.

        Return None without an outcome for this slot, or if the choice is not made yet.

        The model may be in ``body`` too (``wire.OutcomeWithModel``). If it is not, fetch it.
        """
        match body and body["slot"] == slot and body["outcome"]:
            case "dismissed":
                yield self._log("dismissed", slot=slot, receipt=receipt)
                return events.Dismissed(receipt)
            case "chosen":
                yield self._log("chosen", slot=slot, receipt=receipt)
                model = self._view.model_in_outcome(body or {})
                if model is not None:
                    return events.Invited(receipt, model)
                return (yield from self._fetch_model(slot, receipt))
        return None

    def _fetch_model(self, slot: int, receipt: str) -> Flow[Event]:
        shapes = self._view.shapes
        response = yield from self._send_in_slot(
            slot, model_request, slot, receipt=receipt, max_bytes=most_model_bytes(shapes)
        )
        if isinstance(response, Event):
            return response
        if response.status == 200:
            with suppress(ValueError):  # the body is no model of this campaign: retry
                return events.Invited(receipt, self._view.parse_model(response.body))
        return (yield from self._retry(slot, response, accept_refusal=False))

    def _train(self, model: Any) -> Flow[Event]:
        """Train, clip and draw noise. The report is saved before it is sent.

        If training fails, the report is a dummy, so that nobody learns from the message, nor from
        the number of reports, whether it failed on the data of this device.
        """
        view, trainer, slot = self._view, self._config.trainer, self._machine.drawn_slot

        def train() -> DeviceReport:
            try:
                return make_report(view, trainer, model, slot)
            except Exception as error:
                self._training_error = error
                return make_dummy(view)

        device_report = yield Train(train)
        if self._training_error is not None:
            yield self._log("training-failed", slot=slot, error=first_line(self._training_error))
        return events.ReportMade(Report.from_device(device_report))

    def _send_report(self, slot: int, receipt: str) -> Flow[Event]:
        report = self._saved.report
        if report is None:
            raise OutOfOrder("the report must be saved before it is sent")
        event = yield from self._check_rollback(slot)
        if event is not None:
            return event
        yield self._log("reporting", slot=slot, receipt=receipt, **self._report_fields(report))
        response = yield from self._send_in_slot(
            slot, report_request, slot, receipt=receipt, report=report
        )
        if isinstance(response, Event):
            return response
        body = response.parse_json(wire.ReportAccepted, 200)
        if body and body["status"] == "taken":
            digest = sha256(report).hexdigest()
            yield self._log("acknowledged", slot=slot, receipt=receipt, sha256=digest)
            return events.ReportAcknowledged(receipt)
        return (yield from self._retry(slot, response))

    def _report_fields(self, report: bytes) -> dict[str, object]:
        """Return the fields that describe a report in the journal: its hash and its values."""
        fields: dict[str, object] = {"sha256": sha256(report).hexdigest()}
        decoded = self._machine.report
        if decoded is not None and decoded.values.size <= MAX_LOGGED_VALUES:
            fields["units"] = decoded.values.tolist()
        return fields

    def _send_in_slot(
        self, slot: int, build_request: Callable[..., Request], *args: Any, **kwargs: Any
    ) -> Flow[Response | events.SlotBegan | events.RetryDue]:
        """Send one request unless the slot is over; return an event if there is no response.

        ``build_request`` is called with the id of the run, ``args``, ``kwargs`` and a timeout.
        """
        remaining_s = self._view.run_schedule.ends(slot) - self._service.server_s()
        if remaining_s <= 0.0:
            return events.SlotBegan(slot + 1)
        # If the response is lost, the device must have time to repeat the request.
        timeout_s = max(1.0, min(RESPONSE_TIMEOUT_S, remaining_s / 3.0))
        response: Response | NoResponse = yield build_request(
            self._config.campaign, *args, timeout_s=timeout_s, **kwargs
        )
        if isinstance(response, NoResponse):
            return (yield from self._retry(slot, response))
        if response.status < 300:
            self._service.reset_backoff()
        return response

    def _retry(
        self, slot: int, response: Response | NoResponse, *, accept_refusal: bool = True
    ) -> Flow[events.SlotBegan | events.RetryDue]:
        """Wait and return RetryDue, or SlotBegan if the slot is over.

        If the service refused permanently, wait until the end of the slot. If ``accept_refusal`` is
        False, even a permanent refusal is retried, because it may come from a worker process of the
        service that lags behind another worker.
        """
        end_s, slot_s = self._view.run_schedule.ends(slot), self._view.run_schedule.slot_s
        now_s = self._service.server_s()
        backoff_s = self._service.backoff_s(response, first_s=slot_s / 20, longest_s=slot_s / 4)
        is_refused = isinstance(response, Response) and self._service.is_final(response)
        if accept_refusal and is_refused:
            backoff_s = end_s - now_s
        yield from self._sleep_until(min(end_s, now_s + backoff_s))
        is_over = self._service.server_s() >= end_s
        return events.SlotBegan(slot + 1) if is_over else events.RetryDue()

    def _sleep_until(self, server_s: float) -> Flow[None]:
        yield SleepUntil(self._service.clock.monotonic_s(server_s))

    def _log(self, event: str, **fields: object) -> LogEvent:
        return LogEvent({"event": event, "campaign": self._config.campaign, **fields})
