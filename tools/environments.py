"""Fresh virtual environments, into which a wheel of this package is installed with its extras."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
UNREACHABLE = re.compile(r"Could not fetch URL \S+: connection error")
"""What pip logs if it cannot connect to the package index."""
LIST_PACKAGES = """
from importlib.metadata import distributions
print(*sorted({each.metadata["Name"].lower() for each in distributions()}))
"""


class Offline(Exception):
    """The package index cannot be reached."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment without pip. The pip of this process installs packages into it."""

    folder: Path

    @classmethod
    def create(cls, folder: Path) -> Environment:
        """Create an empty environment in ``folder``."""
        command = [sys.executable, "-m", "venv", "--without-pip", "--clear", str(folder)]
        subprocess.run(command, check=True)
        return cls(folder)

    def program(self, name: str) -> str:
        """Return the path of a program of the environment, such as ``python``."""
        return str(self.folder / "bin" / name)

    def install(self, *requirements: str, constraints: Path | None = None) -> None:
        """Install packages. Raise ``Offline`` if the package index cannot be reached."""
        pins = () if constraints is None else ("-c", str(constraints))
        program = self.program("python")
        command = [*PIP, "--python", program, "install", "-vv", *pins, *requirements]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            if UNREACHABLE.search(done.stdout):
                raise Offline("pip cannot reach the package index")
            raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")

    def run(self, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, away from the repository's sources."""
        words = [self.program(command[0]), *command[1:]]
        how = {"cwd": self.folder, "capture_output": True, "text": True, **options}
        return subprocess.run(words, check=False, **how)

    def packages(self) -> list[str]:
        """Return the names of all installed packages."""
        return self.run("python", "-c", LIST_PACKAGES).stdout.split()


def build(target: str, folder: Path, *, source: Path = ROOT) -> Path:
    """Build the ``wheel`` or the ``sdist`` of the sources; return the file in ``folder``."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    suffix = {"wheel": "*.whl", "sdist": "*.tar.gz"}[target]
    [built] = folder.glob(suffix)
    return built
