"""Authentication by the operator's token, by enrolment credentials, and by tokens for check-ins.

An enrolment credential is a secret that all clients share, or one of the listed keys. The service
stores and compares only hashes of credentials. No error message contains a secret.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Self

from checkins import validate
from checkins.errors import InvalidValue, ProtocolViolation

MIN_SECRET_CHARS = 16
"""Least number of characters of a secret, because a shorter secret could be guessed."""
TOKEN_BYTES = 24  # number of random bytes in a token
HIDDEN = "(hidden)"  # replaces a secret in error messages

_SHA256_HEX = re.compile(r"[0-9a-f]{64}")
_VISIBLE_ASCII = re.compile(r"[!-~]+")  # characters that an HTTP header carries unchanged
_MAKE_SECRET = 'make one with: python -c "import secrets; print(secrets.token_urlsafe())"'


class NotAdmitted(ProtocolViolation):
    """A client tried to enrol without a valid credential."""


class EnrolmentKind(StrEnum):
    """Who may enrol."""

    OPEN = "open"
    SECRET = "secret"
    ALLOW_LIST = "allow-list"


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolment:
    """Who may enrol: anyone, clients that know one shared secret, or clients with a listed key."""

    kind: EnrolmentKind
    secret: str | None = field(default=None, repr=False)
    allow_list: frozenset[str] = field(default=frozenset(), repr=False)  # SHA-256 of keys, in hex

    def __post_init__(self) -> None:
        validate.one_of(EnrolmentKind, kind=self.kind)
        kind = str(self.kind)
        if (self.kind is EnrolmentKind.SECRET) != (self.secret is not None):
            raise InvalidValue(
                "enrolment", kind, "needs a secret if its kind is secret, and otherwise takes none"
            )
        if self.secret is not None:
            require_secret("secret", self.secret)
        if self.allow_list and self.kind is not EnrolmentKind.ALLOW_LIST:
            raise InvalidValue("enrolment", kind, "takes no keys, because its kind is another")
        if not all(isinstance(key, str) and _SHA256_HEX.fullmatch(key) for key in self.allow_list):
            raise InvalidValue("allow_list", HIDDEN, "must contain the sha256 of each key, in hex")

    @property
    def file_keys(self) -> frozenset[str] | None:
        """The hashes of keys in the file of the allow-list; None if there is no allow-list."""
        return self.allow_list if self.kind is EnrolmentKind.ALLOW_LIST else None

    @classmethod
    def open(cls) -> Self:
        """Return an enrolment for anyone."""
        return cls(kind=EnrolmentKind.OPEN)

    @classmethod
    def from_secret_file(cls, path: Path) -> Self:
        """Return an enrolment for clients that know the secret in a file."""
        return cls(kind=EnrolmentKind.SECRET, secret=read_secret(path, name="secret_file"))

    @classmethod
    def from_allow_list_file(cls, path: Path, *, name: str = "allow_list") -> Self:
        """Return an enrolment for clients with a key in a file. Errors show ``name``.

        Each line holds one key, or ``sha256:`` and the hash of a key in hex.
        """
        keys = set()
        for number, line in enumerate(_lines(path, name=name), start=1):
            if not line:
                continue
            keys.add(key_hash(f"{name} line {number}", line))
        if not keys:
            raise InvalidValue(name, str(path), "contains no key; write one key per line")
        return cls(kind=EnrolmentKind.ALLOW_LIST, allow_list=frozenset(keys))

    def admit(self, credential: str | None) -> str | None:
        """Check whether a client with this credential may enrol; raise NotAdmitted if not.

        ``credential`` is None if the client sent none. Return None for the shared secret or open
        enrolment. With an allow-list, return the SHA-256 of the credential: whether it may enrol
        depends on the store too. Neither the result nor the duration reveals how similar a
        credential is to a valid credential.
        """
        if self.kind is EnrolmentKind.OPEN:
            return None
        if credential is None:
            raise NotAdmitted(
                "this service enrols only clients with a credential; send it as Bearer"
            )
        if self.kind is EnrolmentKind.ALLOW_LIST:
            return hashed(credential)
        if self.secret is None or not is_same_secret(credential, self.secret):
            raise invalid_credential()
        return None


def invalid_credential() -> NotAdmitted:
    """Return the error for a credential that is not valid."""
    return NotAdmitted("this credential is not valid here; ask the operator for one")


def parse_hash(name: str, text: object) -> str:
    """Return the digits of ``sha256:`` and 64 hex digits; raise InvalidValue about ``name``."""
    if isinstance(text, str) and text.startswith("sha256:"):
        digest = text.removeprefix("sha256:").lower()
        if _SHA256_HEX.fullmatch(digest):
            return digest
    raise InvalidValue(name, HIDDEN, "must be sha256: and 64 hex digits")


def key_hash(name: str, text: str) -> str:
    """Return the hash of a key, which is given as it is, or as ``sha256:`` and its hash."""
    if text.startswith("sha256:"):
        return parse_hash(name, text)
    require_secret(name, text)
    return hashed(text)


def hashed(credential: str) -> str:
    """Return the SHA-256 of a credential in hex. Only this hash is stored or compared."""
    return hashlib.sha256(credential.encode("utf-8", "surrogatepass")).hexdigest()


def is_same_secret(credential: str, secret: str) -> bool:
    """Compare a credential with a secret in constant time."""
    return hmac.compare_digest(hashed(credential), hashed(secret))


def is_operator(credential: str | None, operator_token: str) -> bool:
    """Compare the credential of a request with the operator's token in constant time.

    ``credential`` is None if the request has none.
    """
    return credential is not None and is_same_secret(credential, operator_token)


def new_token() -> str:
    """Draw a token from the operating system's randomness. A token is valid for one check-in."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def derived_token(service_key: bytes, *, run: str, credential: str, idempotency_key: str) -> str:
    """Derive a token from a credential and an idempotency key, so that a retry gets the same."""
    message = "\n".join((run, credential, idempotency_key)).encode()
    return urlsafe_b64encode(hmac.digest(service_key, message, "sha256")[:TOKEN_BYTES]).decode()


def read_secret(path: Path, *, name: str) -> str:
    """Return the secret in a file of one line, apart from comments. Errors show ``name``."""
    lines = [line for line in _lines(path, name=name) if line]
    if len(lines) != 1:
        raise InvalidValue(name, str(path), f"must contain one line, the secret; {_MAKE_SECRET}")
    require_secret(name, lines[0])
    return lines[0]


def require_secret(name: str, secret: object) -> None:
    """Raise InvalidValue if a secret is too short or cannot be sent in an HTTP header."""
    if (
        not isinstance(secret, str)
        or not _VISIBLE_ASCII.fullmatch(secret)
        or len(secret) < MIN_SECRET_CHARS
    ):
        raise InvalidValue(
            name,
            HIDDEN,
            f"must be at least {MIN_SECRET_CHARS} visible ASCII characters without spaces;"
            f" {_MAKE_SECRET}",
        )


def _lines(path: Path, *, name: str) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise InvalidValue(name, str(path), "must be a text file that can be read") from None
    return [re.sub(r"(^|\s)#.*", "", line).strip() for line in text.splitlines()]
