"""The checker itself: an honest history passes, and each planted violation is found."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.service.faults.findings import Kind
from tests.service.faults.history import check
from tests.service.faults.planted_history import PlantedHistory
from tests.service.faults.presence import Filters
from tests.service.faults.story import Story, stories_of
from tests.support.campaigns import DIMENSION, Plan
from tests.support.journal import Event, Note, read

SLOTS = 12
DRAWS = {client: 1 + (client * 7 + client // 5) % (SLOTS - 1) for client in range(30)}
"""Slot 12 is empty; the others have two or three."""


@pytest.fixture(scope="module")
def honest() -> PlantedHistory:
    return PlantedHistory.of(Plan(slots=SLOTS), draws=DRAWS)


@pytest.fixture(scope="module")
def averaged() -> PlantedHistory:
    return PlantedHistory.of(Plan(slots=SLOTS, capacity=None, clients=30), draws=DRAWS)


@dataclass(slots=True)
class Plant:
    """A copy of an honest history that may be damaged."""

    past: PlantedHistory
    shown: list[bytes]

    @property
    def stories(self) -> dict[int, Story]:
        return stories_of(note for note in self.past.notes if note.client >= 0)

    def acknowledged(self, *, full: bool) -> Story:
        """A client whose report was taken, in a slot with or without a dummy in its total."""
        counted = [s for s in self.stories.values() if s.reports and s.client % 7 != 3]
        for story in counted:
            here = sum(other.slot == story.slot for other in counted)
            if story.taken and (here == 2) == full:
                return story
        raise AssertionError("no such client")

    def add(self, slot: int | None, units: NDArray[np.int64]) -> None:
        assert slot is not None
        total = self.past.totals[slot]
        assert total is not None
        self.past.totals[slot] = total + units

    def note(self, client: int, event: Event, **told: object) -> None:
        self.past.notes.append(Note(client, event, **told))  # type: ignore[arg-type]

    def kinds(self) -> set[Kind]:
        found = check(self.past.lines(), self.past.notes, shown=self.shown)
        return {violation.kind for violation in found.violations}


@pytest.fixture
def plant(honest: PlantedHistory) -> Plant:
    return Plant(copy.deepcopy(honest), [])


def dummy() -> NDArray[np.int64]:
    drawn = np.random.default_rng(1).laplace(scale=50_000.0, size=DIMENSION)
    return np.rint(drawn).astype(np.int64)


def test_an_honest_history_passes(honest: PlantedHistory) -> None:
    found = check(honest.lines(), honest.notes, shown=[b"".join(honest.lines()[:5])])
    assert not found.violations, str(found)
    assert found.slots == SLOTS
    assert found.clients == len(DRAWS)
    assert found.acknowledged > 10
    assert found.unacknowledged_in > 0
    assert found.unacknowledged_out > 0
    assert found.full_slots > 0
    assert found.chance <= 1e-9


def test_an_honest_averaged_history_passes(averaged: PlantedHistory) -> None:
    found = check(averaged.lines(), averaged.notes)
    assert not found.violations, str(found)
    assert found.full_slots == SLOTS - 1
    assert found.chance <= 1e-9


def lost(plant: Plant) -> None:
    story = plant.acknowledged(full=False)
    plant.add(story.slot, dummy() - story.units)


def lost_from_a_full_slot(plant: Plant) -> None:
    story = plant.acknowledged(full=True)
    plant.add(story.slot, dummy() - story.units)


def counted_twice(plant: Plant) -> None:
    story = plant.acknowledged(full=False)
    plant.add(story.slot, story.units)


def counted_twice_in_a_full_slot(plant: Plant) -> None:
    story = plant.acknowledged(full=True)
    plant.add(story.slot, story.units)


def counted_in_two_slots(plant: Plant) -> None:
    plant.add(SLOTS, plant.acknowledged(full=True).units)


def moved_without_an_acknowledgement(plant: Plant) -> None:
    late = next(s for s in plant.stories.values() if s.reports and s.client % 7 == 3)
    plant.add(SLOTS, late.units)


def one_unit_is_off(plant: Plant) -> None:
    off = np.zeros(DIMENSION, dtype=np.int64)
    off[5] = 1
    plant.add(plant.acknowledged(full=True).slot, off)


def too_many_reports(plant: Plant) -> None:
    """The choice was made a second time, and those of both were used."""
    story = next(s for s in plant.stories.values() if s.dismissed)
    units = dummy()
    for event in (Event.CHOSEN, Event.REPORTING, Event.ACKNOWLEDGED):
        report = units.astype("<i4").tobytes() if event is Event.REPORTING else None
        plant.note(story.client, event, slot=story.slot, report=report)
    plant.add(story.slot, units)


def a_reader_saw_another_model(plant: Plant) -> None:
    plant.note(-1, Event.RELEASED, slot=4, model_hash="0" * 64)


def a_release_was_taken_back(plant: Plant) -> None:
    plant.note(-1, Event.RELEASED, slot=SLOTS + 1, model_hash="0" * 64)


def a_ledger_line_was_replaced(plant: Plant) -> None:
    other = PlantedHistory.of(Plan(slots=SLOTS), draws={})
    plant.shown.append(b"".join(other.lines()[:4]))


def trained_on_another_model(plant: Plant) -> None:
    story = plant.acknowledged(full=True)
    plant.note(story.client, Event.TRAINED, model_hash="0" * 64)


def drew_again(plant: Plant) -> None:
    story = plant.acknowledged(full=True)
    plant.note(story.client, Event.DRAWN, slot=SLOTS)


def drew_again_after_its_coin_said_no(plant: Plant) -> None:
    plant.note(100, Event.DRAWN)
    plant.note(100, Event.DRAWN, slot=SLOTS)


def checked_in_to_another_slot(plant: Plant) -> None:
    plant.note(plant.acknowledged(full=True).client, Event.CHECKING_IN, slot=SLOTS)


def checked_in_before_it_drew(plant: Plant) -> None:
    plant.note(100, Event.CHECKING_IN, slot=SLOTS)


def got_two_receipts(plant: Plant) -> None:
    story = plant.acknowledged(full=True)
    plant.note(story.client, Event.CHECKED_IN, slot=story.slot, receipt="another")


def two_got_the_same_receipt(plant: Plant) -> None:
    plant.note(100, Event.DRAWN, slot=SLOTS)
    plant.note(100, Event.CHECKED_IN, slot=SLOTS, receipt="receipt-1")


def told_two_outcomes(plant: Plant) -> None:
    plant.note(plant.acknowledged(full=True).client, Event.DISMISSED)


def chosen_again(plant: Plant) -> None:
    plant.note(next(s for s in plant.stories.values() if s.dismissed).client, Event.CHOSEN)


def dismissed_while_there_was_room(plant: Plant) -> None:
    plant.note(100, Event.DRAWN, slot=SLOTS)
    plant.note(100, Event.CHECKING_IN, slot=SLOTS)
    plant.note(100, Event.DISMISSED)


def reported_without_being_chosen(plant: Plant) -> None:
    story = next(s for s in plant.stories.values() if s.dismissed)
    raw = dummy().astype("<i4").tobytes()
    plant.note(story.client, Event.REPORTING, slot=story.slot, report=raw)


def a_retry_differs(plant: Plant) -> None:
    story = plant.acknowledged(full=True)
    raw = dummy().astype("<i4").tobytes()
    plant.note(story.client, Event.REPORTING, slot=story.slot, report=raw)


def a_retry_is_encoded_differently(plant: Plant) -> None:
    story = plant.acknowledged(full=True)
    for digest in ("0" * 64, "1" * 64):
        plant.note(story.client, Event.REPORTING, slot=story.slot, sha256=digest)


def woke_up_with_another_slot(plant: Plant) -> None:
    plant.note(plant.acknowledged(full=True).client, Event.RESTARTED, slot=SLOTS)


def acknowledged_without_a_report(plant: Plant) -> None:
    plant.note(100, Event.DRAWN, slot=SLOTS)
    plant.note(100, Event.ACKNOWLEDGED, slot=SLOTS)


def a_slot_is_missing(plant: Plant) -> None:
    del plant.past.totals[SLOTS]


PLANTED: list[tuple[Callable[[Plant], None], set[Kind]]] = [
    (lost, {Kind.LOST}),
    (lost_from_a_full_slot, {Kind.SUM}),
    (counted_twice, {Kind.TWICE}),
    (counted_twice_in_a_full_slot, {Kind.TWICE, Kind.SUM}),
    (counted_in_two_slots, {Kind.MOVED}),
    (moved_without_an_acknowledgement, {Kind.MOVED}),
    (one_unit_is_off, {Kind.SUM}),
    (too_many_reports, {Kind.CHOICE, Kind.OUTCOME, Kind.SUM, Kind.MODEL}),
    (a_reader_saw_another_model, {Kind.RELEASE}),
    (a_release_was_taken_back, {Kind.RELEASE}),
    (a_ledger_line_was_replaced, {Kind.RELEASE}),
    (trained_on_another_model, {Kind.RELEASE}),
    (drew_again, {Kind.REDRAWN}),
    (drew_again_after_its_coin_said_no, {Kind.REDRAWN}),
    (checked_in_to_another_slot, {Kind.SLOT}),
    (checked_in_before_it_drew, {Kind.SLOT}),
    (got_two_receipts, {Kind.RECEIPT}),
    (two_got_the_same_receipt, {Kind.RECEIPT}),
    (told_two_outcomes, {Kind.OUTCOME}),
    (chosen_again, {Kind.CHOICE, Kind.OUTCOME}),
    (dismissed_while_there_was_room, {Kind.CHOICE}),
    (reported_without_being_chosen, {Kind.NOT_CHOSEN}),
    (a_retry_differs, {Kind.RETRY}),
    (a_retry_is_encoded_differently, {Kind.RETRY}),
    (woke_up_with_another_slot, {Kind.REDRAWN}),
    (acknowledged_without_a_report, {Kind.UNSENT}),
    (a_slot_is_missing, {Kind.UNFINISHED}),
]


@pytest.mark.parametrize(
    ("damage", "kinds"), PLANTED, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_planted_violation_is_found(
    plant: Plant, damage: Callable[[Plant], None], kinds: set[Kind]
) -> None:
    damage(plant)
    assert plant.kinds() >= kinds


def test_a_ledger_that_was_changed_is_found(honest: PlantedHistory) -> None:
    lines = honest.lines()
    lines[3] = lines[3].replace(b'"slot":3', b'"slot":4')
    found = check(lines, honest.notes)
    assert {violation.kind for violation in found.violations} == {Kind.LEDGER}


def test_a_report_that_averaged_updates_lost_is_found(averaged: PlantedHistory) -> None:
    past = copy.deepcopy(averaged)
    story = next(s for s in stories_of(past.notes).values() if s.taken)
    assert story.slot is not None
    total = past.totals[story.slot]
    assert total is not None
    past.totals[story.slot] = total - story.units
    found = check(past.lines(), past.notes)
    assert Kind.LOST in {violation.kind for violation in found.violations}


def test_a_journal_reads_back_as_it_was_written(honest: PlantedHistory, tmp_path: Path) -> None:
    """All but a line that a killed process has torn, and events that nothing is checked about."""
    path = tmp_path / "journal.jsonl"
    lines = [note.line() for note in honest.notes]
    other = '{"client": 1, "event": "asleep", "seconds": 0.5}\n'
    path.write_text("".join([other, *lines, lines[0][:20]]), encoding="utf-8")
    assert list(read([path])) == honest.notes


def test_every_kind_of_violation_is_planted() -> None:
    planted = set().union(*(kinds for _, kinds in PLANTED)) | {Kind.LEDGER}
    assert planted == set(Kind) - {Kind.NOISE, Kind.FORGOTTEN}  # those are in test_residuals.py


def test_a_client_that_notes_the_same_again_after_a_restart_is_no_violation(plant: Plant) -> None:
    plant.past.notes += [replace(note) for note in plant.past.notes]
    assert plant.kinds() == set()


def test_scores_are_as_wrong_as_their_bound_says_at_most() -> None:
    """Noise alone, with a fixed seed: no more scores exceed a threshold than the bound allows."""
    generator = np.random.default_rng(7)
    known = np.rint(generator.laplace(scale=5e4, size=(100, 32))).astype(np.int64)
    filters = Filters.of(known, scale=5e4)
    rests = np.rint(generator.laplace(scale=5e4, size=(200, 2, 32))).astype(np.int64).sum(axis=1)
    scores = np.array([filters.scores(rest) for rest in rests])
    for threshold in (0.8, 1.2, 1.6):
        allowed = filters.chances(threshold=threshold, vectors=2).sum() * len(rests)
        assert (np.abs(scores) >= threshold).sum() <= allowed
