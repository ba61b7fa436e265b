"""Virtual environments of other packages, which are installed from their pins."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parent / "out" / "bench"


def environment(peer: str) -> Path:
    """Return the Python of a peer's virtual environment. Create it from its pins if needed."""
    pins, folder = HERE / "peers" / f"{peer}.txt", ENVIRONMENTS / peer
    python, stamp = folder / "bin" / "python", folder / "pins"
    wanted = hashlib.sha256(pins.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        subprocess.run([*install, "-r", str(pins)], check=True)
        stamp.write_text(wanted)
    return python
