"""Settings of a service: its store, who may enrol, its limits.

Secrets (the operator's token, the enrolment secret, a password inside the store's address) are
never part of a ``repr`` nor of an error message; only ``Settings.to_json`` holds them.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Self, cast

from checkins import validate
from checkins.errors import InvalidValue, ProtocolViolation

KIB = 1024
LEAST_SECRET = 16
"""Least number of characters of a secret: fewer could be guessed over the network."""
HIDDEN = "(hidden)"

_DIGEST = re.compile(r"[0-9a-f]{64}")
_VISIBLE = re.compile(r"[!-~]+")  # what a header carries unchanged
_SECRET_OPTION = re.compile(r"(?i)([^&=?]*(?:pass|secret|token|key)[^&=?]*)=[^&]*")
_MAKE_ONE = 'make one with: python -c "import secrets; print(secrets.token_urlsafe())"'


class NotAdmitted(ProtocolViolation):
    """An enrolment without a credential that this service admits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one worker process; connections and rates are counted per process.

    A rate or a number of connections of 0 means no limit.
    """

    body_bytes: int = 16 * KIB
    campaign_bytes: int = 200_000  # the limit of campaign.toml
    head_bytes: int = 32 * KIB
    requests_per_s: float = 1000.0  # of one address
    burst: int = 5000
    connections: int = 15_000
    per_address: int = 1000  # of one address, or one /64 of IPv6
    listeners: int = 2000  # event streams
    head_s: float = 10.0
    body_s: float = 10.0
    answer_s: float = 60.0  # how often a full send buffer must have been taken from
    waiting_s: float = 60.0  # longest long poll

    def __post_init__(self) -> None:
        validate.count(
            body_bytes=self.body_bytes,
            campaign_bytes=self.campaign_bytes,
            head_bytes=self.head_bytes,
            burst=self.burst,
            listeners=self.listeners,
        )
        validate.non_negative(requests_per_s=self.requests_per_s)
        for name in ("connections", "per_address"):
            if getattr(self, name) != 0 or isinstance(getattr(self, name), bool):
                validate.count(**{name: getattr(self, name)})
        validate.positive(
            head_s=self.head_s,
            body_s=self.body_s,
            answer_s=self.answer_s,
            waiting_s=self.waiting_s,
        )


class EnrolmentKind(StrEnum):
    """Who may enrol."""

    OPEN = "open"
    SECRET = "secret"
    ALLOW_LIST = "allow-list"


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolment:
    """Who may enrol: anyone, whoever knows one shared secret, or the holders of listed keys."""

    kind: EnrolmentKind
    secret: str | None = field(default=None, repr=False)
    allow_list: frozenset[str] = field(default=frozenset(), repr=False)

    def __post_init__(self) -> None:
        validate.one_of(EnrolmentKind, kind=self.kind)
        if (self.kind is EnrolmentKind.SECRET) != (self.secret is not None):
            raise InvalidValue(
                "enrolment", str(self.kind), "takes a secret exactly when its kind is secret"
            )
        if self.secret is not None:
            _require_secret("secret", self.secret)
        if (self.kind is EnrolmentKind.ALLOW_LIST) != bool(self.allow_list):
            raise InvalidValue(
                "enrolment", str(self.kind), "takes keys exactly when its kind is allow-list"
            )
        if not all(isinstance(key, str) and _DIGEST.fullmatch(key) for key in self.allow_list):
            raise InvalidValue("allow_list", HIDDEN, "must hold the sha256 of each key, in hex")

    @classmethod
    def open(cls) -> Self:
        """Anyone may enrol."""
        return cls(kind=EnrolmentKind.OPEN)

    @classmethod
    def from_secret_file(cls, path: Path) -> Self:
        """Clients with the secret in a file may enrol."""
        return cls(kind=EnrolmentKind.SECRET, secret=read_secret(path, name="secret_file"))

    @classmethod
    def from_allow_list_file(cls, path: Path) -> Self:
        """Holders of the keys in a file may enrol: one key or ``sha256:hex`` a line."""
        keys = set()
        for number, line in enumerate(_lines(path, name="allow_list"), start=1):
            if not line:
                continue
            digest = line.removeprefix("sha256:").lower()
            if not line.startswith("sha256:"):
                _require_secret(f"allow_list line {number}", line)
                digest = digest_of(line)
            elif not _DIGEST.fullmatch(digest):
                raise InvalidValue(
                    f"allow_list line {number}", HIDDEN, "must be sha256: and 64 hex digits"
                )
            keys.add(digest)
        if not keys:
            raise InvalidValue("allow_list", str(path), "holds no key; write one a line")
        return cls(kind=EnrolmentKind.ALLOW_LIST, allow_list=frozenset(keys))

    def admits(self, credential: str | None) -> str | None:
        """Return the sha256 of a listed key; None if enrolment is open or the secret is right.

        Raises NotAdmitted otherwise. Neither result nor duration reveals how close a guess was.
        """
        if self.kind is EnrolmentKind.OPEN:
            return None
        if credential is None:
            raise NotAdmitted("this service enrols only with a credential; send it as Bearer")
        digest = digest_of(credential)
        if self.secret is not None:
            if hmac.compare_digest(digest, digest_of(self.secret)):
                return None
        elif digest in self.allow_list:
            return digest
        raise NotAdmitted("this credential does not enrol here; ask the operator for one")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that an operator decides about a worker process."""

    store: str = field(repr=False)  # may hold a password; see redacted_store
    enrolment: Enrolment
    operator_token: str = field(repr=False)
    limits: Limits = field(default_factory=Limits)
    folder: Path = Path()
    witness: Path | None = None
    log_file: Path | None = None
    public_url: str | None = None
    trusted_proxies: tuple[str, ...] = ()
    plan: bool = True

    def __post_init__(self) -> None:
        validate.one_of(Enrolment, enrolment=self.enrolment)
        validate.one_of(Limits, limits=self.limits)
        validate.one_of(Path, folder=self.folder)
        validate.one_of((Path, type(None)), witness=self.witness, log_file=self.log_file)
        validate.one_of(bool, plan=self.plan)
        _require_store(self.store)
        _require_secret("operator_token", self.operator_token)
        for proxy in self.trusted_proxies:
            _require_network(proxy)
        if self.public_url is not None and not re.fullmatch(
            r"https?://[^\s/@?#]+(/[^\s@?#]*)?", self.public_url
        ):
            raise InvalidValue(
                "public_url",
                redacted_url(self.public_url),
                "must look like https://host:port, without user, query or fragment",
            )

    @property
    def redacted_store(self) -> str:
        """The address of the store without its password."""
        return redacted_url(self.store)

    def is_operator(self, credential: str | None) -> bool:
        """Return whether this is the operator's token, compared in constant time."""
        if credential is None:
            return False
        return hmac.compare_digest(digest_of(credential), digest_of(self.operator_token))

    def to_json(self) -> str:
        """Return all settings as JSON, secrets included, for the pipe to a worker process.

        A long allow-list does not fit into an environment variable (128 KiB on Linux).
        """
        plain = asdict(self)
        plain["enrolment"]["allow_list"] = sorted(self.enrolment.allow_list)
        return json.dumps(plain, default=str)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the settings that ``to_json`` wrote."""
        try:
            plain = json.loads(text)
        except ValueError:
            plain = None
        values = _known(cls, "settings", plain)
        enrolment = _known(Enrolment, "settings.enrolment", values.get("enrolment"))
        limits = Limits(**_known(Limits, "settings.limits", values.get("limits", {})))
        for name in ("folder", "witness", "log_file"):
            if values.get(name) is not None:
                values[name] = Path(str(values[name]))
        try:
            kind = EnrolmentKind(enrolment.pop("kind", ""))
            keys = frozenset(enrolment.pop("allow_list", ()))
            values["trusted_proxies"] = tuple(values.get("trusted_proxies", ()))
            values["enrolment"] = Enrolment(kind=kind, allow_list=keys, **enrolment)
            return cls(**{**values, "limits": limits})
        except InvalidValue:
            raise
        except (TypeError, ValueError):
            raise InvalidValue("settings", HIDDEN, "must be what Settings.to_json wrote") from None


def digest_of(credential: str) -> str:
    """Return the sha256 of a credential in hex: all that is stored or compared of it."""
    return hashlib.sha256(credential.encode("utf-8", "surrogatepass")).hexdigest()


def read_secret(path: Path, *, name: str) -> str:
    """Return the secret in a file, which must be its only line."""
    lines = [line for line in _lines(path, name=name) if line]
    if len(lines) != 1:
        raise InvalidValue(name, str(path), f"must hold one line, the secret; {_MAKE_ONE}")
    _require_secret(name, lines[0])
    return lines[0]


def redacted_url(url: str) -> str:
    """Return an address without its password; a text that is no address is hidden completely.

    >>> redacted_url("postgresql://ann:p@ss/word@db.example/checkins?sslmode=require")
    'postgresql://ann:***@db.example/checkins?sslmode=require'
    """
    scheme, separator, rest = url.partition("://")
    if not separator or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        return HIDDEN if re.search(r"[=@]", url) else url
    credentials, at, place = rest.rpartition("@")
    if at and scheme != "sqlite":
        user, colon, _ = credentials.partition(":")
        rest = f"{user}{colon and ':***'}@{place}"
    body, mark, query = rest.partition("?")
    return f"{scheme}://{body}{mark}" + _SECRET_OPTION.sub(r"\1=***", query)


def _require_secret(name: str, secret: object) -> None:
    if not isinstance(secret, str) or not _VISIBLE.fullmatch(secret) or len(secret) < LEAST_SECRET:
        raise InvalidValue(
            name,
            HIDDEN,
            f"must be at least {LEAST_SECRET} visible ASCII characters without spaces; {_MAKE_ONE}",
        )


def _require_network(proxy: str) -> None:
    try:
        ipaddress.ip_network(proxy, strict=False)
    except ValueError:
        raise InvalidValue(
            "trusted_proxies", proxy, "must be an address or a network such as 10.0.0.0/8"
        ) from None


def _require_store(store: object) -> None:
    if not isinstance(store, str):
        raise InvalidValue("store", HIDDEN, "must be a text such as sqlite:///checkins.db")
    if re.fullmatch(r"sqlite:///[^?#\s][^?#]*", store) and store != "sqlite:///:memory:":
        return
    if re.fullmatch(r"postgresql://[^\s/]*/[^\s/]+", store.partition("?")[0]):
        return
    raise InvalidValue(
        "store",
        redacted_url(store),
        "must be sqlite:///FILE.db or postgresql://USER:PASSWORD@HOST/DATABASE;"
        " a store in memory or another database cannot keep what was promised",
    )


def _lines(path: Path, *, name: str) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise InvalidValue(name, str(path), "must be a text file that can be read") from None
    return [re.sub(r"(^|\s)#.*", "", line).strip() for line in text.splitlines()]


def _known(kind: type, name: str, plain: object) -> dict[str, Any]:
    if not isinstance(plain, Mapping):
        raise InvalidValue(name, HIDDEN, "must be a JSON object that Settings.to_json wrote")
    known = {each.name for each in fields(cast(Any, kind))}
    if unknown := sorted(set(plain) - known):
        raise InvalidValue(name, unknown[0], f"is no setting; known are {', '.join(sorted(known))}")
    return dict(plain)
