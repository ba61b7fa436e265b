"""A history without faults to plant faults in: made by the pure machines, noted as clients do."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from checkins.campaign import Campaign, parse_campaign
from checkins.ledger import Closed, Ledger, Reason, SlotClosed, certificate, spending_of
from checkins.ledger.entry import hash_model
from checkins.protocol import server as servers
from checkins.protocol.model_update import ModelUpdate
from checkins.protocol.report import Report
from checkins.protocol.rules import sampler_of
from checkins.protocol.server import server_of
from checkins.protocol.slot import CheckedIn, ChoiceRecorded, Choose, Expired, Invite, ReportArrived
from tests.support.campaigns import DIMENSION, Plan, update_of
from tests.support.journal import Event, Note


@dataclass(slots=True)
class PlantedHistory:
    """The totals as a server had them, from which ``lines`` makes a ledger that verifies."""

    campaign: Campaign
    totals: dict[int, NDArray[np.int64] | None] = field(default_factory=dict)
    contributors: dict[int, int | None] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    @classmethod
    def of(cls, plan: Plan, *, draws: dict[int, int]) -> PlantedHistory:
        """Each client in the slot that it drew; each report but every seventh is acknowledged."""
        campaign = parse_campaign(plan.text).campaign
        past = cls(campaign)
        affordable = spending_of(Ledger(), campaign).affordable_slots_in_run()
        server = server_of(campaign, np.zeros(DIMENSION), affordable=affordable)
        for slot in range(1, plan.slots + 1):
            server = past._play(server, slot, [c for c, drawn in draws.items() if drawn == slot])
        return past

    def lines(self) -> list[bytes]:
        """The ledger of these totals, closed."""
        update, ledger, lines = ModelUpdate.of(self.campaign), Ledger(), []
        learner = update.start(np.zeros(DIMENSION))
        ledger, line = ledger.append(ledger.opening(self.campaign, model=learner.model))
        lines.append(line)
        for slot, total in self.totals.items():
            contributors = self.contributors[slot]
            learner = update.apply(learner, total, contributors)
            entry = SlotClosed.of(
                slot=slot, total=total, model=learner.model, contributors=contributors
            )
            ledger, line = ledger.append(entry)
            lines.append(line)
        complete = len(self.totals) == self.campaign.design.slots
        reason = Reason.COMPLETED if complete else Reason.STOPPED
        _, line = ledger.append(Closed(reason, certificate(ledger).as_dict()))
        return [*lines, line]

    def _play(self, server: servers.Server, slot: int, clients: list[int]) -> servers.Server:
        sampler = sampler_of(self.campaign, dimension=DIMENSION)
        shown = hash_model(server.learner.model)
        server, _ = servers.step(server, servers.SlotBegan(slot))
        for client in clients:
            receipt = f"receipt-{client}"
            self._note(client, Event.DRAWN, slot=slot)
            self._note(client, Event.CHECKING_IN, slot=slot)
            event = CheckedIn(slot, str(client), receipt, has_participated=False)
            server, _ = servers.step(server, event)
            self._note(client, Event.CHECKED_IN, slot=slot, receipt=receipt)
        assert server.slot is not None
        server, _ = servers.step(server, Choose(slot, tuple(0 for _ in server.slot.ranges)))
        server, told = servers.step(server, ChoiceRecorded(slot))
        chosen = {effect.receipt for effect in told if isinstance(effect, Invite)}
        for client in clients:
            receipt = f"receipt-{client}"
            if receipt not in chosen:
                self._note(client, Event.DISMISSED)
                continue
            self._note(client, Event.CHOSEN)
            self._note(client, Event.TRAINED, model_hash=shown)
            report = Report.from_device(sampler.privatize(update_of(client)))
            raw = report.values.astype("<i4").tobytes()
            self._note(client, Event.REPORTING, slot=slot, receipt=receipt, report=raw)
            if client % 7 == 3:  # lost on the way to the server
                continue
            server, _ = servers.step(server, ReportArrived(slot, receipt, report))
            if client % 7 != 0:  # else the answer was lost on the way back
                self._note(client, Event.ACKNOWLEDGED, slot=slot, receipt=receipt)
        assert server.slot is not None
        missing = server.slot.missing_dummies
        dummies = tuple(Report.from_device(sampler.dummy()) for _ in range(missing))
        server, (record,) = servers.step(server, Expired(slot, dummies))
        assert isinstance(record, servers.RecordClosing)
        self.totals[slot], self.contributors[slot] = record.total, record.contributors
        self._note(-1, Event.RELEASED, slot=slot, model_hash=hash_model(record.model))
        return servers.step(server, servers.ClosingRecorded(slot))[0]

    def _note(self, client: int, event: Event, **told: object) -> None:
        self.notes.append(Note(client, event, **told))  # type: ignore[arg-type]
