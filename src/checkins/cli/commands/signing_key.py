"""`checkins signing-key`: make the key with which a service signs the hashes of its ledgers."""

from __future__ import annotations

from pathlib import Path

from checkins.cli import params, terminal
from checkins.cli.errors import UsageError, printable
from checkins.cli.params import GivenOptions, options


@params.command(
    *options("""
    --out FILE  The key file to write. It must not exist. Required.
    --replaces FILE  Key file that the new key replaces. The old key signs a statement about this,
        so that those who trust the old key trust the new one.
    """),
    params.JSON_OPTION,
)
def signing_key(given: GivenOptions) -> None:
    """Make a key with which a service signs its ledgers.

    Give the file to `checkins serve --signing-key`, and publish the printed public key where the
    service cannot change it. Whoever has the public key can check ledgers with `checkins verify
    --key`. Whoever has the file can sign any ledger.
    """
    from checkins.ledger.signature import SigningKey

    path = Path(given.required("out", "must be a file that does not exist"))
    if path.exists():
        raise UsageError(f"--out {printable(str(path))}: exists already; name another file")
    replaced = None
    if "replaces" in given:
        with given.errors_as_option_errors():
            replaced = SigningKey.read(Path(given.texts["replaces"]), name="replaces")
    key = SigningKey.generate(replaced)
    key.write(path)
    if given.json:
        terminal.show_json(
            {"path": str(path), "key": key.public_key, "rotations": len(key.rotations)}
        )
        return
    terminal.show_plain(f"Wrote {path}. Only its owner can read it; keep a copy offline.")
    terminal.show_plain(f"Public key: {key.public_key}")
