"""Settings of a service: its store, who may enrol, and its limits.

Secrets are the operator's token, the enrolment secret and the password in the store's URL. They are
never part of a ``repr`` or an error message. Only ``Settings.to_json`` contains them.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ClassVar, Self

from pydantic import ConfigDict, TypeAdapter, ValidationError

from checkins import validate
from checkins.errors import InvalidValue
from checkins.service.authentication import HIDDEN, require_secret
from checkins.service.authentication import Enrolment as Enrolment
from checkins.service.authentication import EnrolmentKind as EnrolmentKind

KIB = 1024
_SECRET_QUERY_OPTION = re.compile(r"(?i)([^&=?]*(?:pass|secret|token|key)[^&=?]*)=[^&]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one worker process. Each process counts only its own requests and connections.

    ``body`` and ``head`` are the body and the head (request line and headers) of a request. The
    value 0 for ``requests_per_s``, ``connections`` or ``per_address`` means no limit.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")
    body_bytes: int = 16 * KIB
    campaign_bytes: int = 200_000  # size of a campaign file that the operator uploads
    head_bytes: int = 32 * KIB
    requests_per_s: float = 1000.0  # average rate of one address
    burst: int = 5000  # requests that one address may send at once
    connections: int = 15_000
    per_address: int = 1000  # connections of one address, or of one IPv6 /64
    listeners: int = 2000  # open event streams
    head_s: float = 10.0
    body_s: float = 10.0
    answer_s: float = 60.0  # time between two checks that a client is reading its response
    waiting_s: float = 60.0  # duration of the longest long poll

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name == "requests_per_s":
                validate.non_negative(**{name: value})
            elif name.endswith("_s"):
                validate.positive(**{name: value})
            elif name not in ("connections", "per_address") or value is False or value != 0:
                validate.count(**{name: value})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of a worker process, which the operator decides.

    ``folder`` is the folder of the campaign file, from which paths in it are resolved.
    ``progress_file`` is a file outside the store that detects a store restored from an old backup;
    None disables this check. If ``log_file`` is None, logs go to standard error.
    ``trusted_proxies`` are addresses or networks. ``plan`` turns the planner's page and route on.
    ``tls_cert`` and ``tls_key`` are PEM files; None means plain HTTP. ``signing_key`` is the file
    of the key that signs heads of ledgers; None means that nothing is signed.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")
    store: str = field(repr=False)  # may contain a password; see redacted_store
    enrolment: Enrolment
    operator_token: str = field(repr=False)
    limits: Limits = field(default_factory=Limits)
    folder: Path = Path()
    progress_file: Path | None = None
    log_file: Path | None = None
    public_url: str | None = None
    trusted_proxies: tuple[str, ...] = ()
    plan: bool = True
    tls_cert: Path | None = None
    tls_key: Path | None = None
    signing_key: Path | None = None

    def __post_init__(self) -> None:
        validate.one_of(Enrolment, enrolment=self.enrolment)
        validate.one_of(Limits, limits=self.limits)
        validate.one_of(Path, folder=self.folder)
        validate.one_of(
            (Path, type(None)), progress_file=self.progress_file, log_file=self.log_file
        )
        validate.one_of(bool, plan=self.plan)
        validate.one_of(
            (Path, type(None)),
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
            signing_key=self.signing_key,
        )
        if (self.tls_cert is None) != (self.tls_key is None):
            given, missing = ("tls_cert", "tls_key") if self.tls_cert else ("tls_key", "tls_cert")
            raise InvalidValue(missing, None, f"must be given together with {given}")
        _require_store(self.store)
        require_secret("operator_token", self.operator_token)
        for proxy in self.trusted_proxies:
            proxy_network(proxy)
        url = self.public_url
        if url is not None and not re.fullmatch(r"https?://[^\s/@?#]+(/[^\s@?#]*)?", url):
            expected = "must look like https://host:port, without user, query or fragment"
            raise InvalidValue("public_url", redacted_url(url), expected)

    @property
    def redacted_store(self) -> str:
        """The URL of the store without its password."""
        return redacted_url(self.store)

    def to_json(self) -> str:
        """Return all settings, including secrets, as JSON for the pipe to a worker process.

        A pipe is used because a long allow-list does not fit into an environment variable.
        """
        return TypeAdapter(Settings).dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the settings that ``to_json`` wrote."""
        try:
            return TypeAdapter(cls).validate_json(text)
        except ValidationError:  # its message may contain secrets
            raise InvalidValue("settings", HIDDEN, "must be what Settings.to_json wrote") from None


def redacted_url(url: str) -> str:
    """Return a URL with its password replaced by ``***``.

    A text that is not a URL is hidden if it contains = or @, because it may contain a password.

    >>> redacted_url("postgresql://ann:p@ss/word@db.example/checkins?sslmode=require")
    'postgresql://ann:***@db.example/checkins?sslmode=require'
    """
    scheme, separator, rest = url.partition("://")
    if not separator or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        return HIDDEN if re.search(r"[=@]", url) else url
    credentials, at_sign, host_and_path = rest.rpartition("@")
    if at_sign and scheme != "sqlite":
        user, colon, _ = credentials.partition(":")
        rest = f"{user}{colon and ':***'}@{host_and_path}"
    before_query, question_mark, query = rest.partition("?")
    redacted_query = _SECRET_QUERY_OPTION.sub(r"\1=***", query)
    return f"{scheme}://{before_query}{question_mark}{redacted_query}"


def proxy_network(proxy: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """Return the network of a trusted proxy. A single address is a network of one address."""
    try:
        return ipaddress.ip_network(proxy, strict=False)
    except ValueError:
        expected = "must be an address or a network such as 10.0.0.0/8"
        raise InvalidValue("trusted_proxies", proxy, expected) from None


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
        " a store in memory, or another database, is not durable",
    )
