"""The history checker: from the ledger and the journals alone, what went wrong, if anything did.

It shares no code with the service. Epsilon and chain are checked by ``ledger.verify``; who is in a
total is found by ``presence``; and what is found is fed through the pure machines, whose model must
be the released one, bit for bit: a run without a crash that took in the same reports.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from checkins.campaign import Campaign
from checkins.errors import CheckinsError
from checkins.ledger import InvalidLedger, Ledger, Opened, SlotClosed, spending_of, verify
from checkins.ledger.entry import hash_model
from checkins.protocol import server as servers
from checkins.protocol.report import Report
from checkins.protocol.server import server_of
from checkins.protocol.slot import CheckedIn, ChoiceRecorded, Choose, Expired, ReportArrived
from tests.service.faults.findings import Findings, Kind
from tests.service.faults.residuals import check_noise
from tests.service.faults.story import Story, stories_of
from tests.service.faults.sums import Sums, room_of
from tests.support.journal import Event, Note


def check(
    lines: Sequence[bytes], notes: Iterable[Note], *, shown: Sequence[bytes | bytearray] = ()
) -> Findings:
    """Judge a history that is over. ``shown`` are beginnings of the ledger as readers saw them."""
    findings = Findings()
    notes = list(notes)
    clients = [note for note in notes if note.event is not Event.RELEASED]
    stories = stories_of(clients)
    for story in stories.values():
        _check_story(story, findings)
    try:
        verify(lines, require_closed=True)
    except InvalidLedger as error:
        findings.add(Kind.LEDGER, str(error))
        return findings
    campaign, opened, entries = _parsed(lines)
    if len(entries) != campaign.design.slots:
        findings.add(Kind.UNFINISHED, f"{len(entries)} of {campaign.design.slots} are closed")
    findings.slots, findings.clients = len(entries), len(stories)
    findings.check_ins = sum(bool(story.receipts) for story in stories.values())
    _check_receipts(stories.values(), findings)
    _check_choices(campaign, stories.values(), findings)
    _check_releases(opened, entries, notes, stories.values(), lines, shown, findings)
    if campaign.strategy is not None:
        check_noise(campaign, entries, stories, findings)
        return findings
    taken = Sums(campaign, opened, entries, stories, findings).judge()
    _replay(campaign, opened, entries, taken, findings)
    return findings


def _parsed(lines: Sequence[bytes]) -> tuple[Campaign, Opened, list[SlotClosed]]:
    ledger, opened, slots = Ledger(), [], []
    for line in lines:
        ledger, entry = ledger.read(line)
        if isinstance(entry, Opened):
            opened.append(entry)
        elif isinstance(entry, SlotClosed):
            slots.append(entry)
    assert len(opened) == 1, "one run of one campaign is judged at a time"
    return ledger.closed[0].campaign, opened[0], slots


def _check_story(story: Story, findings: Findings) -> None:
    """What one client's journal alone can refute."""
    who = f"client {story.client}"
    if len(story.drawn) > 1:
        findings.add(Kind.REDRAWN, f"{who} drew {sorted(story.drawn, key=str)}")
    for slot in sorted(story.acted_in - story.drawn):
        findings.add(Kind.SLOT, f"{who} was in slot {slot} and drew {story.drawn or 'none'}")
    if len(story.receipts) > 1:
        findings.add(Kind.RECEIPT, f"{who} got {len(story.receipts)} receipts")
    if story.chosen and story.dismissed:
        findings.add(Kind.OUTCOME, f"{who} was chosen and dismissed")
    if story.reports and not story.chosen:
        findings.add(Kind.NOT_CHOSEN, who)
    if story.taken and not story.reports:
        findings.add(Kind.UNSENT, who)
    if len(story.reports) > 1 or len(story.sent) > 1:
        findings.add(Kind.RETRY, f"{who} sent reports that differ")


def _check_receipts(stories: Iterable[Story], findings: Findings) -> None:
    owners: dict[str, set[int]] = defaultdict(set)
    for story in stories:
        for receipt in story.receipts:
            owners[receipt].add(story.client)
    for clients in owners.values():
        if len(clients) > 1:
            findings.add(Kind.RECEIPT, f"clients {sorted(clients)} got the same")


