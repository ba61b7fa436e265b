"""checkins verify: what people and programs see of a ledger, and of one that was tampered with."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from checkins.accounting import Protocol
from checkins.cli.commands import check
from checkins.cli.main import run
from checkins.ledger.entry import Closed, Reason
from checkins.ledger.signature import SigningKey
from checkins.ledger.verification import certificate
from tests.ledger.ledgers import Book, campaign
from tests.support.http_server import Handler, http_server
from tests.support.program import refused

FIXED = campaign()
WHOLE = Book().run(FIXED).close()
OPEN = Book().run(campaign(slots=200, local_epsilon=0.5), 37)
KEYS = {
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
    "signature",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ledger.jsonl").write_bytes(b"".join(WHOLE.lines))
    return tmp_path


def kept(folder: Path, *lines: bytes) -> str:
    (folder / "ledger.jsonl").write_bytes(b"".join(lines))
    return str(folder)


def test_json_says_what_was_recomputed(checkins, folder: Path) -> None:
    outcome = checkins("verify", str(folder), "--json")
    assert (outcome.code, outcome.err) == (0, "")
    answer = json.loads(outcome.out)
    assert set(answer) == KEYS
    assert answer["valid"] is True
    assert answer["head"] == WHOLE.ledger.head
    assert answer["entries"] == 6
    assert answer["campaigns"] == [
        {
            "name": "small",
            "run": 1,
            "seal": FIXED.seal,
            "slots_closed": 4,
            "slots": 4,
            "status": "completed",
        }
    ]
    assert answer["within_budget"] is True
    assert answer["certificate"]["epsilon"] == pytest.approx(0.99999, abs=2e-4)


def test_assumptions_that_only_the_ledger_states_are_shown_as_its_own(
    checkins, tmp_path: Path
) -> None:
    book = Book().run(FIXED)
    stated = certificate(book.ledger).as_dict()
    stated["assumptions"] = [*stated["assumptions"], "Flower: one key\x1b[2J", 7]
    book.add(Closed(Reason.COMPLETED, stated))
    answer = json.loads(checkins("verify", kept(tmp_path, *book.lines), "--json").out)
    assert answer["stated_assumptions"] == ["Flower: one key\x1b[2J"]
    shown = checkins("verify", str(tmp_path)).out
    assert "Assumptions that the ledger states in addition" in shown
    assert "- Flower: one key [2J" in shown
    assert "in addition" not in checkins("verify", kept(tmp_path, *WHOLE.lines)).out


def test_the_text_has_campaigns_head_and_certificate(checkins, folder: Path) -> None:
    outcome = checkins("verify", str(folder))
    assert (outcome.code, outcome.err) == (0, "")
    assert "The ledger is intact: 6 entries" in outcome.out
    assert f"Head: {WHOLE.ledger.head}\n" in outcome.out
    assert "4 of 4   completed   sha256:" in outcome.out
    assert "epsilon <= 1 at delta = 1e-06 (replace-one)" in outcome.out
    assert "The runs are within the budget of the population, epsilon = 3." in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 80


def test_the_file_itself_is_as_good_as_its_folder(checkins, folder: Path) -> None:
    first = json.loads(checkins("verify", str(folder / "ledger.jsonl"), "--json").out)
    second = json.loads(checkins("verify", str(folder), "--json").out)
    assert first["head"] == second["head"]


def test_a_ledger_that_was_cut_is_open_and_refused_where_that_matters(
    checkins, tmp_path: Path
) -> None:
    place = kept(tmp_path, *OPEN.lines)
    shown = " ".join(checkins("verify", place).out.split())
    assert "The last run is still open: 37 of 200 slots are closed" in shown
    assert json.loads(checkins("verify", place, "--json").out)["campaigns"][0]["status"] == "open"
    refused(
        checkins("verify", place, "--closed"), code=1, says="is still open (37 of 200 slots closed)"
    )
    cut = kept(tmp_path, *OPEN.lines[:-1])
    outcome = checkins("verify", cut, "--head", OPEN.ledger.head)
    refused(outcome, code=1, says=f"not with {OPEN.ledger.head}: lines were cut off")


def test_the_published_head_is_accepted(checkins, folder: Path) -> None:
    arguments = ("verify", str(folder), "--head", WHOLE.ledger.head, "--closed", "--json")
    assert checkins(*arguments).code == 0


@pytest.mark.parametrize("text", ["", "0", "g" * 64, "A" * 64, "0" * 65])
def test_a_head_is_a_hash(checkins, folder: Path, text: str) -> None:
    outcome = checkins("verify", str(folder), "--head", text)
    refused(outcome, code=2, says="must be 64 hexadecimal digits")


def test_a_head_given_twice_is_refused(checkins, folder: Path) -> None:
    head = WHOLE.ledger.head
    outcome = checkins("verify", str(folder), "--head", head, "--head", "0" * 64)
    refused(outcome, code=2, says="--head: was given more than once")


def test_a_missing_ledger_is_a_usage_error(checkins, tmp_path: Path) -> None:
    refused(checkins("verify", str(tmp_path / "x")), code=2, says="no such file or folder")
    refused(checkins("verify", str(tmp_path)), code=2, says="contains no ledger.jsonl")
    (tmp_path / "ledger.jsonl").mkdir()
    refused(checkins("verify", str(tmp_path)), code=2, says="is a folder, not a ledger")
    refused(checkins("verify", "a\0b"), code=2, says="file or folder")
    refused(checkins("verify", "x" * 5000), code=2, says="file or folder")
    refused(checkins("verify", ""), code=2, says="contains no ledger.jsonl")
    refused(checkins("verify"), code=2, says="DIR")


@pytest.mark.parametrize("place", ["postgresql://x", "ftp://x/ledger.jsonl"])
def test_an_address_is_that_of_a_coordinator(checkins, place: str) -> None:
    refused(checkins("verify", place), code=2, says="or the URL of a coordinator")


def test_an_address_without_a_service_is_reported(checkins) -> None:
    refused(checkins("verify", "http://127.0.0.1:1"), code=2, says="is a coordinator there?")
    refused(checkins("verify", "http://"), code=2, says="http://")
    insecure = ("verify", "http://campaigns.example")
    refused(checkins(*insecure), code=2, says="is not encrypted")
    refused(checkins("verify", "http://127.0.0.1:1", "--ca", __file__), code=2, says="is for https")
    refused(checkins("verify", "http://[x"), code=2, says="http://[x")


def test_a_running_service_is_verified_by_its_address(checkins, at_address) -> None:
    url = at_address(WHOLE.lines, "0123456789ab-1")
    for place in (url, f"{url}/", f"{url}/campaigns/0123456789ab-1"):
        outcome = checkins("verify", place, "--json")
        assert (outcome.code, outcome.err) == (0, "")
        assert json.loads(outcome.out)["head"] == WHOLE.ledger.head


def test_a_service_that_tampers_with_its_ledger_is_refused(checkins, at_address) -> None:
    lines = list(WHOLE.lines)
    lines[3] = lines[3].replace(b'"slot":3', b'"slot":2')
    outcome = checkins("verify", at_address(lines, "0123456789ab-1"))
    refused(outcome, code=1, says="/ledger:4: its hash")
    cut = at_address(WHOLE.lines[:-1], "0123456789ab-1")
    assert checkins("verify", cut).code == 0
    refused(checkins("verify", cut, "--head", WHOLE.ledger.head), code=1, says="lines were cut off")
    refused(checkins("verify", cut, "--closed"), code=1, says="is still open")


def test_what_a_service_says_is_wrong_is_told(checkins, at_address) -> None:
    url = at_address(WHOLE.lines, "0123456789ab-1")
    outcome = checkins("verify", f"{url}/campaigns/ffffffffffff-1")
    refused(outcome, code=2, says="404: no such run")
    refused(checkins("verify", f"{url}/elsewhere"), code=2, says="404")


def test_campaigns_on_several_populations_must_be_named(checkins, at_address) -> None:
    url = at_address(WHOLE.lines, "0123456789ab-1", "ba9876543210-1")
    refused(checkins("verify", url), code=2, says="/campaigns/ba9876543210-1")
    assert checkins("verify", f"{url}/campaigns/ba9876543210-1", "--json").code == 0


@pytest.fixture
def at_address():
    """A service that shows these lines as the ledger of each of these runs; another population
    for each."""

    def serve(lines: Sequence[bytes], *runs: str) -> str:
        class OfLedgers(Handler):
            def answer(self) -> None:
                code, body = 404, b'{"detail": "no such run"}'
                if self.path == "/campaigns":
                    code = 200
                    body = json.dumps({"campaigns": [{"id": each} for each in runs]}).encode()
                for each in runs:
                    if self.path == f"/campaigns/{each}":
                        code, body = 200, json.dumps({"population_id": each, "seal": ""}).encode()
                    if self.path == f"/campaigns/{each}/ledger":
                        code, body = 200, b"".join(lines)
                self.say(code, body)

        return servers.enter_context(http_server(OfLedgers))

    with ExitStack() as servers:
        yield serve


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "ledger.jsonl: is empty"),
        (b"\n", "ledger.jsonl:1: is not JSON"),
        (b"hello\n", "ledger.jsonl:1: is not JSON"),
        (b"hello", "ledger.jsonl:1: the last line is incomplete (crash?)"),
        (b"\x00\xff\x1b[31m\n", "ledger.jsonl:1: is not ASCII text"),
        (b"{}\n", "ledger.jsonl:1: kind must be one of"),
        (b'{"kind":"opened","kind":"opened"}\n', "ledger.jsonl:1: contains the same key twice"),
        (b'{"kind":NaN}\n', "ledger.jsonl:1: contains NaN"),
        (b'{"kind":' + b"9" * 9999 + b"}\n", "ledger.jsonl:1: contains a number that is too large"),
        (b"[" * 99999 + b"\n", "ledger.jsonl:1: is nested too deeply"),
        (b"".join(WHOLE.lines[:3]) + b"\n", "ledger.jsonl:4: is not JSON"),
        (b"".join(WHOLE.lines).replace(b'"slot":3', b'"slot":2'), "ledger.jsonl:4: its hash"),
        (b"".join(WHOLE.lines).replace(b"{", b"{ ", 1), "ledger.jsonl:1: is not canonical JSON"),
        (b"".join(WHOLE.lines[1:]), "ledger.jsonl:1: is entry 2, but entry 1 is next"),
        (b"".join(WHOLE.lines)[:-1], "ledger.jsonl:6: the last line is incomplete (crash?)"),
    ],
)
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["people", "json"])
def test_a_refused_ledger_is_one_line_and_exit_1(
    checkins, tmp_path: Path, content: bytes, says: str, form: tuple[str, ...]
) -> None:
    refused(checkins("verify", kept(tmp_path, content), *form), code=1, says=says)


@given(content=st.binary(max_size=300))
def test_any_bytes_are_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    place = kept(tmp_path_factory.mktemp("any"), content)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(["verify", place, "--json"])
    assert (code, out.getvalue()) == (1, "")
    assert err.getvalue().count("\n") == 1
    assert "internal error" not in err.getvalue()


def test_a_file_that_may_not_be_read_is_one_line(
    checkins, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object, **__: object) -> object:
        raise PermissionError(13, "Permission denied", "ledger.jsonl")

    monkeypatch.setattr(Path, "open", denied)
    refused(checkins("verify", str(folder)), code=1, says="ledger.jsonl: Permission denied")


def test_simulated_campaigns_and_notes_are_reported(checkins, tmp_path: Path) -> None:
    book = Book().run(campaign(grid=None), simulated=True, floats=True).close(epsilon=2.0)
    shown = " ".join(checkins("verify", kept(tmp_path, *book.lines)).out.split())
    assert "The ledger is simulated: its noise comes from a seed and gives no privacy." in shown
    assert "Notes: - line 6 states epsilon = 2.0" in shown


def test_a_budget_exceeded_by_too_few_contributors_is_reported(checkins, tmp_path: Path) -> None:
    declared = campaign(Protocol.AVERAGED, epsilon=0.9, fewest=100)
    book = Book().run(declared, contributors=[1, 0, 0, 0]).close()
    place = kept(tmp_path, *book.lines)
    outcome = checkins("verify", place)
    assert outcome.code == 1
    assert "The runs exceed the budget of the population, epsilon = 0.9." in outcome.out
    assert outcome.err.count("\n") == 1
    assert "epsilon = 0.9, is exceeded: the runs have epsilon <= 1 (delta = 1e-06" in outcome.err
    outcome = checkins("verify", place, "--json")
    assert (outcome.code, outcome.err.count("\n")) == (1, 1)
    answer = json.loads(outcome.out)
    assert (answer["valid"], answer["within_budget"]) == (True, False)


def test_a_long_ledger_shows_how_far_it_is_on_a_terminal(
    checkins, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check, "PROGRESS_BAR_BYTES", 1)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(Console, "is_terminal", True)
    outcome = checkins("verify", str(folder))
    assert outcome.code == 0
    assert "recomputing the ledger" in outcome.err
    assert "Head:" in outcome.out


def test_a_saved_ledger_is_verified_with_a_pinned_key(checkins, folder: Path) -> None:
    key, population = SigningKey.generate(), FIXED.population_key
    chosen = ("verify", str(folder), "--key", key.public_key)
    refused(checkins(*chosen), code=2, says="cannot be read")
    hashes = [json.loads(line)["hash"] for line in WHOLE.lines]
    saved = folder / "signature.json"

    def sign(entries: int, head: str, by: SigningKey = key) -> None:
        signed = by.sign_head(population=population, entries=entries, head=head)
        saved.write_text(json.dumps(asdict(signed)))

    for entries in (6, 3):  # a head from an earlier slot is signed too
        sign(entries, hashes[entries - 1])
        outcome = checkins(*chosen, "--json")
        assert (outcome.code, outcome.err) == (0, "")
        assert json.loads(outcome.out)["signature"] == {"key": key.public_key, "entries": entries}
    shown = " ".join(checkins(*chosen).out.split())
    unsigned = len(hashes) - 3
    assert f"line 3 by {key.public_key} The {unsigned} lines after it are not signed." in shown
    sign(len(hashes), hashes[-1])
    assert "not signed" not in checkins(*chosen).out
    sign(3, hashes[3])
    refused(checkins(*chosen), code=1, says="ledger.jsonl:3: has the hash")
    sign(7, hashes[5])
    refused(checkins(*chosen), code=1, says="has 6 lines, but had 7: lines were cut off")
    sign(6, hashes[5], by=SigningKey.generate())
    refused(checkins(*chosen), code=1, says="neither the key")
    refused(checkins("verify", str(folder), "--key", "x"), code=2, says="--key x: must be ed25519:")
    refused(checkins("verify", str(folder), "--signature", saved), code=2, says="needs --key")


def test_a_key_file_is_made_and_replaced(checkins, tmp_path: Path) -> None:
    old, new = tmp_path / "old.key", tmp_path / "new.key"
    first = json.loads(checkins("signing-key", "--out", old, "--json").out)
    second = json.loads(checkins("signing-key", "--out", new, "--replaces", old, "--json").out)
    assert (first["rotations"], second["rotations"]) == (0, 1)
    assert SigningKey.read(new).rotations[0].old == first["key"] != second["key"]
    refused(checkins("signing-key", "--out", old), code=2, says="exists already")
    refused(
        checkins("signing-key", "--out", tmp_path / "x", "--replaces", __file__),
        code=2,
        says="--replaces",
    )
