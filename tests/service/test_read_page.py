"""The page that reads certificates: hashes as in Python, in a real browser, also from a file."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import random
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from checkins.accounting import Adjacency, Design, LocalRandomizer, Protocol, certify
from checkins.ledger import verify
from checkins.ledger.entry import InvalidLedger
from checkins.service.http.request_limits import CONTENT_SECURITY_POLICY
from tests.ledger.ledgers import Book, at_least, campaign, renamed
from tests.service.test_page import CONTRAST
from tests.support.accessibility import barriers
from tests.support.browser import Visit, every_look, open_file, overflow, text, watching
from tests.support.http_server import Handler, http_server
from tools.standalone_page import standalone_page

if TYPE_CHECKING:
    from tests.support.browser import Browser, Page

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*/*.jsonl"))
KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
CHECK_ALL = """async (ledgers) => {
  const { checkLedger, InvalidLedger } = await import("./page/ledger-check.js");
  return ledgers.map((text) => {
    try {
      return checkLedger(text).head;
    } catch (error) {
      if (!(error instanceof InvalidLedger)) throw error;
      return `refused: ${error.message}`;
    }
  });
}"""


class OfPage(Handler):
    """Serves the page and its files with the policy of the service."""

    def answer(self) -> None:
        name = "read.html" if self.path == "/read" else self.path.removeprefix("/page/")
        body = (files("checkins.service") / "page" / name).read_bytes()
        kind = KINDS[name.rpartition(".")[2]]
        policy = {"content-security-policy": CONTENT_SECURITY_POLICY, "content-type": kind}
        self.say(200, body, policy)


@pytest.fixture(scope="module")
def opened(browser: Browser) -> Iterator[Visit]:
    """The page, opened once for many tests."""
    with http_server(OfPage) as url, watching(browser, f"{url}/read") as seen:
        yield seen
    assert (seen.errors, seen.asked) == ([], [])


def generated() -> list[bytes]:
    """Ledgers of every protocol, of several campaigns, of simulations, and with odd names."""
    fixed, sliding = campaign(), campaign(Protocol.SLIDING, slots=5, window=3)
    averaged = campaign(Protocol.AVERAGED, epsilon=9.0)
    odd = campaign(name='Größe "\\ \N{GRINNING FACE}\N{SNOWMAN}', population_id="a b/c")
    twice = campaign(repeats=2, epsilon=9.0)
    floats = campaign(grid=None, rate=1e-7, delta=1.5e-9)
    books = [
        Book().run(fixed).close(),
        Book().run(fixed, 2),
        Book().run(fixed, 2).close(),
        Book().run(sliding).close(),
        Book().run(averaged).close(),
        Book().run(at_least(2)).close(),
        Book().run(odd).close(),
        Book().run(twice).close().run(twice).close(),
        Book().run(fixed, 1).close().run(renamed(fixed, "next"), 1).close(),
        Book(filtered=False).run(fixed, 1).close(),
        Book().run(floats, floats=True, simulated=True).close(),
    ]
    return [b"".join(book.lines) for book in books]


def heads_of(page: Page, ledgers: list[bytes]) -> list[str]:
    found: list[str] = page.evaluate(CHECK_ALL, [ledger.decode("latin1") for ledger in ledgers])
    return found


def rehashed(lines: list[dict[str, Any]]) -> bytes:
    """The lines with consistent hashes: what the owner of a ledger can write."""
    previous, written = "0" * 64, b""
    for number, line in enumerate(lines, start=1):
        fields = line | {"entry": number, "previous": previous}
        del fields["hash"]
        previous = hashlib.sha256(_canonical(fields)).hexdigest()
        written += _canonical(fields | {"hash": previous}) + b"\n"
    return written


def _canonical(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode("ascii")


def tampered(whole: bytes, rolls: random.Random) -> Iterator[bytes]:
    """One hundred tampered copies: bytes, lines and spellings changed, with stale hashes."""
    lines = whole.splitlines(keepends=True)
    for _ in range(70):
        at = rolls.randrange(len(whole))
        other = rolls.choice([byte for byte in range(256) if byte != whole[at]])
        yield whole[:at] + bytes([other]) + whole[at + 1 :]
    for _ in range(10):
        at = rolls.randrange(len(whole))
        yield whole[:at] + whole[at + 1 :]
    for _ in range(5):
        first, second = sorted(rolls.sample(range(len(lines)), 2))
        moved = [*lines]
        moved[first], moved[second] = moved[second], moved[first]
        yield b"".join(moved)
    for at in range(5):
        yield b"".join([*lines[:at], *lines[at + 1 :]])  # the last line stays
    for at in range(5):
        yield b"".join([*lines[: at + 1], *lines[at:]])  # a line twice
    for old, new in (
        (b"1e-06", b"1e-6"),
        (b'"run":1,', b'"run":1.0,'),
        (b'"entry":1,', b'"entry":1, '),
        (b'"simulated":false', b'"simulated":0'),
        (b'"slot":2', b'"slot":02'),
    ):
        assert old in whole
        yield whole.replace(old, new)


def restated(whole: bytes) -> dict[str, bytes]:
    """Ledgers whose hashes are consistent and whose content cannot be true, by what is wrong."""
    lines = [json.loads(line) for line in whole.splitlines()]
    opening, slots, closing = lines[0], lines[1:-1], lines[-1]
    other = {**opening, "campaign": opening["campaign"].replace("small", "other")}
    short = base64.b64encode(bytes(8)).decode()
    return {
        "a slot is missing": rehashed([opening, slots[0], *slots[2:], closing]),
        "no campaign is open": rehashed([*slots, closing]),
        "opened twice": rehashed([opening, *lines]),
        "another campaign under the seal": rehashed([other, *slots, closing]),
        "another model": rehashed([{**opening, "model": short}, *slots, closing]),
        "a second run": rehashed([{**opening, "run": 2}, *slots, closing]),
        "an unknown filter": rehashed([{**opening, "filter": "renyi-1"}, *slots, closing]),
        "a count of clients": rehashed([opening, {**slots[0], "contributors": 3}, *slots[1:]]),
        "a short total": rehashed([opening, {**slots[0], "total": short}, *slots[1:]]),
        "no total": rehashed([opening, {**slots[0], "total": None, "dtype": None}, *slots[1:]]),
        "stopped at the end": rehashed([opening, *slots, {**closing, "reason": "stopped"}]),
        "another delta": rehashed(
            [opening, *slots, {**closing, "certificate": closing["certificate"] | {"delta": 1e-5}}]
        ),
        "an unknown field": rehashed([opening, {**slots[0], "client": 7}, *slots[1:], closing]),
    }


def test_a_ledger_that_python_accepts_has_the_same_head_here(opened: Visit) -> None:
    ledgers = [*generated(), *(path.read_bytes() for path in GOLDEN)]
    heads = [verify(ledger.splitlines(keepends=True)).ledger.head for ledger in ledgers]
    assert heads_of(opened.page, ledgers) == heads


def test_one_hundred_tampered_ledgers_are_refused_at_the_line_that_python_names(
    opened: Visit,
) -> None:
    whole = b"".join(Book().run(campaign()).close().lines)
    copies = list(tampered(whole, random.Random(20)))
    assert len(copies) == 100
    expected = []
    for copy in copies:
        with pytest.raises(InvalidLedger) as refused:
            verify(_lines(copy))
        expected.append(refused.value.place.rpartition(":")[2])
    found = heads_of(opened.page, copies)
    assert [one for one in found if not one.startswith("refused: Line")] == []
    named = [one.split()[2].rstrip(":") for one in found]
    assert named == expected


def _lines(content: bytes) -> list[bytes]:
    """The lines of a file with their newlines; only a newline ends a line."""
    pieces = content.split(b"\n")
    whole = [piece + b"\n" for piece in pieces[:-1]]
    return [*whole, pieces[-1]] if pieces[-1] else whole


def test_a_false_ledger_with_consistent_hashes_is_refused(opened: Visit) -> None:
    whole = b"".join(Book().run(campaign()).close().lines)
    false = restated(whole)
    for ledger in false.values():
        with pytest.raises(InvalidLedger):
            verify(_lines(ledger))
    found = heads_of(opened.page, list(false.values()))
    accepted = [name for name, one in zip(false, found, strict=True) if "refused" not in one]
    assert accepted == []


def test_numbers_are_spelled_as_python_spells_them(opened: Visit) -> None:
    rolls = random.Random(21)
    numbers = [rolls.choice([-1, 1]) * rolls.random() * 10 ** rolls.randint(-320, 300)
               for _ in range(2000)]  # fmt: skip
    numbers += [0.0, -0.0, 1e15, 1e16, 123456789012345680.0, 1e-4, 1e-5, 5e-324, math.pi, 1e22]
    script = """async (numbers) => {
      const { pythonFloat } = await import("./page/canonical-json.js");
      return numbers.map((text) => pythonFloat(Number(text)));
    }"""
    assert opened.page.evaluate(script, [repr(one) for one in numbers]) == [
        repr(one) for one in numbers
    ]


def test_the_hash_is_sha_256(opened: Visit) -> None:
    rolls = random.Random(22)
    messages = [rolls.randbytes(size) for size in (*range(0, 130), 1000, 65_537)]
    script = """async (messages) => {
      const { sha256 } = await import("./page/sha256.js");
      return messages.map((one) => sha256(Uint8Array.from(atob(one), (c) => c.charCodeAt(0))));
    }"""
    found = opened.page.evaluate(script, [base64.b64encode(one).decode() for one in messages])
    assert found == [hashlib.sha256(one).hexdigest() for one in messages]


def submit(page: Page, content: str, head: str = "") -> None:
    page.locator("#text").fill(content)
    page.locator("#head").fill(head)
    page.locator("button[type=submit]").click()


def test_a_certificate_is_read_with_what_each_attacker_can_learn(opened: Visit) -> None:
    design = Design(Protocol.FIXED, slots=1000, participation=1.0, randomizer=LocalRandomizer(1.0))
    certificate = certify(design, delta=1e-6, adjacency=Adjacency.ADD_REMOVE)
    submit(opened.page, json.dumps(certificate.as_dict()))
    epsilon = certificate.epsilon
    guess = (math.exp(epsilon) + certificate.delta) / (1 + math.exp(epsilon))
    percent = math.ceil(1000 * guess) / 10
    assert f"at most {percent}%" in text(opened.page, "claim")
    attackers = text(opened.page, "attackers")
    for said in ("only the releases", "The server", "observer of connections", "no client disc"):
        assert said in attackers
    assert "ε ≤ 1 (replace)" in attackers
    assert opened.page.locator("#assumptions li").all_inner_texts() == list(certificate.assumptions)
    assert "believes its numbers" in text(opened.page, "hashes-title") + text(
        opened.page, "no-hashes"
    )
    assert opened.page.locator("#hashes").is_hidden()


@pytest.mark.parametrize(
    ("adversary", "changes", "said"),
    [
        ("curious clients", {"curious": 3}, "Included for up to 3 clients"),
        ("no bound", {"epsilon": None}, "No bound on ε was proven"),
        ("no server", {"against_server": None}, "Not stated. The guarantee assumes"),
        ("a large epsilon", {"epsilon": 900.0}, "may be sure"),
        ("no alternatives", {"alternatives": []}, "states no ε for an attacker who knows this"),
    ],
)
def test_other_certificates_are_read_as_they_are(
    opened: Visit, adversary: str, changes: dict[str, object], said: str
) -> None:
    design = Design(Protocol.FIXED, slots=10, participation=1.0, randomizer=LocalRandomizer(1.0))
    stated = certify(design, delta=1e-6, adjacency=Adjacency.REPLACE_ONE).as_dict() | changes
    submit(opened.page, json.dumps(stated))
    assert said in opened.page.locator("#answer").inner_text(), adversary


def test_a_pasted_ledger_is_checked_and_a_wrong_head_is_refused(opened: Visit) -> None:
    content = GOLDEN[-1].read_text(encoding="ascii")
    head = json.loads(content.splitlines()[-1])["hash"]
    submit(opened.page, content, head)
    assert head in text(opened.page, "chain")
    assert opened.page.locator("#runs tbody tr").count() == 1
    submit(opened.page, content, "0" * 64)
    assert "ends with the hash" in text(opened.page, "problem")
    submit(opened.page, content, "no hash")
    assert "64 hexadecimal digits" in text(opened.page, "problem")


def test_a_file_is_read_byte_by_byte(opened: Visit, tmp_path: Path) -> None:
    content = GOLDEN[0].read_bytes()
    opened.page.locator("#head").fill("")
    for name, changed, said in (
        ("whole.jsonl", content, "All hashes of the ledger are right"),
        ("marked.jsonl", b"\xef\xbb\xbf" + content, "refused"),
        ("torn.jsonl", content[:-1], "incomplete"),
    ):
        place = tmp_path / name
        place.write_bytes(changed)
        opened.page.locator("#file").set_input_files(place)
        opened.page.wait_for_function(
            "(said) => document.getElementById('said').textContent.includes(said)", arg=said
        )


def test_what_is_neither_is_refused_with_what_to_paste(opened: Visit) -> None:
    for content in ("", "hello", "{}", "[1, 2]", '{"epsilon": 1}', "null"):
        submit(opened.page, content)
        assert "aste" in text(opened.page, "problem") or "neither" in text(opened.page, "problem")


def test_the_example_is_a_ledger_that_python_accepts(opened: Visit) -> None:
    opened.page.locator("#show-example").click()
    shown = opened.page.locator("#text").input_value()
    assert verify(_lines(shown.encode() + b"\n")).ledger.head in text(opened.page, "chain")


def test_text_of_a_certificate_is_never_html(opened: Visit) -> None:
    hostile = "<img src=x onerror=\"document.title='owned'\">"
    submit(
        opened.page,
        json.dumps(
            {"epsilon": 1, "delta": 1e-6, "adjacency": hostile, "method": hostile}
            | {"assumptions": [hostile], "against_server": {"epsilon": None, "note": hostile}}
        ),
    )
    assert opened.page.locator("#answer img").count() == 0
    assert hostile in text(opened.page, "answer")


def test_the_page_fits_a_desk_and_a_phone_in_light_and_dark(opened: Visit) -> None:
    opened.page.locator("#show-example").click()
    for look in every_look(opened.page):
        assert overflow(opened.page) <= 0, look
        assert opened.page.evaluate(CONTRAST) == [], look
        assert barriers(opened.page) == [], look


def test_the_page_works_from_a_file(browser: Browser, tmp_path: Path) -> None:
    place = tmp_path / "read.html"
    place.write_text(standalone_page("read.html", home="index.html", home_title="Documentation"))
    with open_file(browser, place) as seen:
        seen.page.locator("#show-example").click()
        assert "fits its line" in text(seen.page, "chain")
    assert (seen.errors, seen.asked) == ([], [])
