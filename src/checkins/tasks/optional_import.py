"""Packages that not every install has: imported where they are used, or named with the remedy."""

from __future__ import annotations

import importlib
from typing import Any

from checkins.errors import InvalidValue


def package(name: str, *, extra: str, wanted_by: str, setting: str = "data") -> Any:
    """The module ``name``, or an error that says how to get it; ``setting`` is what asked for it.

    >>> package("no_such_package", extra="data", wanted_by="patients")
    Traceback (most recent call last):
        ...
    checkins.errors.InvalidValue: data = 'patients': needs no_such_package, ... 'checkins[data]'
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing = error.name or name
        raise InvalidValue(
            setting,
            wanted_by,
            f"needs {missing}, which is not installed: pip install 'checkins[{extra}]'",
        ) from error
