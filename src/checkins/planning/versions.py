"""Which versions computed a plan."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version


def versions() -> dict[str, str]:
    """Of Python and of what the numbers come from."""
    found = {"python": platform.python_version()}
    for package in ("checkins", "numpy", "scipy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found
