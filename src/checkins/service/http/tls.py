"""TLS of the coordinator: load its certificate, load a renewed one, and limit handshakes.

Each worker process loads the certificate itself. A renewed certificate replaces the old one for new
connections, without a restart; connections that are open keep theirs.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import uvloop
from cryptography import x509

from checkins.errors import InvalidValue
from checkins.service import logs
from checkins.service.settings import Settings

SHUTDOWN_TIMEOUT_S = 2.0
"""Seconds that a closing connection waits for the end of TLS of its client."""


class Certificate:
    """The certificate that a server presents, and the TLS context that contains it."""

    def __init__(self, cert: Path, key: Path) -> None:
        self._cert, self._key = cert, key
        self.expires_at = _expiry_of(cert)
        self.context = _new_context(cert, key)

    @classmethod
    def of(cls, settings: Settings) -> Certificate | None:
        """Return the certificate of the settings; None if the coordinator uses plain HTTP."""
        if settings.tls_cert is None or settings.tls_key is None:
            return None
        return cls(settings.tls_cert, settings.tls_key)

    def reload(self) -> None:
        """Load the files again, for new connections. If they are not valid, keep the old ones."""
        try:
            expires_at = _expiry_of(self._cert)
            _new_context(self._cert, self._key)  # a failure must not change the context in use
            self.context.load_cert_chain(self._cert, self._key, password=_no_password)
        except (InvalidValue, OSError) as error:
            logs.warning("certificate-refused")
            logs.failure(error)
            return
        self.expires_at = expires_at
        logs.event("certificate-loaded")


def _new_context(cert: Path, key: Path) -> ssl.SSLContext:
    """Return the context of a server. It accepts TLS 1.2 and newer, and asks for no certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except ssl.SSLError as error:
        expected = (
            f"must be the unencrypted private key, in PEM format, of the certificate in {cert}"
            f" ({error.reason or 'not valid'})"
        )
        raise InvalidValue("tls_key", str(key), expected) from None
    except OSError as error:
        raise InvalidValue("tls_key", str(key), f"cannot be read: {error.strerror}") from None
    return context


def _no_password() -> str:
    """Return no password, so that OpenSSL refuses an encrypted key and does not ask a terminal."""
    return ""


def _expiry_of(cert: Path) -> datetime:
    """Return when the first certificate in a PEM file expires."""
    try:
        return x509.load_pem_x509_certificate(cert.read_bytes()).not_valid_after_utc
    except OSError as error:
        raise InvalidValue("tls_cert", str(cert), f"cannot be read: {error.strerror}") from None
    except ValueError:
        expected = "must be a certificate in PEM format, followed by those that signed it"
        raise InvalidValue("tls_cert", str(cert), expected) from None


def loop_factory(*, handshake_timeout_s: float) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return a factory of event loops whose TLS servers limit the time of a handshake.

    uvicorn does not pass this limit on, and the default of a minute would let a client that sends
    nothing keep a connection that no other limit counts.
    """

    class TlsLoop(uvloop.Loop):
        async def create_server(self, *args: Any, **options: Any) -> Any:
            if options.get("ssl") is not None:
                options["ssl_handshake_timeout"] = handshake_timeout_s
                options["ssl_shutdown_timeout"] = SHUTDOWN_TIMEOUT_S
            return await super().create_server(*args, **options)

    return TlsLoop
