"""Load the ClientApp that the owner of a device names, and read its configuration.

The app is code of the device's owner. A coordinator never names it. ``pyproject.toml`` of a Flower
app names its ClientApp and the defaults of its run config, in ``[tool.flwr.app]``.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from click import ClickException
from flwr.clientapp import ClientApp
from flwr.common.config import flatten_dict, fuse_dicts, parse_config_args
from flwr.supercore.object_ref import load_app

from checkins.errors import InvalidValue, first_line
from checkins.flower.records import Config, has_client_fn


def load_client_app(name: str) -> ClientApp:
    """Import the ClientApp ``module:object``, or the one of the Flower app in a folder.

    The module of ``module:object`` is searched for in the current folder, then in Python's path.
    """
    folder = app_folder(name)
    reference = name
    if Path(name).is_dir():
        reference = str(_declared(folder, "components").get("clientapp", ""))
    if ":" not in reference:
        expected = (
            'must be "module:object", or the folder of a Flower app whose pyproject.toml has'
            " [tool.flwr.app.components] with a clientapp"
        )
        raise InvalidValue("flower", name, expected)
    try:
        app = load_app(reference, ImportError, folder)
    except (Exception, SystemExit) as error:  # an app may call sys.exit
        reason = " ".join(first_line(error).split())
        raise InvalidValue("flower", name, f"cannot be imported: {reason}") from error
    check_client_app(app)
    return app


def check_client_app(app: object) -> None:
    """Raise unless ``app`` is a ClientApp that has a client_fn or a function of @app.train()."""
    if not isinstance(app, ClientApp):
        raise InvalidValue("flower", type(app).__name__, "must be a ClientApp of flwr.clientapp")
    if has_client_fn(app):
        return
    try:
        app.train()(_probe)  # refused if a function is registered already
    except ValueError:
        return
    raise InvalidValue("flower", "ClientApp", "has neither a client_fn nor an @app.train()")


def _probe(message: object, context: object) -> None:
    """Stand in for a train function of an app that has none and is refused."""


def app_folder(name: str) -> Path:
    """Return the folder that ``name`` is, or the current folder if it is ``module:object``."""
    return Path(name if Path(name).is_dir() else os.curdir).absolute()


def read_run_config(name: str, given: Config) -> dict[str, Any]:
    """Return the run config: the defaults of the app's pyproject.toml, replaced by ``given``.

    As in ``flwr run``, ``given`` may contain only keys of the defaults, if there are any.
    """
    try:
        defaults = flatten_dict(_declared(app_folder(name), "config"))
    except ValueError as error:
        raise InvalidValue("flower", name, f"has a wrong config: {error}") from error
    try:
        return fuse_dicts(defaults, dict(given)) if defaults else dict(given)
    except ValueError:
        unknown = ", ".join(sorted(set(given) - set(defaults)))
        expected = f"must contain only keys of the app's own config, which has no {unknown}"
        raise InvalidValue("run_config", dict(given), expected) from None


def parse_config(option: str, given: str | None) -> dict[str, Any]:
    """Parse a config as Flower's commands do: ``key=value`` pairs, or the name of a TOML file.

    >>> parse_config("node_config", 'partition-id=0 name="a b"')
    {'partition-id': 0, 'name': 'a b'}
    """
    if given is None:
        return {}
    try:
        values: dict[str, Any] = parse_config_args([given])
    except (ClickException, ValueError, OSError) as error:
        reason = getattr(error, "message", None) or str(error)
        raise InvalidValue(option, given, f"cannot be read: {reason}") from error
    if not values:
        raise InvalidValue(option, given, "must be a TOML file or pairs such as \"key=1 name='a'\"")
    return values


def _declared(folder: Path, table: str) -> dict[str, Any]:
    """Return a table of [tool.flwr.app] in the folder's pyproject.toml; empty if there is none."""
    path = folder / "pyproject.toml"
    try:
        project = tomllib.loads(path.read_text(encoding="utf-8"))
        return dict(project.get("tool", {}).get("flwr", {}).get("app", {}).get(table, {}))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise InvalidValue("flower", str(path), f"cannot be read: {error}") from error