def _check_choices(campaign: Campaign, stories: Iterable[Story], findings: Findings) -> None:
    """A choice that was made again after a crash shows as too many who were told that they are."""
    room = room_of(campaign)
    here: dict[int, list[Story]] = defaultdict(list)
    for story in stories:
        for slot in story.acted_in:
            here[slot].append(story)
    for slot, those in sorted(here.items()):
        chosen = sum(story.chosen for story in those)
        dismissed = sum(story.dismissed for story in those)
        if room is not None and chosen > room:
            findings.add(Kind.CHOICE, f"slot {slot} has room for {room}, and {chosen} were chosen")
        if dismissed and (room is None or len(those) <= room):
            findings.add(Kind.CHOICE, f"slot {slot} sent {dismissed} of {len(those)} away")


def _check_releases(
    opened: Opened,
    entries: Sequence[SlotClosed],
    notes: Iterable[Note],
    stories: Iterable[Story],
    lines: Sequence[bytes],
    shown: Sequence[bytes | bytearray],
    findings: Findings,
) -> None:
    """What was ever shown is what stands in the ledger at the end."""
    after = {0: opened.model_hash} | {entry.slot: entry.model_hash for entry in entries}
    for note in notes:
        if note.event is Event.RELEASED and note.slot is not None:
            findings.releases_seen += 1
            if after.get(note.slot) != note.model_hash:
                findings.add(Kind.RELEASE, f"slot {note.slot} was seen as {note.model_hash}")
    for story in stories:
        findings.releases_seen += len(story.models)
        if story.models - {after.get((story.slot or 0) - 1)}:
            findings.add(Kind.RELEASE, f"client {story.client} trained on another model")
    whole = b"".join(lines)
    for beginning in shown:
        if not whole.startswith(beginning):
            findings.add(Kind.RELEASE, "ledger lines that were shown are not there any more")


def _replay(
    campaign: Campaign,
    opened: Opened,
    entries: Sequence[SlotClosed],
    taken: dict[int, list[Story]],
    findings: Findings,
) -> None:
    """The same reports in a world without crashes; what is left of a total stands for dummies."""
    step = campaign.randomizer.grid
    affordable = spending_of(Ledger(), campaign).affordable_slots_in_run()
    server = server_of(campaign, opened.numbers(), affordable=affordable)
    for entry in entries:
        number, total = entry.slot, entry.numbers()
        try:
            server = _began(server, number, taken[number], step)
            dummies = _dummies(server, total, step)
            server, _ = servers.step(server, Expired(number, dummies))
        except CheckinsError as error:
            findings.add(Kind.MODEL, f"the machines refuse slot {number}: {error}")
            return
        server, _ = servers.step(server, servers.ClosingRecorded(number))
        if hash_model(server.learner.model) != entry.model_hash:
            findings.add(Kind.MODEL, f"after slot {number}")
            return


def _began(
    server: servers.Server, number: int, inside: list[Story], step: float | None
) -> servers.Server:
    events = [servers.SlotBegan(number)]
    events += [
        CheckedIn(number, str(s.client), str(s.client), has_participated=False) for s in inside
    ]
    events += [Choose(number, ()), ChoiceRecorded(number)]
    for story in inside:
        report = Report(story.units.astype(np.int32), simulated=False, step=step)
        events.append(ReportArrived(number, str(story.client), report))
    for event in events:
        server, _ = servers.step(server, event)
    return server


def _dummies(
    server: servers.Server, total: NDArray[np.int64] | None, step: float | None
) -> tuple[Report, ...]:
    slot = server.slot
    assert slot is not None
    if not slot.missing_dummies:
        return ()
    assert total is not None
    rest = total - sum((r.values for r in slot.reports.values()), np.zeros_like(total))
    none = np.zeros_like(total)
    values = [rest] + [none] * (slot.missing_dummies - 1)
    return tuple(Report(value, simulated=False, step=step) for value in values)
