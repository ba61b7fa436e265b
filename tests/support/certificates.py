"""Certificates for 127.0.0.1 and localhost, made in the test; each signs itself."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, slots=True)
class Files:
    """The PEM files of a certificate and its key."""

    cert: Path
    key: Path

    @property
    def options(self) -> tuple[str, ...]:
        """The options of `checkins serve` for them."""
        return "--tls-cert", str(self.cert), "--tls-key", str(self.key)

    @property
    def pem(self) -> str:
        return self.cert.read_text(encoding="ascii")


def write_certificate(
    folder: Path, *, name: str = "tls", days: int = 30, password: bytes | None = None
) -> Files:
    """Write NAME.pem and NAME.key, which replace what is there."""
    key = ec.generate_private_key(ec.SECP256R1())
    named = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "checkins test")])
    hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(named)
        .issuer_name(named)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = Files(folder / f"{name}.pem", folder / f"{name}.key")
    files.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password is not None:
        encryption = serialization.BestAvailableEncryption(password)
    files.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    )
    return files
