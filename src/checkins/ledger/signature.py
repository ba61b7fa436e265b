"""Sign the head of a ledger, and check such signatures.

The head is the hash of the last line, and depends on every line. So a signature of the head signs
all lines up to this one. To replace a key, its owner signs a statement that names the new key.
Signatures are Ed25519 (RFC 8032) and need the package cryptography. docs/ledger.md says what a
signature promises.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from checkins import durable_file
from checkins.errors import InvalidValue
from checkins.ledger.entry import InvalidLedger
from checkins.protocol.wire import SHA256_PATTERN

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SCHEMA = 1
"""Version of the format of key files."""
MAX_ROTATIONS = 1000
"""Largest number of times that a key may be replaced."""
MAX_SIGNED_HEAD_BYTES = 1_000_000
_PUBLIC_KEY = re.compile(r"ed25519:[0-9a-f]{64}")


def parse_public_key(text: str) -> str:
    """Return a public key; raise InvalidValue unless it is ``ed25519:`` and 64 hex digits."""
    if not _PUBLIC_KEY.fullmatch(text):
        expected = "must be ed25519: and 64 hexadecimal digits, as `checkins signing-key` prints"
        raise InvalidValue("key", text, expected)
    return text


def _rotation_statement(old: str, new: str) -> bytes:
    return _canonical({"statement": "checkins key rotation", "old": old, "new": new})


def _head_statement(population: str, entries: int, head: str) -> bytes:
    return _canonical(
        {
            "statement": "checkins ledger head",
            "population": population,
            "entries": entries,
            "head": head,
        }
    )


def _canonical(fields: Mapping[str, object]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode("ascii")


@dataclass(frozen=True, slots=True)
class Rotation:
    """The statement, signed by the key ``old``, that the key ``new`` replaces it."""

    old: str
    new: str
    signature: str

    def is_valid(self) -> bool:
        return _is_signed(self.old, self.signature, _rotation_statement(self.old, self.new))


@dataclass(frozen=True, slots=True)
class SignedHead:
    """The statement that the ledger of ``population`` had this ``head`` after ``entries`` lines.

    ``key`` is the key that signed the statement. ``rotations`` are the replacements of earlier keys
    that led to this key, oldest first.
    """

    population: str
    entries: int
    head: str
    key: str
    signature: str
    rotations: tuple[Rotation, ...] = ()

    @classmethod
    def parse(cls, content: bytes, *, place: str) -> Self:
        """Parse the JSON of a signed head; raise InvalidLedger if it is malformed.

        ``place`` is the file or URL of the signed head, for error messages.
        """
        try:
            fields: dict[str, Any] = json.loads(content)
            rotations = tuple(Rotation(**rotation) for rotation in fields.pop("rotations"))
            signed = cls(**fields, rotations=rotations)
            keys = [signed.key, *(key for each in rotations for key in (each.old, each.new))]
            is_valid = (
                all(_PUBLIC_KEY.fullmatch(key) for key in keys)
                and isinstance(signed.population, str)
                and type(signed.entries) is int
                and signed.entries > 0
                and SHA256_PATTERN.fullmatch(signed.head) is not None
                and len(rotations) <= MAX_ROTATIONS
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            is_valid = False
        if not is_valid:
            raise InvalidLedger("is not a signed head of a ledger", place=place)
        return signed

    def check(self, *, trusted_key: str, population: str, place: str) -> None:
        """Raise InvalidLedger unless ``trusted_key``, or a key that replaced it, has signed this.

        ``population`` is that of the ledger. ``place`` is as in ``parse``.
        """
        key = trusted_key
        for rotation in self.rotations:
            if rotation.old == key and not rotation.is_valid():
                raise InvalidLedger(
                    f"the statement that replaces the key {key} is forged", place=place
                )
            if rotation.old == key:
                key = rotation.new
        if self.key != key:
            raise InvalidLedger(
                f"is signed by {self.key}, which is neither the key {trusted_key} nor a key that"
                " replaced it",
                place=place,
            )
        statement = _head_statement(self.population, self.entries, self.head)
        if not _is_signed(key, self.signature, statement):
            raise InvalidLedger(f"its signature by {key} is not valid", place=place)
        if self.population != population:
            raise InvalidLedger(
                f"is signed for the ledger of {self.population!r}, not of {population!r}",
                place=place,
            )


def _is_signed(key: str, signature: object, statement: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    public_key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key.removeprefix("ed25519:")))
    try:
        public_key.verify(base64.b64decode(str(signature), validate=True), statement)
    except (InvalidSignature, binascii.Error, ValueError):
        return False
    return True


@dataclass(frozen=True, slots=True, eq=False)
class SigningKey:
    """A private key, and the replacements of earlier keys that led to it.

    The ``repr`` does not show the private key.
    """

    _private: Ed25519PrivateKey
    rotations: tuple[Rotation, ...] = ()

    @classmethod
    def generate(cls, replaced: SigningKey | None = None) -> SigningKey:
        """Draw a new key. If ``replaced`` is given, that key signs that the new key replaces it."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        new = cls(Ed25519PrivateKey.generate())
        if replaced is None:
            return new
        if len(replaced.rotations) >= MAX_ROTATIONS:
            expected = (
                f"is the result of {MAX_ROTATIONS:,} replacements, which is the largest number:"
                " generate a key that replaces no other key"
            )
            raise InvalidValue("replaces", replaced.public_key, expected)
        old_key, new_key = replaced.public_key, new.public_key
        signature = replaced._sign(_rotation_statement(old_key, new_key))
        return cls(new._private, (*replaced.rotations, Rotation(old_key, new_key, signature)))

    @classmethod
    def read(cls, path: Path, *, name: str = "signing_key") -> SigningKey:
        """Read a key file; raise InvalidValue if the file cannot be read or is not a key file.

        The error names the argument ``name`` and the path. It does not show the file's content.
        """
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        try:
            fields = json.loads(path.read_bytes())
            if fields["schema"] != SCHEMA:
                raise ValueError
            private = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(fields["private"]))
            return cls(private, tuple(Rotation(**each) for each in fields["rotations"]))
        except OSError as error:
            expected = f"cannot be read: {error.strerror}"
            raise InvalidValue(name, str(path), expected) from None
        except (ValueError, KeyError, TypeError):
            expected = "is not a key file; make one with `checkins signing-key`"
            raise InvalidValue(name, str(path), expected) from None

    def write(self, path: Path) -> None:
        """Write the key file durably, so that only its owner can read it."""
        private = self._private.private_bytes_raw().hex()
        rotations = [_fields_of(each) for each in self.rotations]
        fields = {"schema": SCHEMA, "public": self.public_key, "private": private}
        content = json.dumps({**fields, "rotations": rotations}, indent=1) + "\n"
        durable_file.replace_content(path, content.encode("ascii"), mode=0o600)

    @property
    def public_key(self) -> str:
        """The public key as ``ed25519:`` and 64 hexadecimal digits."""
        return f"ed25519:{self._private.public_key().public_bytes_raw().hex()}"

    def sign_head(self, *, population: str, entries: int, head: str) -> SignedHead:
        """Sign the head that the ledger of a population had after ``entries`` lines."""
        signature = self._sign(_head_statement(population, entries, head))
        key, rotations = self.public_key, self.rotations
        return SignedHead(population, entries, head, key, signature, rotations)

    def _sign(self, statement: bytes) -> str:
        return base64.b64encode(self._private.sign(statement)).decode("ascii")

    def __repr__(self) -> str:
        return f"SigningKey({self.public_key})"


def _fields_of(rotation: Rotation) -> dict[str, str]:
    return {"old": rotation.old, "new": rotation.new, "signature": rotation.signature}
