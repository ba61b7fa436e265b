"""TLS on real sockets: what a coordinator presents, what devices trust, and renewal."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from checkins.client import fetch_campaign
from checkins.errors import InvalidValue
from checkins.service.http.tls import Certificate, loop_factory
from checkins.service.settings import Enrolment, Settings
from tests.support.campaigns import campaign_text, long_campaign, write_campaign
from tests.support.certificates import write_certificate
from tests.support.coordinator import OPERATOR, Coordinator, serving
from tests.support.program import refused
from tests.support.waiting import wait_until


def presented(address: tuple[str, int]) -> str:
    """The certificate that a new connection gets."""
    return ssl.get_server_certificate(address)


def test_devices_and_verifiers_trust_only_the_named_authority(
    tmp_path: Path, checkins: Callable[..., Any]
) -> None:
    files, other = write_certificate(tmp_path), write_certificate(tmp_path, name="other")
    text = campaign_text(slots=3, slot_s=1.0, choose_s=0.4)
    with serving(tmp_path, text, *files.options) as served:
        url = str(served.told["url"])
        assert url.startswith("https://")
        ca = ("--ca", files.cert)
        for command in (
            ("verify", url),
            ("export", url, "--out", tmp_path / "model.npz"),
            ("swarm", url, "--clients", 3, "--reuse-clients", "--json"),
        ):
            outcome = checkins(*command, *ca)
            assert (outcome.code, outcome.err) == (0, ""), command
        assert json.loads(outcome.out)["failed"] == 0
        for untrusted in (("verify", url), ("join", url, "--row", "1", "--state", tmp_path / "s")):
            refused(checkins(*untrusted), says="its certificate is not trusted; --ca FILE names")
        refused(checkins("verify", url, "--ca", other.cert), says="--ca FILE")
        refused(checkins("verify", url, "--ca", tmp_path), says="--ca")
        refused(checkins("verify", url, "--ca", files.key), says="PEM")
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            fetch_campaign(url, retry_timeout_s=0.0)
        with socket.create_connection(served.address, 10) as plain:
            plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"HTTP/1.1" not in plain.recv(100)


def test_a_renewed_certificate_is_presented_after_a_signal(tmp_path: Path) -> None:
    files = write_certificate(tmp_path)
    with serving(tmp_path, long_campaign("renewed"), *files.options) as served:
        before = presented(served.address)
        files.key.write_text("no key", encoding="ascii")
        served.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "certificate-refused" in served.log.read_text(), "it is refused")
        assert presented(served.address) == before
        renewed = write_certificate(tmp_path)
        served.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "certificate-loaded" in served.log.read_text(), "it is loaded")
        assert presented(served.address) == renewed.pem != before


def test_every_worker_presents_a_renewed_certificate(tmp_path: Path, postgres_url: str) -> None:
    files = write_certificate(tmp_path)
    file = write_campaign(tmp_path, long_campaign("several"))
    served = Coordinator(file, postgres_url, workers=2, start="now", more=files.options)
    with served.running():
        assert presented(served.address) == files.pem
        renewed = write_certificate(tmp_path)
        wait_until(lambda: served.log.read_text().count('"ready"') == 2, "both workers serve")
        served.process.send_signal(signal.SIGHUP)
        wait_until(
            lambda: served.log.read_text().count("certificate-loaded") == 2, "both have loaded it"
        )
        assert {presented(served.address) for _ in range(8)} == {renewed.pem}


def test_a_client_that_never_finishes_its_handshake_is_disconnected(tmp_path: Path) -> None:
    files = write_certificate(tmp_path)

    async def main() -> bytes:
        certificate = Certificate(files.cert, files.key)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0, ssl=certificate.context)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        received = await reader.read()
        writer.close()
        server.close()
        return received

    with asyncio.Runner(loop_factory=loop_factory(handshake_timeout_s=0.1)) as runner:
        assert runner.run(main()) == b""


def test_old_versions_of_tls_are_refused(tmp_path: Path) -> None:
    files = write_certificate(tmp_path)
    assert Certificate(files.cert, files.key).context.minimum_version is ssl.TLSVersion.TLSv1_2


def settings(**given: Any) -> Settings:
    return Settings(
        store="sqlite:///x.db", enrolment=Enrolment.open(), operator_token=OPERATOR, **given
    )


def test_files_that_are_no_certificate_or_no_key_are_refused_by_name(tmp_path: Path) -> None:
    files, other = write_certificate(tmp_path), write_certificate(tmp_path, name="other")
    locked = write_certificate(tmp_path, name="locked", password=b"a password")
    missing = tmp_path / "missing.pem"
    for cert, key, name in (
        (missing, files.key, "tls_cert"),
        (files.key, files.key, "tls_cert"),
        (files.cert, missing, "tls_key"),
        (files.cert, other.key, "tls_key"),
        (locked.cert, locked.key, "tls_key"),
    ):
        with pytest.raises(InvalidValue) as error:
            Certificate(cert, key)
        assert error.value.name == name
    with pytest.raises(InvalidValue, match="tls_key"):
        settings(tls_cert=files.cert)
    with pytest.raises(InvalidValue, match="tls_cert"):
        settings(tls_key=files.key)
    assert Certificate.of(settings()) is None


def test_the_expiry_is_that_of_the_certificate_in_use(tmp_path: Path) -> None:
    files = write_certificate(tmp_path, days=30)
    certificate = Certificate(files.cert, files.key)
    assert 29 <= (certificate.expires_at - datetime.now(UTC)).days <= 30
    write_certificate(tmp_path, days=60)
    certificate.reload()
    assert 59 <= (certificate.expires_at - datetime.now(UTC)).days <= 60
