"""Import optional packages when they are used, with an error that says how to install them."""

from __future__ import annotations

import importlib
from typing import Any

from checkins.errors import InvalidValue


def package(name: str, *, extra: str, wanted_by: str, setting: str = "data") -> Any:
    """Return the module ``name``, or raise an error that says how to install it.

    ``setting`` is the name of the setting that needs the package, and ``wanted_by`` its value.

    >>> package("no_such_package", extra="data", wanted_by="patients")
    Traceback (most recent call last):
        ...
    checkins.errors.InvalidValue: data = 'patients': needs no_such_package, ... 'checkins[data]'
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing = error.name or name
        why = f"needs {missing}, which is not installed: pip install 'checkins[{extra}]'"
        raise InvalidValue(setting, wanted_by, why) from error
