"""Signed heads of a ledger: who may sign, what is signed, and how a key is replaced."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from checkins.errors import InvalidValue
from checkins.ledger import InvalidLedger
from checkins.ledger.signature import (
    MAX_ROTATIONS,
    Rotation,
    SignedHead,
    SigningKey,
    parse_public_key,
)

KEY, OTHER = SigningKey.generate(), SigningKey.generate()
NEXT = SigningKey.generate(KEY)
LAST = SigningKey.generate(NEXT)
POPULATION, HEAD = "population clinic", "ab" * 32


def signed_by(key: SigningKey) -> SignedHead:
    return key.sign_head(population=POPULATION, entries=5, head=HEAD)


def check(signed: SignedHead, key: SigningKey = KEY, population: str = POPULATION) -> None:
    """Check a signed head as a reader does, who gets its JSON."""
    parsed = SignedHead.parse(json.dumps(asdict(signed)).encode(), place="here")
    parsed.check(trusted_key=key.public_key, population=population, place="here")


def test_what_the_key_signed_is_accepted() -> None:
    check(signed_by(KEY))


@pytest.mark.parametrize(
    "change",
    [
        lambda signed: replace(signed, entries=6),
        lambda signed: replace(signed, head="cd" * 32),
        lambda signed: replace(signed, population="population school"),
        lambda signed: replace(signed, signature=""),
        lambda signed: replace(signed, signature="!"),
        lambda signed: replace(signed, signature="A" * 88),
        lambda signed: replace(signed, signature=signed_by(OTHER).signature),
        lambda signed: replace(signed_by(OTHER), key=KEY.public_key),
        lambda signed: replace(signed, signature=None),
    ],
)
def test_a_forged_head_is_refused(change: Callable[[SignedHead], SignedHead]) -> None:
    with pytest.raises(InvalidLedger, match="its signature by"):
        check(change(signed_by(KEY)))


def test_another_key_is_refused_even_if_its_signature_is_valid() -> None:
    with pytest.raises(InvalidLedger, match=r"is signed by .*, which is neither the key"):
        check(signed_by(OTHER))


def test_the_head_of_another_population_is_refused() -> None:
    with pytest.raises(InvalidLedger, match="is signed for the ledger of"):
        check(signed_by(KEY), population="population school")


def test_who_trusts_an_old_key_trusts_those_that_replaced_it() -> None:
    for key in (KEY, NEXT, LAST):
        check(signed_by(LAST), key)
    for key in (NEXT, OTHER):  # a key that was replaced does not vouch for the one before it
        with pytest.raises(InvalidLedger, match="neither the key"):
            check(signed_by(KEY), key)


def test_a_replacement_that_the_old_key_did_not_sign_is_refused() -> None:
    forged = Rotation(KEY.public_key, OTHER.public_key, LAST.rotations[0].signature)
    with pytest.raises(InvalidLedger, match="is forged"):
        check(replace(signed_by(OTHER), rotations=(forged,)))
    with pytest.raises(InvalidLedger, match="neither the key"):
        check(replace(signed_by(LAST), rotations=LAST.rotations[1:]))


def test_a_signed_head_is_no_replacement_of_a_key_and_a_replacement_no_head() -> None:
    """The statements differ, so that a signature of one is never one of the other."""
    head = signed_by(KEY).signature
    with pytest.raises(InvalidLedger, match="is forged"):
        check(
            replace(signed_by(OTHER), rotations=(Rotation(KEY.public_key, OTHER.public_key, head),))
        )
    with pytest.raises(InvalidLedger, match="its signature by"):
        check(replace(signed_by(KEY), signature=NEXT.rotations[0].signature))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"rotations": 1}',
        b"[" * 100_000,
        json.dumps({**asdict(signed_by(KEY)), "entries": True}).encode(),
        json.dumps({**asdict(signed_by(KEY)), "entries": 0}).encode(),
        json.dumps({**asdict(signed_by(KEY)), "head": "xy"}).encode(),
        json.dumps({**asdict(signed_by(KEY)), "key": "ed25519:xy"}).encode(),
        json.dumps({**asdict(signed_by(KEY)), "more": 1}).encode(),
        json.dumps({**asdict(signed_by(KEY)), "rotations": [{"old": 1}]}).encode(),
    ],
)
def test_anything_else_is_no_signed_head(content: bytes) -> None:
    with pytest.raises(InvalidLedger, match="here: is not a signed head"):
        SignedHead.parse(content, place="here")


def test_a_key_file_is_private_and_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "signing.key"
    LAST.write(path)
    assert path.stat().st_mode & 0o777 == 0o600
    read = SigningKey.read(path)
    assert (read.public_key, read.rotations) == (LAST.public_key, LAST.rotations)
    assert signed_by(read) == signed_by(LAST)
    private = json.loads(path.read_text())["private"]
    assert private not in repr(LAST)
    for damage in ("", "{}", "[]", path.read_text().replace(private, private[2:])):
        path.write_text(damage)
        with pytest.raises(InvalidValue, match="is not a key file") as error:
            SigningKey.read(path)
        assert private[2:] not in str(error.value)
    with pytest.raises(InvalidValue, match="cannot be read"):
        SigningKey.read(tmp_path / "missing")


def test_a_public_key_is_32_bytes_in_hex() -> None:
    assert parse_public_key(KEY.public_key) == KEY.public_key
    for text in ("", "ed25519:", KEY.public_key.upper(), KEY.public_key[:-1], "ab" * 32):
        with pytest.raises(InvalidValue, match="must be ed25519:"):
            parse_public_key(text)


def test_a_key_is_not_replaced_more_often_than_readers_accept() -> None:
    many = SigningKey(LAST._private, LAST.rotations[:1] * MAX_ROTATIONS)
    with pytest.raises(InvalidValue, match="which is the largest number"):
        SigningKey.generate(many)
