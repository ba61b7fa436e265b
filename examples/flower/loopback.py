"""Run the app on this machine: a SuperLink with TLS, five nodes behind their gates, and `flwr run`.

    python examples/flower/loopback.py FOLDER [SLOTS] [SLOT_S]

FOLDER receives certificates, keys, states, logs and the ledger. The campaign begins a minute after
the start, with SLOTS slots of SLOT_S seconds each: 3 slots of 120 seconds unless given, so that the
script takes about 7 minutes. A real deployment has the same parts, each on its own machine.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

APP = Path(__file__).parent
PROGRAMS = Path(sys.executable).parent
NODES = 5


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of all processes: Flower's files are in ``folder``, nobody is told."""
    path = os.pathsep.join((str(PROGRAMS), os.environ["PATH"]))
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    return {**os.environ, **quiet, "PATH": path, "FLWR_HOME": str(folder / "flwr")}


def write_certificate(folder: Path) -> None:
    """Write a certificate for 127.0.0.1 that signs itself, and its key: ca.pem and tls.key."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "loopback")])
    hosts = [x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost")]
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "ca.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    write_private_key(folder / "tls.key", key, serialization.PrivateFormat.PKCS8)


def write_private_key(
    path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat
) -> None:
    encoded = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    path.touch(mode=0o600)
    path.write_bytes(encoded)


def write_node_key(path: Path) -> None:
    """Write a key pair of a SuperNode, as ssh-keygen -t ecdsa -b 384 does."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_private_key(path, key, serialization.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    path.with_suffix(".pub").write_bytes(public + b"\n")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def copy_app(folder: Path, *, slots: int, slot_s: float, in_s: float) -> Path:
    """Copy the app, with a campaign that begins soon; return the campaign file."""
    app = shutil.copytree(APP, folder / "app", ignore=shutil.ignore_patterns("__pycache__"))
    file = app / "checkin_app" / "campaign.toml"
    start = (datetime.now(UTC) + timedelta(seconds=in_s)).isoformat(timespec="seconds")
    text = file.read_text(encoding="utf-8")
    for key, value in {
        "slots": slots,
        "epsilon": 4.0,  # a slot of few slots costs more
        "start": start.replace("+00:00", "Z"),
        "slot_s": slot_s,
        "choose_s": slot_s / 2,
    }.items():
        text = re.sub(rf"^{key} = \S+", f"{key} = {value}", text, flags=re.MULTILINE)
    file.write_text(text, encoding="utf-8")
    return file


class Loopback(ExitStack):
    """The processes of a deployment on this machine, which end with the ``with`` block."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.env, self.port = folder, environment(folder), free_port()

    def start(self, log: str, *words: object) -> subprocess.Popen[bytes]:
        """Start a process that writes to a log file in the folder."""
        file = self.enter_context((self.folder / log).open("ab"))
        process = subprocess.Popen(
            list(map(str, words)), env=self.env, stdout=file, stderr=subprocess.STDOUT
        )
        self.callback(process.wait)
        self.callback(process.terminate)
        return process

    def start_superlink(self) -> None:
        """Start a SuperLink with TLS that accepts registered nodes only, and wait for it."""
        write_certificate(self.folder)
        (self.folder / "flwr").mkdir()
        (self.folder / "flwr" / "config.toml").write_text(
            '[superlink]\ndefault = "loopback"\n\n[superlink.loopback]\n'
            f'address = "127.0.0.1:{self.port}"\nroot-certificates = "{self.folder / "ca.pem"}"\n'
        )
        process = self.start(
            "superlink.log",
            *(PROGRAMS / "flower-superlink", "--host", "127.0.0.1", "--port", self.port),
            *("--ssl-certfile", self.folder / "ca.pem", "--ssl-keyfile", self.folder / "tls.key"),
            *("--ssl-ca-certfile", self.folder / "ca.pem", "--enable-supernode-auth"),
            "--disable-runtime-dependency-installation",
        )
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1.0).close()
                return
            except OSError:
                if process.poll() is not None:
                    raise SystemExit("the SuperLink has ended: see superlink.log") from None
                time.sleep(0.5)

    def flwr(self, *words: str) -> None:
        """Run a command of Flower."""
        subprocess.run([PROGRAMS / "flwr", *words], check=True, env=self.env)

    def register(self, node: int) -> Path:
        """Make the key of a node, and register its public key; return the file of the key."""
        key = self.folder / f"node{node}"
        write_node_key(key)
        self.flwr("supernode", "register", str(key.with_suffix(".pub")), "loopback")
        return key

    def supernode_options(self, key: Path) -> list[str]:
        """Return the options with which a SuperNode finds the SuperLink."""
        return [
            *("--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port())),
            *("--root-certificates", str(self.folder / "ca.pem")),
            *("--auth-supernode-private-key", str(key)),
        ]


def print_slots(ledger: Path, slots: int) -> None:
    """Print each slot when the ledger has it. Return when the campaign is closed."""
    printed, kinds = 0, []
    while "closed" not in kinds:
        time.sleep(1.0)
        lines = ledger.read_bytes().split(b"\n")[:-1] if ledger.exists() else []
        kinds = [json.loads(line)["kind"] for line in lines]
        closed = kinds.count("slot-closed")
        for slot in range(printed + 1, closed + 1):
            print(f"slot {slot} of {slots} is over", flush=True)
        printed = closed


def main(folder: Path, slots: int, slot_s: float) -> None:
    """Run the campaign, and verify its ledger."""
    folder.mkdir(parents=True)
    with Loopback(folder) as loopback:
        loopback.start_superlink()
        keys = [loopback.register(node) for node in range(NODES)]
        campaign = copy_app(folder, slots=slots, slot_s=slot_s, in_s=60.0)
        ledger = folder / "server" / "ledger.jsonl"
        config = f"folder='{ledger.parent}'"
        loopback.flwr("run", str(folder / "app"), "loopback", "--run-config", config)
        gates = [
            loopback.start(
                f"{key.name}.log",
                *(PROGRAMS / "checkins", "flower-node", campaign),
                *("--superlink", f"127.0.0.1:{loopback.port}", "--ca", folder / "ca.pem"),
                *("--key", key, "--state", folder / f"state-{key.name}"),
                *("--port", free_port(), "--node-config", f"partition-id={node}"),
            )
            for node, key in enumerate(keys)
        ]
        print(f"The campaign begins in about a minute: {slots} slots of {slot_s:g} s.", flush=True)
        print_slots(ledger, slots)
        for key, gate in zip(keys, gates, strict=True):
            gate.wait()
            log = (folder / f"{key.name}.log").read_text(errors="replace")
            print(*(line for line in log.splitlines() if line.startswith("checkin-app:")))
        subprocess.run([PROGRAMS / "checkins", "verify", ledger, "--closed"], check=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    main(
        Path(sys.argv[1]).resolve(),
        int(sys.argv[2]) if len(sys.argv) > 2 else 3,
        float(sys.argv[3]) if len(sys.argv) > 3 else 120.0,
    )
