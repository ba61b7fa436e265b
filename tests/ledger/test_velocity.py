"""A repeat that goes on from the last model goes on with its velocity, and the ledger knows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from checkins.campaign import Campaign
from checkins.ledger import InvalidLedger, verify
from checkins.ledger.entry import SlotClosed
from checkins.protocol.model_update import Learner, ModelUpdate
from tests.ledger.ledgers import MODEL, Book, campaign


def with_momentum(*, repeats: int) -> Campaign:
    plain = campaign(repeats=repeats)
    task = plain.task
    assert task is not None
    heavy = replace(task.optimizer, momentum=0.9)
    return replace(plain, task=replace(task, optimizer=heavy))


def played(book: Book, run: Campaign, learner: Learner, seed: int) -> Learner:
    """One run from where the learner stands."""
    book.add(book.ledger.opening(run, model=learner.model, simulated=False))
    dice, update = np.random.default_rng(seed), ModelUpdate.of(run)
    for number in range(1, run.design.slots + 1):
        total = dice.integers(-5000, 5000, MODEL.size)
        learner = update.apply(learner, total)
        book.add(SlotClosed.of(slot=number, total=total, model=learner.model))
    book.close()
    return learner


@pytest.mark.parametrize("carried", [True, False])
def test_a_repeat_from_the_last_model_has_its_velocity(carried: bool) -> None:
    run, book = with_momentum(repeats=2), Book()
    update = ModelUpdate.of(run)
    first = played(book, run, update.start(MODEL), 1)
    played(book, run, update.start(first.model, first.velocity if carried else None), 2)
    if carried:
        assert len(verify(book.lines, path="ledger").ledger.runs) == 2
    else:
        with pytest.raises(InvalidLedger, match="does not follow from the totals"):
            verify(book.lines, path="ledger")


def test_a_run_from_another_model_begins_at_rest() -> None:
    run, book = with_momentum(repeats=2), Book()
    update = ModelUpdate.of(run)
    played(book, run, update.start(MODEL), 1)
    played(book, run, update.start(MODEL), 2)
    assert len(verify(book.lines, path="ledger").ledger.runs) == 2
