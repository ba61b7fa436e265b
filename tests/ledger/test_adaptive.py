"""Campaigns of one ledger that were opened after earlier releases: charged by a filter."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from checkins.accounting import Adjacency
from checkins.accounting.filters import FIXED_BEFOREHAND, Block, Filter, filtered_epsilon
from checkins.campaign.partial_runs import PartialRun
from checkins.campaign.spending import Spending, certify_runs
from checkins.ledger.chain import Ledger
from checkins.ledger.entry import InvalidLedger
from checkins.ledger.verification import earlier_of, spending_of, verify
from tests.ledger.ledgers import MODEL, Book, campaign

TERMS = {"adjacency": Adjacency.ADD_REMOVE, "epsilon": 3.0}
FIRST = campaign(name="first", slots=60, repeats=2, **TERMS)  # type: ignore[arg-type]
SECOND = campaign(name="second", slots=50, local_epsilon=0.5, **TERMS)  # type: ignore[arg-type]


def book_of_both(**how: bool) -> Book:
    return Book(**how).run(FIRST).close().run(FIRST).close().run(SECOND).close()


def test_the_first_entry_fixes_the_filter_and_all_others_keep_it() -> None:
    book = book_of_both()
    kept = [json.loads(line).get("filter") for line in book.lines if b'"opened"' in line]
    assert kept == [str(book.ledger.filter)] * 3
    assert Ledger().filter is None


def test_one_campaign_costs_what_it_did_without_a_filter() -> None:
    book = Book().run(FIRST).close().run(FIRST)
    found = verify(book.lines)
    fixed = certify_runs([PartialRun.whole(FIRST)])
    assert found.certificate.epsilon == fixed.epsilon
    assert found.certificate.assumptions == fixed.assumptions
    assert found.rule == FIXED_BEFOREHAND


def test_another_campaign_is_charged_by_the_filter_and_the_certificate_says_so() -> None:
    book = book_of_both()
    found, rule = verify(book.lines), book.ledger.filter
    assert rule is not None
    expected = filtered_epsilon(
        [Block((FIRST.design,), 2), Block((SECOND.design,))],
        rule,
        delta=1e-6,
        adjacency=FIRST.budget.adjacency,
        variation=PartialRun.whole(FIRST).variation,
    )
    assert found.certificate.epsilon == pytest.approx(expected, rel=1e-12)
    assert found.certificate.epsilon > certify_runs(earlier_of(book.ledger)).epsilon
    assert found.certificate.method == rule.method
    assert found.rule == f"chosen after earlier releases: filter {rule}"
    said = " ".join(found.certificate.assumptions)
    assert f"within a filter ({rule}) fixed before the first release" in said
    assert "the guarantee is the population's budget, epsilon = 3" in said
    assert FIXED_BEFOREHAND not in said
    assert found.notes == ()


def test_a_certificate_that_states_the_epsilon_of_parameters_fixed_beforehand_is_refused() -> None:
    """What was certified before: too little for campaigns that are chosen after releases."""
    book = Book().run(FIRST).close().run(FIRST).close().run(SECOND)
    fixed = certify_runs([*earlier_of(book.ledger), PartialRun.whole(SECOND)]).epsilon
    book.close(epsilon=fixed)
    with pytest.raises(InvalidLedger, match=r"states epsilon = .*, but the recomputed epsilon is"):
        verify(book.lines)


@pytest.mark.slow
def test_repeats_that_were_left_when_another_campaign_came_are_charged() -> None:
    """Whoever opened the other one could have gone on with the first instead."""
    once = Book().run(FIRST).close().run(SECOND).close()
    assert (
        verify(once.lines).certificate.epsilon == verify(book_of_both().lines).certificate.epsilon
    )
    alone = replace(FIRST, repeats=1)
    cheaper = Book().run(alone).close().run(SECOND).close()
    assert verify(cheaper.lines).certificate.epsilon < verify(once.lines).certificate.epsilon


@pytest.mark.slow
def test_repeats_that_the_budget_would_not_have_allowed_are_not_charged() -> None:
    long = replace(FIRST, repeats=6, budget=replace(FIRST.budget, epsilon=0.5))
    rule = Filter()
    spending = Spending(SECOND, (PartialRun(long, 60),), rule)
    whole, rest = divmod(Spending(long).affordable_slots, 60)
    could = [PartialRun(long, 60, times=whole), *([PartialRun(long, rest)] if rest else [])]
    full = Spending(SECOND, tuple(could), rule)
    assert spending.epsilon_after(50) == full.epsilon_after(50)
    assert 1 < whole < 6


def test_repeats_that_were_left_when_a_campaign_was_resumed_are_charged() -> None:
    """Whoever resumed it could have gone on, whatever was charged for its first block."""
    often, rule = replace(FIRST, repeats=4), Filter()
    third = replace(SECOND, name="third")
    before = (PartialRun(often, 60), PartialRun(SECOND, 50))
    once = Spending(third, (*before, PartialRun(often, 60)), rule)
    to_the_end = Spending(third, (*before, PartialRun(often, 60, times=3)), rule)
    assert once.epsilon_after(50) == to_the_end.epsilon_after(50)
    fewer = Spending(
        third, (*before, PartialRun(replace(often, name="fourth", repeats=1), 60)), rule
    )
    assert fewer.epsilon_after(50) < once.epsilon_after(50)


@pytest.mark.slow
def test_a_lower_end_is_about_what_was_released() -> None:
    """What could have been run is charged; no client gave it away."""
    often = replace(FIRST, repeats=20)
    book = Book().run(often).close().run(SECOND).close()
    released = certify_runs([PartialRun(often, 60), PartialRun(SECOND, 50)]).epsilon
    found = verify(book.lines).certificate
    assert found.epsilon > 2 * released
    assert found.epsilon_lower <= released
    stopped = Book().run(often, 3).close()
    found = verify(stopped.lines).certificate
    assert found.epsilon_lower <= certify_runs([PartialRun(often, 3)]).epsilon < found.epsilon
    stated = json.loads(stopped.lines[-1])["certificate"]
    assert stated["epsilon_lower"] == found.epsilon_lower
    assert verify(book_of_both().lines).certificate.epsilon_lower > 0.0


def test_a_budget_that_was_raised_is_not_called_the_promise() -> None:
    more = replace(SECOND, budget=replace(SECOND.budget, epsilon=3.25))
    book = Book().run(FIRST).close().run(FIRST).close().run(more).close()
    said = " ".join(verify(book.lines).certificate.assumptions)
    assert "the guarantee is the population's budget" not in said
    assert "raised from epsilon = 3.0 to 3.25 after releases" in said


def test_a_budget_that_was_lowered_after_releases_promises_no_more_than_the_first() -> None:
    """Had the releases been others, as much as the first budget could have been spent."""
    less = replace(SECOND, budget=replace(SECOND.budget, epsilon=2.5))
    book = Book().run(FIRST).close().run(FIRST).close().run(less).close()
    said = " ".join(verify(book.lines).certificate.assumptions)
    assert "the guarantee is the population's budget, epsilon = 3.0." in said


def test_the_budget_is_what_stops_campaigns_that_are_opened_later() -> None:
    tight = replace(SECOND, budget=replace(SECOND.budget, epsilon=0.4))
    book = Book().run(FIRST).close().run(FIRST).close()
    stopped = False
    for number in range(6):
        spending = spending_of(book.ledger, replace(tight, name=f"more {number}"))
        slots = spending.affordable_slots_in_run()
        if slots == 0:
            break
        stopped = slots < 50
        book.run(spending.campaign, slots).close()
        if stopped:
            assert spending.epsilon_after(slots + 1) > 0.4
    assert stopped
    assert verify(book.lines).within_budget
    book.run(replace(tight, name="too much"), 1)
    with pytest.raises(InvalidLedger, match="allows 0 of 50 slots"):
        verify(book.lines)


def test_a_filter_cannot_be_chosen_after_a_release() -> None:
    book = Book().run(FIRST).close().run(FIRST).close()
    other = next(one for one in (Filter(), Filter(7)) if one != book.ledger.filter)
    opening = book.ledger.opening(SECOND, model=MODEL)
    for changed in (other, None):
        with pytest.raises(InvalidLedger, match="cannot be chosen after one"):
            book.ledger.append(replace(opening, filter=changed))


@pytest.mark.slow
def test_a_ledger_from_before_filters_verifies_at_its_epsilon_with_a_note() -> None:
    book = book_of_both(filtered=False)
    assert not any(b'"filter":' in line for line in book.lines)
    found = verify(book.lines)
    assert found.certificate.epsilon == certify_runs(earlier_of(book.ledger)).epsilon
    assert found.rule == FIXED_BEFOREHAND
    assert any(line.endswith(FIXED_BEFOREHAND) for line in found.certificate.assumptions)
    (note,) = found.notes
    assert "names no filter" in note
    assert "the true epsilon may be larger" in note


@pytest.mark.slow
def test_a_ledger_from_before_filters_goes_on_with_the_gaussian_one() -> None:
    """Any other could have been chosen by what was released."""
    book = book_of_both(filtered=False)
    book.filtered = True
    third = replace(SECOND, name="third")
    book.run(third).close()
    found = verify(book.lines)
    assert book.ledger.filter == Filter()
    assert found.rule == "chosen after earlier releases: filter gaussian"
    assert (
        found.certificate.epsilon
        == certify_runs(earlier_of(book.ledger), privacy_filter=Filter()).epsilon
    )
    before = book_of_both(filtered=False)
    opening = replace(before.ledger.opening(third, model=MODEL), filter=Filter(8))
    with pytest.raises(InvalidLedger, match="filter is renyi-8"):
        before.add(opening)


@pytest.mark.parametrize("text", ["renyi-1", "none", 3, None])
def test_a_filter_that_nobody_knows_is_refused(text: object) -> None:
    line = json.loads(Book().open(SECOND).lines[0])
    line["filter"] = text
    with pytest.raises(InvalidLedger, match="must be gaussian, or renyi-"):
        Ledger().read(json.dumps(line, sort_keys=True, separators=(",", ":")).encode() + b"\n")
