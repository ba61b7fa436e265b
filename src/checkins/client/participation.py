"""One device in one run of a campaign, from its first look at it to its end.

The machine in ``checkins.protocol.participant`` decides; this flow performs its effects as actions,
one attempt at a time, and tells it what came of them. What the machine records is durable before
anything follows from it, so a device that stops anywhere goes on with the same token, slot and
bytes, or abstains because its slot has passed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import numpy as np

from checkins.accounting import NoiseAt
from checkins.campaign import Campaign
from checkins.client import requests
from checkins.client.actions import (
    Answer,
    Flow,
    LogEvent,
    NoResponse,
    Request,
    Save,
    SleepUntil,
    Train,
)
from checkins.client.errors import CampaignRefused
from checkins.client.randomness import DeviceRandomness
from checkins.client.saved_state import SavedState
from checkins.client.service_client import ServiceClient, secret_in
from checkins.client.trainer import Trainer
from checkins.client.view import CampaignView
from checkins.errors import OutOfOrder
from checkins.protocol import participant as told
from checkins.protocol.factories import participant_of
from checkins.protocol.machine import Effect, Event
from checkins.protocol.participant import Outcome, Participant, Phase, step
from checkins.protocol.report import Report, model_from_bytes, most_model_bytes, report_to_bytes
from checkins.randomizers import DeviceReport
from checkins.tasks.tensors import flatten, unflatten

LONG_SLEEP_S = 60.0
"""After a longer sleep the device looks at the service's clock again, shortly before its slot."""
LOOK_AGAIN_S = (5.0, 30.0)
"""So long before its slot: somewhere in between, so that devices do not look all at once."""
SPREAD = 0.25
"""Check-ins are spread over this share of the time in which they are taken."""
LONGEST_POLL_S = 30
MOST_TOLD_UNITS = 10_000


@dataclass(frozen=True, slots=True)
class ParticipationConfig:
    """What the owner of a device wants: which campaign, with what, and under which conditions.

    ``key`` is the secret that the service asks for at enrolment, if it does. ``seal`` pins the
    campaign; ``accept`` raises if its parameters are not to the owner's liking.
    """

    url: str
    campaign: str
    trainer: Trainer
    key: str | None = None
    seal: str | None = None
    accept: Callable[[Campaign], None] | None = None
    patience_s: float = 60.0


