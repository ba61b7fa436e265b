"""A ledger is recomputed from its bytes to its certificate; what was tampered with is refused."""

from __future__ import annotations

import io
import json
import math
import re
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.accounting import Adjacency, Population, Protocol, certify
from checkins.accounting.exact.gaussian import report_epsilon
from checkins.campaign import Campaign
from checkins.campaign.spending import Spending
from checkins.ledger.chain import Ledger
from checkins.ledger.entry import Closed, InvalidLedger, Reason, SlotClosed, hash_model
from checkins.ledger.verification import Verification, certificate, verify
from checkins.protocol import server as servers
from checkins.protocol.model_update import ModelUpdate
from checkins.protocol.report import Report, ReportChecks
from checkins.protocol.rules import Rules
from checkins.protocol.server import ClosingRecorded, RecordClosing, Server, SlotBegan
from checkins.protocol.slot import ChoiceRecorded, Choose, Expired
from tests.ledger.ledgers import MODEL, Book, any_certificate, at_least, campaign, slots

FIXED = campaign()
SLIDING = campaign(Protocol.SLIDING, slots=5, window=3)
AVERAGED = campaign(Protocol.AVERAGED, epsilon=9.0)
WHOLE = Book().run(FIXED).close().lines


def content(lines: list[bytes]) -> list[bytes]:
    """As a file would be read."""
    return io.BytesIO(b"".join(lines)).readlines()


def refusal(lines: list[bytes], **options: object) -> str:
    with pytest.raises(InvalidLedger) as refused:
        verify(lines, **options)  # type: ignore[arg-type]
    return str(refused.value)


@pytest.mark.parametrize(
    "run",
    [
        FIXED,
        SLIDING,
        AVERAGED,
        campaign(minibatch=3, slots=8),
        campaign(Protocol.SLIDING, slots=8, window=2, minibatch=3),
        campaign(diameter=2.0),
        campaign(rate=1e300, minibatch=2),
        at_least(2),
    ],
    ids=[
        "fixed",
        "sliding",
        "averaged",
        "minibatch",
        "both",
        "projected",
        "diverging",
        "at least two",
    ],
)
def test_a_ledger_that_was_kept_is_accepted(run: Campaign) -> None:
    book = Book().run(run).close()
    found = verify(book.lines, head=book.ledger.head, require_closed=True)
    assert found.ledger == book.ledger
    assert found.notes == ()
    assert found.within_budget
    assert not found.simulated


def driven(run: Campaign) -> Iterator[SlotClosed]:
    """What the server machine records when nobody checks in."""
    form = ReportChecks(dimension=3, most_units=10**6, simulated=True)
    update = ModelUpdate.of(run)
    rules = Rules.of(run.design, affordable=run.design.slots, report_checks=form, update=update)
    server, dice = Server.start(rules, MODEL), np.random.default_rng(1)
    for slot in range(1, run.design.slots + 1):
        for event in (SlotBegan(slot), Choose(slot, ()), ChoiceRecorded(slot)):
            server, _ = servers.step(server, event)
        assert server.slot is not None
        drawn = (
            dice.integers(-99, 99, 3).astype(np.int32) for _ in range(server.slot.missing_dummies)
        )
        dummies = tuple(Report(values, simulated=True) for values in drawn)
        server, effects = servers.step(server, Expired(slot, dummies))
        for effect in effects:
            if isinstance(effect, RecordClosing):
                yield SlotClosed.of(
                    slot=effect.slot,
                    total=effect.total,
                    model=effect.model,
                    contributors=effect.contributors,
                )
        server, _ = servers.step(server, ClosingRecorded(slot))


@pytest.mark.parametrize(
    "run", [FIXED, SLIDING, AVERAGED, campaign(Protocol.SLIDING, slots=9, window=2, minibatch=3)]
)
def test_what_the_server_records_is_what_verify_replays(run: Campaign) -> None:
    book = Book().open(run).add(*driven(run))
    assert verify(book.lines).ledger.entries == run.design.slots + 1


def simulated(kind: Protocol, name: str, **options: object) -> Campaign:
    """Without a grid nothing is charged to delta: epsilon is that of the plain designs."""
    return campaign(kind, name=name, grid=None, epsilon=50.0, **options)  # type: ignore[arg-type]


