"""The environment of these tests has what `checkins[flower]` declares."""

from __future__ import annotations

import tomllib
from importlib.metadata import version
from pathlib import Path

from packaging.requirements import Requirement

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def test_the_installed_version_of_flower_is_one_that_is_declared() -> None:
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    requirements = map(Requirement, project["optional-dependencies"]["flower"])
    flower = next(one for one in requirements if one.name == "flwr")
    assert flower.specifier.contains(version("flwr"))