class Participation:
    """The flow of one device in one run."""

    def __init__(
        self,
        plan: ParticipationConfig,
        kept: bytes | None,
        *,
        steady: Callable[[], float],
        dice: DeviceRandomness,
    ) -> None:
        self._plan = plan
        self._dice = dice
        self._kept = SavedState(plan.campaign) if kept is None else SavedState.from_bytes(kept)
        if self._kept.campaign != plan.campaign:
            raise CampaignRefused("state", self._kept.campaign, f"must be of {plan.campaign}")
        self._contact = ServiceClient(
            plan.url, plan.campaign, plan.patience_s, steady=steady, dice=dice
        )
        self._view: CampaignView  # set by the first look
        self._state: Participant

    def flow(self) -> Flow[Outcome]:
        """Take part, or go on with it; returns how it ended."""
        if self._kept.ended is not None:
            return self._ended()
        yield from self._look()
        self._plan_accepts(self._view)
        event: Event = told.Restarted()
        if self._kept.phase is None:
            yield from self._enrol()
            event = told.Draw(
                coin=self._dice.coin(),
                pick=self._dice.pick(len(self._state.window)),
                now=self._view.timetable.first_open(self._contact.server_s()),
            )
        else:
            yield self._tell("restarted", slot=self._kept.slot)
        while True:
            self._state, effects = step(self._state, event)
            following = None
            for effect in effects:
                following = yield from self._perform(effect)
            if following is None:
                return self._ended()
            event = following

    def _ended(self) -> Outcome:
        outcome = self._kept.outcome
        if outcome is None:
            why = "this device has withdrawn from it" if self._kept.ended else "is not over"
            raise CampaignRefused("campaign", self._plan.campaign, why)
        return outcome

    def _plan_accepts(self, view: CampaignView) -> None:
        view.check(seal=self._plan.seal)
        if self._plan.accept is not None:
            self._plan.accept(view.campaign)
        if view.over and self._kept.phase is None:
            raise CampaignRefused("campaign", view.id, f"is over: it has {view.status}")
        fresh, sampler = participant_of(view.campaign), view.sampler()
        self._state = self._kept.state(fresh, grid=sampler.grid, dimension=view.dimension)

    def _look(self) -> Flow[None]:
        self._view = yield from self._contact.look(self._kept)
        before, self._kept = self._kept, self._contact.seen(self._kept, self._view)
        if self._kept.key is not None and self._kept != before:
            yield Save(self._kept.to_bytes())

    def _enrol(self) -> Flow[None]:
        """Get a token. Its key is durable first, so that a lost answer can be asked for again."""
        if self._kept.key is None:
            self._kept = replace(self._kept, key=self._dice.key())
            yield Save(self._kept.to_bytes())
        token = yield from self._contact.enrol(str(self._kept.key), key=self._plan.key)
        self._kept = replace(self._kept, token=token)
        yield self._tell("enrolled")

    def _perform(self, effect: Effect) -> Flow[Event | None]:
        """Do what the machine asks, once; returns what the machine is to know next."""
        match effect:
            case told.RecordDraw():
                yield from self._record()
                yield self._tell("drawn", slot=self._state.slot)
                return told.DrawRecorded()
            case told.RecordReport(report):
                yield from self._record(report_to_bytes(report.values))
                return told.ReportRecorded()
            case told.RecordEnd():
                yield from self._record_end()
                return None
            case told.WakeAt(slot):
                return (yield from self._wake(slot))
            case told.SendCheckIn(slot):
                return (yield from self._check_in(slot))
            case told.AskOutcome(receipt):
                return (yield from self._ask(receipt))
            case told.Train(model):
                return (yield from self._train(model))
            case told.SendReport(slot, receipt):
                return (yield from self._send_report(slot, receipt))
        raise OutOfOrder(f"a device cannot perform {type(effect).__name__}")

    def _record(self, report: bytes | None = None) -> Flow[None]:
        state = self._state
        self._kept = replace(
            self._kept, phase=state.phase, slot=state.slot, receipt=state.receipt, report=report
        )
        yield Save(self._kept.to_bytes())

    def _record_end(self) -> Flow[None]:
        outcome = self._state.outcome
        if outcome is None:
            raise OutOfOrder("a participation ends with an outcome")
        self._kept = self._kept.over(outcome.name)
        yield Save(self._kept.to_bytes())
        yield self._tell("done", outcome=outcome.name.lower())

    def _wake(self, slot: int) -> Flow[Event]:
        """Sleep until the slot, by the server's clock."""
        timetable, now = self._view.timetable, self._contact.server_s
        if slot > timetable.slots or self._view.over or now() >= timetable.end(slot):
            return told.SlotBegan(slot + 1)
        begin = timetable.begin(slot)
        yield self._tell("asleep", slot=slot, seconds=max(0.0, begin - now()))
        if begin - now() > LONG_SLEEP_S:
            soonest, latest = LOOK_AGAIN_S
            before = soonest + (latest - soonest) * self._dice.jitter()
            yield from self._sleep_until(begin - before)
            if (yield from self._look_again()):
                return told.SlotBegan(slot + 1)
        yield from self._sleep_until(begin + SPREAD * timetable.choose_s * self._dice.jitter())
        return told.SlotBegan(slot if now() < timetable.end(slot) else slot + 1)

    def _look_again(self) -> Flow[bool]:
        """The clock again, and whether the campaign is over; offline, the old clock serves."""
        view = yield from self._contact.look_once(self._kept)
        if view is None:
            return False
        self._view = view
        self._kept = self._contact.seen(self._kept, view)
        yield Save(self._kept.to_bytes())
        return view.over

    def _unless_set_back(self, slot: int) -> Flow[Event | None]:
        """None if the ledger still has the line that this device saw; raises if it has another.

        Asked before anything is sent for a slot: a store that was put back to an older state, its
        witness with it, would take it for a slot that was released already.
        """
        kept = self._kept
        answer = yield from self._in_slot(
            slot,
            lambda timeout_s: requests.ledger_head(
                self._plan.campaign, kept.entries, timeout_s=timeout_s
            ),
        )
        if isinstance(answer, Event):
            return answer
        match self._contact.continues(answer, kept):
            case True:
                return None
            case False:
                yield from self._look()
                return None
        return (yield from self._again(slot, answer, final=False))

    def _check_in(self, slot: int) -> Flow[Event]:
        instead = yield from self._unless_set_back(slot)
        if instead is not None:
            return instead
        yield self._tell("checking-in", slot=slot)
        answer = yield from self._in_slot(
            slot,
            lambda timeout_s: requests.check_in(
                self._plan.campaign, slot, token=str(self._kept.token), timeout_s=timeout_s
            ),
        )
        if isinstance(answer, Event):
            return answer
        if answer.status == 202:
            receipt = secret_in(answer, "receipt")
            if receipt is not None:
                yield self._tell("checked-in", slot=slot, receipt=receipt)
                return told.Acknowledged(receipt)
        if answer.problem == "too-early":
            yield from self._look_again()
        elif self._contact.final(answer):
            yield self._tell("refused", slot=slot, problem=answer.problem)
            return told.Refused()
        return (yield from self._again(slot, answer))

    def _ask(self, receipt: str) -> Flow[Event]:
        """Wait at the service for the choice; a chosen device goes on to get its model."""
        slot, timetable = self._slot(), self._view.timetable
        choice = timetable.choice(slot)
        if choice - self._contact.server_s() > LONGEST_POLL_S:
            yield from self._sleep_until(choice - 5.0)  # nothing can be known before
        left = choice - self._contact.server_s()
        wait_s = min(LONGEST_POLL_S, 1 + max(0, math.ceil(left)))
        answer = yield from self._in_slot(
            slot,
            lambda timeout_s: requests.outcome(
                self._plan.campaign, receipt, wait_s=wait_s, timeout_s=timeout_s
            ),
        )
        if isinstance(answer, Event):
            return answer
        said = answer.value() if answer.status == 200 else {}
        match said.get("outcome"), said.get("slot"):
            case "dismissed", about if about == slot:
                yield self._tell("dismissed", slot=slot, receipt=receipt)
                return told.Dismissed(receipt)
            case "chosen", about if about == slot:
                yield self._tell("chosen", slot=slot, receipt=receipt)
                return (yield from self._model(slot, receipt))
            case "waiting", _ if answer.received - answer.sent > 0.5 * wait_s:
                return told.RetryDue()
        return (yield from self._again(slot, answer, final=False))

    def _model(self, slot: int, receipt: str) -> Flow[Event]:
        answer = yield from self._in_slot(
            slot,
            lambda timeout_s: requests.model(
                self._plan.campaign,
                slot,
                receipt=receipt,
                most_bytes=most_model_bytes(self._view.shapes),
                timeout_s=timeout_s,
            ),
        )
        if isinstance(answer, Event):
            return answer
        if answer.status == 200:
            model = self._flat(answer.body)
            if model is not None:
                return told.Invited(receipt, model)
        return (yield from self._again(slot, answer, final=False))

    def _flat(self, body: bytes) -> Any:
        """The model as one vector; None if these bytes are not this campaign's model."""
        try:
            tensors, _ = model_from_bytes(body)
            return flatten(tensors, self._view.shapes).astype(np.float64)
        except ValueError:
            return None

    def _train(self, model: Any) -> Flow[Event]:
        """Train, clip and draw noise; a report that was not recorded was never sent."""
        view, trainer = self._view, self._plan.trainer
        made = yield Train(lambda: make_report(view, trainer, model))
        return told.ReportMade(Report.from_device(made))

    def _send_report(self, slot: int, receipt: str) -> Flow[Event]:
        report = self._kept.report
        if report is None:
            raise OutOfOrder("a report is durable before it is sent")
        instead = yield from self._unless_set_back(slot)
        if instead is not None:
            return instead
        yield self._tell("reporting", slot=slot, receipt=receipt, **self._identity(report))
        answer = yield from self._in_slot(
            slot,
            lambda timeout_s: requests.report(
                self._plan.campaign, slot, receipt=receipt, report=report, timeout_s=timeout_s
            ),
        )
        if isinstance(answer, Event):
            return answer
        if answer.status == 200 and answer.value().get("status") == "taken":
            digest = sha256(report).hexdigest()
            yield self._tell("acknowledged", slot=slot, receipt=receipt, sha256=digest)
            return told.ReportAcknowledged(receipt)
        return (yield from self._again(slot, answer))

    def _identity(self, report: bytes) -> dict[str, object]:
        """Which report this is, for a journal."""
        made = self._state.report
        told_units = made is not None and made.values.size <= MOST_TOLD_UNITS
        units = {"units": made.values.tolist()} if made is not None and told_units else {}
        return {"sha256": sha256(report).hexdigest(), **units}

    def _in_slot(
        self, slot: int, request: Callable[[float], Request]
    ) -> Flow[Answer | told.SlotBegan | told.RetryDue]:
        """One attempt while the slot lasts; after it the slot is told to be over."""
        left = self._view.timetable.end(slot) - self._contact.server_s()
        if left <= 0.0:
            return told.SlotBegan(slot + 1)
        # A request that gets lost must leave time for another one.
        timeout_s = max(1.0, min(requests.ANSWER_S, left / 3.0))
        answer: Answer | NoResponse = yield request(timeout_s)
        if isinstance(answer, NoResponse):
            return (yield from self._again(slot, answer))
        if answer.status < 300:
            self._contact.answered()
        return answer

    def _again(
        self, slot: int, answer: Answer | NoResponse, *, final: bool = True
    ) -> Flow[told.SlotBegan | told.RetryDue]:
        """Wait a little and try the same again, or wait for the end if trying cannot help.

        ``final`` is False where a refusal may be that of a worker who is a moment behind another.
        """
        end, slot_s = self._view.timetable.end(slot), self._view.timetable.slot_s
        now = self._contact.server_s()
        pause_s = self._contact.pause_s(answer, least_s=slot_s / 20, most_s=slot_s / 4)
        if final and isinstance(answer, Answer) and self._contact.final(answer):
            pause_s = end - now
        yield from self._sleep_until(min(end, now + pause_s))
        over = self._contact.server_s() >= end
        return told.SlotBegan(slot + 1) if over else told.RetryDue()

    def _sleep_until(self, server_s: float) -> Flow[None]:
        yield SleepUntil(self._contact.clock.steady_s(server_s))

    def _slot(self) -> int:
        if self._state.slot is None or self._state.phase is Phase.DONE:
            raise OutOfOrder("a device that does not take part has no slot")
        return self._state.slot

    def _tell(self, event: str, **facts: object) -> LogEvent:
        return LogEvent({"event": event, "campaign": self._plan.campaign, **facts})


def make_report(view: CampaignView, trainer: Trainer, model: Any) -> DeviceReport:
    """The trainer's update, clipped and rounded, with noise unless the server adds it."""
    tensors: Mapping[str, Any] = unflatten(model, view.shapes)
    update = flatten(trainer.update(tensors), view.shapes)
    sampler = view.sampler()
    if view.campaign.noise_at is NoiseAt.SERVER:
        return sampler.encode(update)
    return sampler.privatize(update)