def test_the_certificate_is_that_of_the_slots_that_were_released() -> None:
    run = simulated(Protocol.FIXED, "a", slots=40, participation=0.5)
    for count in (1, 17, 40):
        found = verify(Book().run(run, count, simulated=True, floats=True).lines)
        certified = certify(
            replace(run.design, slots=count, participation=0.5 * count / 40),
            delta=1e-6,
            adjacency=Adjacency.REPLACE_ONE,
            compare=False,
        )
        assert found.certificate.epsilon == certified.epsilon
        assert found.simulated


def test_averaged_gaussian_reports_are_certified_for_the_least_of_them() -> None:
    """The epsilon is that of the noise of ``least_reports`` reports, whoever contributed."""
    for contributors in ([0, 2, 3, 1], [5, 6, 7, 8]):
        found = verify(Book().run(at_least(3), contributors=contributors).close().lines)
        assert found.certificate.epsilon == pytest.approx(
            report_epsilon(2.0 * math.sqrt(3.0), 1e-6), rel=1e-4
        )
        assert any("fewer than 3 reports" in line for line in found.certificate.assumptions)


@pytest.mark.slow
def test_without_a_filter_the_certificate_is_that_of_all_campaigns_composed() -> None:
    """A ledger from before there were filters."""
    first = simulated(Protocol.FIXED, "a", slots=30)
    second = simulated(Protocol.SLIDING, "b", slots=25, window=20, local_epsilon=0.5)
    third = simulated(Protocol.AVERAGED, "c", slots=3)
    book = Book(filtered=False).run(first, simulated=True, floats=True).close()
    book.run(second, simulated=True, floats=True).close()
    book.run(third, 2, simulated=True, floats=True, contributors=[300, 211])
    counted = replace(third.design, population=Population(511, 511))
    certified = certify(
        [first.design, second.design, counted],
        delta=1e-6,
        adjacency=Adjacency.REPLACE_ONE,
        compare=False,
    )
    assert verify(book.lines).certificate.epsilon == certified.epsilon


def test_repeats_compose_and_each_states_what_was_spent_until_then() -> None:
    run = simulated(Protocol.FIXED, "a", slots=30, repeats=3)
    book = Book()
    for _ in range(3):
        book.run(run, simulated=True, floats=True).close()
    stated = [
        json.loads(line)["certificate"]["epsilon"]
        for line in book.lines
        if json.loads(line)["kind"] == "closed"
    ]
    terms = {"delta": 1e-6, "adjacency": Adjacency.REPLACE_ONE, "compare": False}
    expected = [certify(run.design, campaigns=count, **terms).epsilon for count in (1, 2, 3)]
    assert stated == expected
    assert verify(book.lines).certificate.epsilon == expected[-1]


def test_the_grid_of_a_run_is_charged_to_delta() -> None:
    found = verify(WHOLE)
    assert any("total variation" in line for line in found.certificate.assumptions)
    assert found.certificate.epsilon == Spending(FIXED).after(4).epsilon


def test_before_its_first_slot_a_campaign_has_spent_nothing() -> None:
    found = verify(Book().open(FIXED).lines)
    assert found.certificate.epsilon == 0.0
    assert found.within_budget
    assert verify(Book().run(AVERAGED, contributors=[0, 0, 0, 0]).lines).certificate.epsilon == 0.0


@given(data=st.data())
def test_any_change_of_one_byte_is_refused_with_its_line(data: st.DataObject) -> None:
    whole = bytearray(b"".join(WHOLE))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] = data.draw(st.integers(0, 255).filter(lambda byte: byte != whole[at]))
    found = refusal(io.BytesIO(bytes(whole)).readlines())
    line = b"".join(WHOLE).count(b"\n", 0, at) + 1
    assert found.startswith((f"ledger.jsonl:{line}: ", f"ledger.jsonl:{line + 1}: ")), found


@given(data=st.data())
def test_any_line_removed_doubled_or_swapped_is_refused(data: st.DataObject) -> None:
    i, j = data.draw(st.permutations(range(len(WHOLE))))[:2]
    low, high = min(i, j), max(i, j)
    swapped = [*WHOLE]
    swapped[low], swapped[high] = swapped[high], swapped[low]
    removed = [*WHOLE[:low], *WHOLE[low + 1 :]]
    doubled = [*WHOLE[: high + 1], *WHOLE[high:]]
    moved = [*removed[:high], WHOLE[low], *removed[high:]]
    for lines, line in ((swapped, low), (removed, low), (doubled, high + 1), (moved, low)):
        assert refusal(lines).startswith(f"ledger.jsonl:{line + 1}: ")


