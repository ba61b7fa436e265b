"""The chain: what a ledger may hold, in which order, and that no byte of it is free."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.accounting import Adjacency, Protocol
from checkins.campaign import RandomizerConfig, RandomizerKind
from checkins.errors import InvalidValue
from checkins.ledger.chain import Ledger
from checkins.ledger.entry import (
    COMMON_FIELDS,
    FIELDS,
    INITIAL_HASH,
    MAX_LINE_BYTES,
    Closed,
    Entry,
    InvalidLedger,
    Line,
    NumberType,
    Opened,
    Reason,
    SlotClosed,
    hash_model,
    pack_numbers,
)
from checkins.protocol.wire import MAX_NUMBERS
from tests.ledger.ledgers import MODEL, Book, any_certificate, at_least, campaign, renamed, slots

FIXED = campaign()
SLIDING = campaign(Protocol.SLIDING, slots=5, window=3)
AVERAGED = campaign(Protocol.AVERAGED)

hashes = st.binary(min_size=32, max_size=32).map(bytes.hex)
finite = st.floats(allow_nan=False, allow_infinity=False)
models = st.lists(finite, min_size=1, max_size=5).map(pack_numbers)
totals = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5)
certificates = st.fixed_dictionaries(
    {
        "epsilon": st.floats(0.0, 1e300),
        "delta": st.floats(1e-300, 0.5),
        "adjacency": st.sampled_from([str(known) for known in Adjacency]),
    },
    optional={
        "assumptions": st.lists(st.text(max_size=10), max_size=3),
        "epsilon_lower": st.none() | finite,
        "versions": st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
    },
)
entries = st.one_of(
    st.builds(
        Opened,
        st.text(max_size=20),
        hashes.map("sha256:{}".format),
        st.integers(1, 10**6),
        models,
        st.booleans(),
    ),
    st.builds(
        SlotClosed,
        st.integers(1, 10**12),
        totals.map(lambda whole: pack_numbers(whole, NumberType.INT64)),
        st.just(NumberType.INT64),
        hashes,
        st.none() | st.integers(0, 10**12),
    ),
    st.builds(SlotClosed, st.integers(1, 10**12), models, st.just(NumberType.FLOAT64), hashes),
    st.builds(SlotClosed, st.integers(1, 10**12), st.none(), st.none(), hashes),
    st.builds(Closed, st.sampled_from(Reason), certificates),
)


def read(lines: list[bytes]) -> Ledger:
    ledger = Ledger()
    for line in lines:
        ledger, _ = ledger.read(line)
    return ledger


def closed(book: Book, **changes: object) -> Book:
    """Close a campaign with any certificate: the chain does not compute epsilon."""
    run = book.ledger.running
    assert run is not None
    whole = run.slots_closed == run.campaign.design.slots
    reason = Reason.COMPLETED if whole else Reason.STOPPED
    return book.add(Closed(reason, any_certificate(run.campaign, **changes)))


def forged(line: bytes, **changes: object) -> bytes:
    """The line with other fields (``...`` removes one) and the hash that then fits."""
    found = json.loads(line)
    del found["hash"]
    found = {name: value for name, value in (found | changes).items() if value is not ...}
    body = json.dumps(found, sort_keys=True, separators=(",", ":"))
    found["hash"] = hashlib.sha256(body.encode()).hexdigest()
    return json.dumps(found, sort_keys=True, separators=(",", ":")).encode() + b"\n"


@given(entry=entries, number=st.integers(1, 10**9), previous=hashes)
def test_an_entry_is_read_as_it_was_written(entry: Entry, number: int, previous: str) -> None:
    line = Line.of(entry, number=number, previous=previous)
    assert Line.parse(line.content) == line


@given(entry=entries, number=st.integers(1, 10**9), previous=hashes)
def test_the_hash_is_that_of_the_line_without_it(entry: Entry, number: int, previous: str) -> None:
    line = Line.of(entry, number=number, previous=previous)
    found = json.loads(line.content)
    assert found.pop("hash") == line.hash
    body = json.dumps(found, sort_keys=True, separators=(",", ":")).encode("ascii")
    assert hashlib.sha256(body).hexdigest() == line.hash
    assert found["previous"] == previous


def test_each_line_holds_the_hash_of_the_one_before_and_the_first_holds_zeros() -> None:
    lines = [json.loads(line) for line in closed(Book().run(FIXED)).lines]
    assert lines[0]["previous"] == INITIAL_HASH == "0" * 64
    assert [line["previous"] for line in lines[1:]] == [line["hash"] for line in lines[:-1]]
    assert [line["entry"] for line in lines] == list(range(1, len(lines) + 1))


def test_the_chain_that_is_read_is_the_chain_that_was_written() -> None:
    book = closed(Book().run(FIXED))
    book = closed(book.run(renamed(SLIDING, "second")))
    assert read(book.lines) == book.ledger
    assert book.ledger.head == json.loads(book.lines[-1])["hash"]


def test_nothing_in_the_schema_can_name_a_client_or_a_check_in() -> None:
    assert {"kind", "entry", "previous", "hash"} == COMMON_FIELDS
    assert {
        "opened": {
            *("schema", "campaign", "seal", "run", "model", "model_hash", "simulated", "filter")
        },
        "slot-closed": {"slot", "total", "dtype", "model_hash", "contributors"},
        "closed": {"reason", "certificate"},
    } == FIELDS
    written = {name for kind in FIELDS.values() for name in kind}
    kept = {field.name for kind in (Opened, SlotClosed, Closed) for field in fields(kind)}
    assert kept <= written


@pytest.mark.parametrize("name", ["client", "token", "receipt", "time", "check_ins", "Slot", ""])
def test_a_field_that_is_not_known_is_refused(name: str) -> None:
    for line in closed(Book().run(FIXED)).lines:
        with pytest.raises(InvalidLedger, match="is not a field"):
            Line.parse(forged(line, **{name: 1}))


def test_a_certificate_with_a_field_that_is_not_known_is_refused() -> None:
    with pytest.raises(InvalidValue, match="clients"):
        Closed(Reason.COMPLETED, any_certificate(FIXED, clients=["a"]))


@pytest.mark.parametrize("kind", [FIXED, SLIDING])
def test_no_count_is_kept_for_fixed_or_sliding(kind) -> None:
    book = Book().open(kind)
    total = np.ones(3, dtype=np.int64) if kind is FIXED else None
    counted = SlotClosed.of(slot=1, total=total, model=MODEL, contributors=1)
    with pytest.raises(InvalidLedger, match="has no number of contributors"):
        book.add(counted)
    assert all(b"contributors" not in line for line in Book().run(kind).lines)


def test_averaged_updates_need_their_count() -> None:
    total = np.ones(3, dtype=np.int64)
    with pytest.raises(InvalidLedger, match="need the number of contributors"):
        Book().open(AVERAGED).add(SlotClosed.of(slot=1, total=total, model=MODEL))
    run = Book().run(AVERAGED, contributors=[0, 3, 1, 5]).ledger.running
    assert run is not None
    assert run.contributors == 9


def test_a_total_stands_where_something_was_added_and_nowhere_else() -> None:
    total = np.ones(3, dtype=np.int64)
    empty = SlotClosed.of(slot=1, total=total, model=MODEL, contributors=0)
    with pytest.raises(InvalidLedger, match="no client contributed"):
        Book().open(AVERAGED).add(empty)
    with pytest.raises(InvalidLedger, match="the warm-up lasts until slot 2"):
        Book().open(SLIDING).add(SlotClosed.of(slot=1, total=total, model=MODEL))
    with pytest.raises(InvalidLedger, match="the total is missing"):
        Book().open(FIXED).add(SlotClosed.of(slot=1, total=None, model=MODEL))
    assert [json.loads(line)["total"] is None for line in Book().run(SLIDING).lines[1:]] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_invariant_15_a_ledger_refuses_the_total_of_a_slot_with_too_few_reports() -> None:
    book = Book().run(at_least(3), contributors=[0, 2, 3, 7])
    assert [json.loads(line)["total"] is None for line in book.lines[1:]] == [
        True,
        True,
        False,
        False,
    ]
    total = np.ones(3, dtype=np.int64)
    few = SlotClosed.of(slot=1, total=total, model=MODEL, contributors=2)
    with pytest.raises(InvalidLedger, match="2 clients contributed, fewer than least_reports = 3"):
        Book().open(at_least(3)).add(few)
    enough = SlotClosed.of(slot=1, total=None, model=MODEL, contributors=3)
    with pytest.raises(InvalidLedger, match="the total is missing"):
        Book().open(at_least(3)).add(enough)


def test_a_total_is_as_long_as_the_model() -> None:
    entry = SlotClosed.of(slot=1, total=np.ones(4, dtype=np.int64), model=MODEL)
    with pytest.raises(InvalidLedger, match="the total has 4 numbers, but the model has 3"):
        Book().open(FIXED).add(entry)


def test_floats_are_for_simulations_only() -> None:
    plain = campaign(grid=None)
    assert Book().run(plain, simulated=True, floats=True).ledger.entries == 5
    entry = SlotClosed.of(slot=1, total=np.ones(3), model=MODEL)
    with pytest.raises(InvalidLedger, match="dtype must be int64"):
        Book().open(FIXED).add(entry)
    with pytest.raises(InvalidLedger, match=r"without \[randomizer\] grid can be certified"):
        Book().open(plain)


def test_a_randomizer_without_a_device_sampler_is_simulated_only() -> None:
    privunit = replace(FIXED, randomizer=RandomizerConfig(RandomizerKind.PRIVUNIT, clip=1.0))
    assert Book().open(privunit, simulated=True).ledger.entries == 1
    with pytest.raises(InvalidLedger, match="privunit has no exact device sampler"):
        Book().open(privunit)


def test_a_ledger_holds_a_model_of_the_dimension_that_its_campaign_states() -> None:
    config = RandomizerConfig(RandomizerKind.PRIVUNIT, clip=1.0, dimension=len(MODEL))
    right = replace(FIXED, randomizer=config)
    assert Book().open(right, simulated=True).ledger.entries == 1
    wrong = replace(FIXED, randomizer=replace(config, dimension=len(MODEL) + 1))
    with pytest.raises(InvalidLedger, match=f"dimension = {len(MODEL) + 1}, but the model has"):
        Book().open(wrong, simulated=True)


@pytest.mark.parametrize("first", [2, 4, 5])
def test_slots_come_in_their_order_without_gaps(first: int) -> None:
    book = Book().open(FIXED)
    with pytest.raises(InvalidLedger, match=f"is slot {first}, but slot 1 of 4 is next"):
        book.add(SlotClosed.of(slot=first, total=np.ones(3, dtype=np.int64), model=MODEL))


def test_no_slot_follows_the_last() -> None:
    book = Book().run(FIXED)
    with pytest.raises(InvalidLedger, match="is slot 5, but all 4 slots are over"):
        book.add(SlotClosed.of(slot=5, total=np.ones(3, dtype=np.int64), model=MODEL))


def test_a_campaign_is_opened_before_its_slots_and_closed_before_the_next() -> None:
    with pytest.raises(InvalidLedger, match="must be opened first"):
        Book().add(*slots(FIXED, 1))
    with pytest.raises(InvalidLedger, match="must be opened first"):
        Book().add(Closed(Reason.COMPLETED, any_certificate(FIXED)))
    with pytest.raises(InvalidLedger, match="must be closed first"):
        Book().run(FIXED).open(renamed(FIXED, "second"))


def test_a_campaign_is_completed_after_its_last_slot_and_stopped_before() -> None:
    for count, wrong in ((4, Reason.STOPPED), (3, Reason.COMPLETED), (0, Reason.COMPLETED)):
        with pytest.raises(InvalidLedger, match=f"{count} of 4 slots are over"):
            Book().run(FIXED, count).add(Closed(wrong, any_certificate(FIXED)))


@pytest.mark.parametrize(
    ("second", "refusal"),
    [
        (campaign(name="b", population_id="ward"), "population_id is 'ward', but .* 'clinic'"),
        (campaign(name="b", population_id=None), "population_id is None"),
        (campaign(name="b", delta=1e-7), "delta is 1e-07, but the ledger is for 1e-06"),
        (campaign(name="b", adjacency=Adjacency.ADD_REMOVE), "adjacency is add-remove"),
        (FIXED, "already ran 1 times"),
    ],
)
def test_campaigns_share_a_ledger_only_where_they_compose(second, refusal: str) -> None:
    with pytest.raises(InvalidLedger, match=refusal):
        closed(Book().run(FIXED)).open(second)


def test_without_a_population_id_a_ledger_has_one_campaign() -> None:
    alone = campaign(population_id=None, repeats=2)
    book = closed(closed(Book().run(alone)).run(alone))
    with pytest.raises(InvalidLedger, match="campaigns without a population_id"):
        book.open(campaign(population_id=None, name="b"))


def test_real_and_simulated_campaigns_do_not_mix() -> None:
    with pytest.raises(InvalidLedger, match="cannot share a ledger"):
        closed(Book().run(FIXED)).open(renamed(FIXED, "b"), simulated=True)


def test_a_campaign_runs_as_often_as_it_says() -> None:
    twice = campaign(repeats=2)
    book = closed(closed(Book().run(twice)).run(twice))
    assert [run.number for run in book.ledger.closed] == [1, 2]
    with pytest.raises(InvalidLedger, match="already ran 2 times"):
        book.open(twice)
    with pytest.raises(InvalidLedger, match="is run 2 of this campaign, but 1 is next"):
        Book().add(replace(Ledger().opening(twice, model=MODEL), run=2))


def test_the_seal_is_that_of_the_campaign() -> None:
    other = replace(Ledger().opening(FIXED, model=MODEL), seal=SLIDING.seal)
    with pytest.raises(InvalidLedger, match="the seal does not match"):
        Book().add(other)


@pytest.mark.parametrize("text", ["", "{}", "[]", "NaN", '{"schema": 1}', "[" * 10**5, "\ud800"])
def test_a_campaign_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(InvalidLedger, match="the campaign cannot be read"):
        Book().add(replace(Ledger().opening(FIXED, model=MODEL), campaign=text))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | st.text(max_size=5),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=3), below),
    max_leaves=4,
)


@given(data=st.data(), value=values)
def test_a_campaign_with_any_value_in_any_place_is_read_or_refused(
    data: st.DataObject, value: object
) -> None:
    told = json.loads(FIXED.canonical())
    place = told
    key = data.draw(st.sampled_from(sorted(told)))
    while isinstance(place[key], dict) and data.draw(st.integers(0, 3)):
        place = place[key]
        key = data.draw(st.sampled_from(sorted(place)))
    place[key] = value
    text = json.dumps(told, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    seal = f"sha256:{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()}"
    forged = Line.of(Opened(text, seal, 1, pack_numbers(MODEL)), number=1, previous=INITIAL_HASH)
    with contextlib.suppress(InvalidLedger):
        Ledger().read(forged.content)


def test_a_campaign_in_another_spelling_is_refused() -> None:
    opening = Ledger().opening(FIXED, model=MODEL)
    spelled = json.dumps(json.loads(opening.campaign))
    with pytest.raises(InvalidLedger, match="canonical"):
        Book().add(replace(opening, campaign=spelled))


def test_a_stated_certificate_is_for_the_terms_of_the_campaign() -> None:
    with pytest.raises(InvalidLedger, match=r"the certificate is for delta = 0\.001"):
        closed(Book().run(FIXED), delta=1e-3)
    with pytest.raises(InvalidLedger, match="the certificate is for adjacency = add-remove"):
        closed(Book().run(FIXED), adjacency="add-remove")


OPENED, SLOT, *_, CLOSED = closed(Book().run(FIXED)).lines


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"\n", "is not JSON: Expecting value at column 1"),
        (b"null\n", "must be a JSON object"),
        (b'{"a":1}\n', "kind must be one of opened, slot-closed, closed"),
        (b'{"a":1,"a":1}\n', "contains the same key twice"),
        (b'{"a":NaN}\n', "contains NaN, which is not a finite number"),
        (b'{"a":-Infinity}\n', "contains -Infinity, which is not a finite number"),
        (b"[" * 100_000 + b"\n", "is nested too deeply"),
        (b'{"a":' + b"9" * 5000 + b"}\n", "contains a number that is too large"),
        (b"\x00\xff\xfe\n", "is not ASCII text at byte 2"),
        (SLOT[:-2] + b"\n", "is not JSON: Expecting ',' delimiter at column"),
        (b" " + SLOT, "is not canonical JSON"),
        (SLOT.replace(b":", b": ", 1), "is not canonical JSON"),
        (SLOT[:-1] + b"\r\n", "is not canonical JSON"),
        (SLOT[:-1], "is not canonical JSON"),
        (SLOT.replace(b"slot-closed", b"slot\\u002dclosed"), "is not canonical JSON"),
        (forged(SLOT, total="AA\nA="), "total must be base64"),
        (forged(SLOT, total=7), "total must be base64"),
        (forged(SLOT, total="AAAA"), "total = '...': must be 1 to 16,777,216 numbers"),
        (forged(SLOT, total=""), "total = '...': must be 1 to 16,777,216 numbers"),
        (
            forged(SLOT, total=None),
            "dtype = <NumberType.INT64: 'int64'>: must be null if and only if",
        ),
        (forged(SLOT, dtype="int32"), "dtype must be int64 or float64"),
        (forged(SLOT, dtype=[]), "dtype must be int64 or float64"),
        (forged(SLOT, slot=0), "slot = 0: must be an integer"),
        (forged(SLOT, slot=True), "slot = True: must be an integer"),
        (forged(SLOT, slot=1.0), "slot = 1.0: must be an integer"),
        (forged(SLOT, slot=10**300), "slot = 1000000000"),
        (forged(SLOT, model_hash="ab"), "model_hash = 'ab': must be 64 hexadecimal digits"),
        (forged(SLOT, contributors=None), "contributors must be an integer, or absent"),
        (forged(SLOT, contributors=-1), "contributors = -1: must be an integer"),
        (forged(SLOT, contributors=False), "contributors = False: must be an integer"),
        (forged(SLOT, slot=...), "slot is missing"),
        (forged(SLOT, kind=["opened"]), "kind must be one of"),
        (forged(SLOT, entry=2.0), "entry must be an integer"),
        (forged(SLOT, entry=True), "entry must be an integer"),
        (forged(SLOT, previous=None), "previous must be 64 hexadecimal digits"),
        (forged(SLOT, previous="0" * 63 + "g"), "previous must be 64 hexadecimal digits"),
        (forged(OPENED, schema=2), "schema must be 1"),
        (forged(OPENED, schema=True), "schema must be 1"),
        (forged(OPENED, run=0), "run = 0: must be an integer from 1 to 1,000,000"),
        (forged(OPENED, simulated=0), "simulated = 0: must be a bool"),
        (forged(OPENED, seal="md5:0"), "seal = 'md5:0': must be sha256:"),
        (forged(OPENED, campaign={}), "campaign = {}: must be a str"),
        (forged(OPENED, model_hash="0" * 64), "model_hash is not the hash of the model"),
        (forged(CLOSED, reason="tired"), "reason must be completed or stopped"),
        (forged(CLOSED, certificate=[]), "certificate = 'list': must be an object"),
        (forged(CLOSED, certificate={}), "epsilon: must be a finite number"),
        (forged(CLOSED, certificate=any_certificate(FIXED, epsilon=-1)), "epsilon = -1"),
        (forged(CLOSED, certificate=any_certificate(FIXED, delta=1)), "delta = 1: must lie"),
        (forged(CLOSED, certificate=any_certificate(FIXED, adjacency=[])), "adjacency = []"),
        (CLOSED.replace(b"1e-06", b"1e999"), "delta = inf: must lie"),
        (CLOSED.replace(b"1e-06", b"0.000001"), "is not canonical JSON"),
    ],
)
def test_a_line_that_was_not_written_so_is_refused(line: bytes, problem: str) -> None:
    with pytest.raises(InvalidLedger) as refusal:
        Line.parse(line)
    assert str(refusal.value).startswith(problem)
    assert len(str(refusal.value)) < 200


def test_a_giant_line_is_refused_unread() -> None:
    with pytest.raises(InvalidLedger, match="is longer than 201,326,592 bytes"):
        Line.parse(bytes(MAX_LINE_BYTES + 1))


def test_the_longest_model_fits_a_line() -> None:
    assert 4 * -(-8 * MAX_NUMBERS // 3) + 2_000_000 * 6 < MAX_LINE_BYTES


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_model_is_finite(number: float) -> None:
    with pytest.raises(InvalidValue, match="must be finite numbers"):
        Opened("", FIXED.seal, 1, pack_numbers([1.0, number]))


def test_a_model_has_the_same_bytes_on_every_machine() -> None:
    assert (
        pack_numbers(np.array([1.0], dtype=">f8"))
        == pack_numbers([1.0])
        == bytes.fromhex("000000000000f03f")
    )
    assert hash_model([[1.0, 2.0]]) == hashlib.sha256(pack_numbers([1.0, 2.0])).hexdigest()


def test_a_certificate_does_not_change_with_the_callers_dictionary() -> None:
    stated = any_certificate(FIXED, assumptions=["one"])
    entry = Closed(Reason.COMPLETED, stated)
    stated["assumptions"].append("two")  # type: ignore[attr-defined]
    assert entry.certificate["assumptions"] == ["one"]


WHOLE = closed(closed(Book().run(FIXED, 2)).run(renamed(SLIDING, "second"), 3)).lines


def refused_from(index: int, lines: list[bytes], before: dict[int, Ledger]) -> bool:
    """Whether a chain whose lines differ from ``WHOLE`` from ``index`` on is refused."""
    if index not in before:
        before[index] = read(WHOLE[:index])
    ledger = before[index]
    try:
        for line in lines[index:]:
            ledger, _ = ledger.read(line)
    except InvalidLedger:
        return True
    return False


def test_every_change_of_every_single_byte_is_refused() -> None:
    """Exhaustive over the bytes; three other values for each."""
    content, before = b"".join(WHOLE), {}
    starts = np.cumsum([0, *map(len, WHOLE)])
    for at, byte in enumerate(content):
        for other in {byte ^ 1, ord("\n"), (byte * 7 + at) % 256} - {byte}:
            changed = content[:at] + bytes([other]) + content[at + 1 :]
            index = int(np.searchsorted(starts, at, side="right")) - 1
            assert refused_from(index, io.BytesIO(changed).readlines(), before), (at, other)


@given(data=st.data())
def test_a_line_that_is_deleted_doubled_swapped_or_added_is_refused(data: st.DataObject) -> None:
    i = data.draw(st.integers(0, len(WHOLE) - 2))  # the last may be cut: see --head and --closed
    j = data.draw(st.integers(0, len(WHOLE) - 1).filter(lambda j: j != i))
    deleted = WHOLE[:i] + WHOLE[i + 1 :]
    doubled = [*WHOLE[: i + 1], *WHOLE[i:]]
    swapped = list(WHOLE)
    swapped[i], swapped[j] = swapped[j], swapped[i]
    foreign = Line.of(data.draw(entries), number=i + 2, previous=json.loads(WHOLE[i])["hash"])
    added = [*WHOLE[: i + 1], foreign.content, *WHOLE[i + 1 :]]
    for lines in (deleted, doubled, swapped, added):
        assert refused_from(0, lines, {})


def test_a_ledger_does_not_grow_with_its_slots() -> None:
    import pickle

    long = campaign(slots=200)
    after = [Book().run(long, count).ledger.running for count in (1, 200)]
    assert len({len(pickle.dumps(run)) for run in after}) == 1