def test_a_cut_at_the_end_of_a_line_is_an_open_ledger_and_refused_with_a_head() -> None:
    head = json.loads(WHOLE[-1])["hash"]
    for count in range(1, len(WHOLE)):
        found = verify(WHOLE[:count])
        assert found.as_dict()["campaigns"][0] == {  # type: ignore[index]
            "name": "small",
            "run": 1,
            "seal": FIXED.seal,
            "slots_closed": count - 1,
            "slots": 4,
            "status": "open",
        }
        assert "lines were cut off or added" in refusal(WHOLE[:count], head=head)
        still_open = f"is still open ({count - 1} of 4 slots closed)"
        assert still_open in refusal(WHOLE[:count], require_closed=True)
    assert verify(WHOLE, head=head, require_closed=True).ledger.head == head


def test_a_torn_last_line_is_never_accepted() -> None:
    for kept in (1, len(WHOLE[-1]) // 2, len(WHOLE[-1]) - 1):
        found = refusal([*WHOLE[:-1], WHOLE[-1][:kept]])
        assert found.startswith(
            "ledger.jsonl:6: the last line is incomplete (crash?); the 5 lines before"
        )


def test_an_empty_ledger_is_refused() -> None:
    assert refusal([]) == "ledger.jsonl: is empty: no campaign was ever opened"
    assert refusal([b"\n"]).startswith("ledger.jsonl:1: is not JSON")
    assert refusal([], path="x/y.jsonl").startswith("x/y.jsonl: is empty")


def test_a_model_that_the_totals_do_not_give_is_refused() -> None:
    entries = list(slots(FIXED, 4))
    for wrong in range(4):
        forged = [*entries]
        forged[wrong] = replace(forged[wrong], model_hash=hash_model(MODEL))
        found = refusal(Book().open(FIXED).add(*forged).lines)
        assert found == (
            f"ledger.jsonl:{wrong + 2}: the model released after slot {wrong + 1}"
            " does not follow from the totals"
        )


def test_a_total_that_the_model_does_not_show_is_refused_even_with_every_hash_mended() -> None:
    first, *rest = slots(FIXED, 4)
    numbers = first.numbers()
    assert numbers is not None
    changed = SlotClosed.of(slot=1, total=numbers + 1, model=MODEL)
    book = Book().open(FIXED).add(replace(changed, model_hash=first.model_hash), *rest)
    assert "ledger.jsonl:2: the model released after slot 1" in refusal(book.lines)


def test_the_model_does_not_move_in_a_warm_up() -> None:
    entries = list(slots(SLIDING, 2))
    assert [entry.model_hash for entry in entries] == [hash_model(MODEL)] * 2
    moved = replace(entries[1], model_hash=hash_model(MODEL + 1.0))
    assert "ledger.jsonl:3: the model" in refusal(Book().open(SLIDING).add(entries[0], moved).lines)


def stating(epsilon: float, **versions: str) -> Verification:
    book = Book().run(FIXED)
    stated = any_certificate(FIXED, epsilon=epsilon)
    if versions:
        stated["versions"] = versions
    return verify(book.add(Closed(Reason.COMPLETED, stated)).lines)


def test_a_stated_epsilon_below_the_recomputed_one_is_refused() -> None:
    owed = verify(WHOLE).certificate.epsilon
    for factor in (0.0, 0.5, 1.0 - 2e-9):
        with pytest.raises(InvalidLedger, match=r"^ledger\.jsonl:6: states epsilon = .*, but the"):
            stating(owed * factor)
    assert stating(owed * (1.0 - 1e-10)).notes == ()


def test_a_stated_epsilon_above_the_recomputed_one_is_accepted_with_a_note() -> None:
    found = stating(2.0, checkins="0.0.9")
    assert found.certificate.epsilon < 1.0
    assert found.notes == (
        "line 6 states epsilon = 2.0 by checkins 0.0.9, which is a valid upper bound, but the"
        f" recomputed epsilon is smaller: {found.certificate.epsilon!r}",
    )
    assert "states epsilon = 2.0, which is a valid upper bound" in stating(2.0).notes[0]


TIGHT = campaign(slots=40, epsilon=0.9, local_epsilon=2.0)


@pytest.mark.slow
def test_a_budget_that_allows_some_slots_stops_there() -> None:
    afforded = Spending(TIGHT).affordable_slots
    assert 0 < afforded < 40
    book = Book().run(TIGHT, afforded).close()
    found = verify(book.lines)
    assert found.within_budget
    assert found.status(found.ledger.runs[0]) == "stopped"
    assert found.certificate.epsilon == Spending(TIGHT).after(afforded).epsilon


@pytest.mark.parametrize("more", [1, 2])
@pytest.mark.parametrize("close", [True, False])
def test_a_slot_that_the_budget_does_not_allow_is_refused_with_its_line(
    more: int, close: bool
) -> None:
    afforded = Spending(TIGHT).affordable_slots
    book = Book().run(TIGHT, afforded + more)
    if close:
        book.close()
    assert refusal(book.lines) == (
        f"ledger.jsonl:{afforded + 2}: slot {afforded + 1} was released although the budget,"
        f" epsilon = 0.9, allows {afforded} of 40 slots"
    )


def test_a_campaign_that_was_stopped_early_is_charged_for_all_slots_that_it_could_have_run() -> (
    None
):
    """Whoever stops it may have seen the releases: k is not fixed beforehand."""
    afforded = Spending(TIGHT).affordable_slots
    book = Book().run(TIGHT, afforded - 1)
    assert verify(book.lines).certificate == replace(
        Spending(TIGHT).after(afforded - 1), seconds=pytest.approx(0.0, abs=9.0)
    )
    assert certificate(book.ledger).epsilon == Spending(TIGHT).after(afforded).epsilon
    cheaper = Spending(TIGHT).after(afforded - 1).as_dict()
    lines = Book().run(TIGHT, afforded - 1).add(Closed(Reason.STOPPED, cheaper)).lines
    assert f"ledger.jsonl:{afforded + 1}: states epsilon" in refusal(lines)
    assert verify(book.close().lines).certificate.epsilon == Spending(TIGHT).after(afforded).epsilon


def test_what_earlier_campaigns_spent_is_missing_from_the_budget() -> None:
    book = Book().run(campaign(name="a", epsilon=1.5)).close()
    book.run(campaign(name="b", epsilon=1.5))
    assert refusal(book.lines).endswith("epsilon = 1.5, allows 1 of 4 slots")


def test_a_raised_budget_is_noted() -> None:
    book = Book().run(campaign(name="a", epsilon=1.5)).close().open(campaign(name="b", epsilon=4.0))
    found = verify(book.lines)
    raised, unfinished = found.notes
    assert raised == "line 7 raises the population's budget from epsilon = 1.5 to 4.0"
    assert "fixed beforehand" in unfinished
    assert found.within_budget


def test_averaged_updates_are_certified_for_the_number_that_contributed() -> None:
    declared = campaign(Protocol.AVERAGED, epsilon=0.9, fewest=100)
    assert Spending(declared).affordable_slots == 4
    many = verify(Book().run(declared, contributors=[100, 100, 0, 100]).close().lines)
    few = verify(Book().run(declared, contributors=[1, 0, 0, 0]).close().lines)
    assert many.certificate.epsilon == Spending(declared).after(4, contributors=300).epsilon
    assert many.certificate.epsilon < few.certificate.epsilon
    assert many.within_budget
    assert not few.within_budget  # fewer came than was declared: true, and over budget


def test_where_no_epsilon_is_proved_no_slot_is_allowed() -> None:
    hopeless = campaign(local_epsilon=30.0, slots=2, delta=1e-12)
    assert refusal(Book().run(hopeless).lines).endswith("allows 0 of 2 slots")


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_slots() -> None:
    model = np.zeros(200)
    run = campaign(slots=600, local_epsilon=0.1)

    def kept(count: int) -> Iterator[bytes]:
        update = ModelUpdate.of(run)
        learner = update.start(model)
        total = np.ones(200, dtype=np.int64)
        ledger, line = Ledger().append(Ledger().opening(run, model=model))
        yield line
        for slot in range(1, count + 1):
            learner = update.apply(learner, total)
            entry = SlotClosed.of(slot=slot, total=total, model=learner.model)
            ledger, line = ledger.append(entry)
            yield line

    verify(kept(2))  # what is loaded and cached once
    peaks = []
    for count in (50, 600):
        tracemalloc.start()
        verify(kept(count))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert 600 * 2000 > 1_000_000  # the ledger itself
    assert peaks[1] < peaks[0] + 200_000


def test_the_answer_for_programs_is_plain() -> None:
    answer = json.loads(json.dumps(verify(WHOLE).as_dict(), allow_nan=False))
    assert list(answer) == [
        "valid",
        "head",
        "entries",
        "campaigns",
        "rule",
        "certificate",
        "within_budget",
        "simulated",
        "stated_assumptions",
        "notes",
    ]
    assert answer["valid"] is True
    assert re.fullmatch(r"[0-9a-f]{64}", answer["head"])
