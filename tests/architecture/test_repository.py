"""What may be in the repository, and what may not."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import checkins

ROOT = Path(__file__).resolve().parents[2]
LARGEST_BYTES = 1_000_000
HOME = "https://github.com/checkins-dp/checkins"
"""The public home of the project, which metadata, citation and security policy name."""
PAPER = "https://arxiv.org/abs/2007.06605"
LOCK_FILES = {
    "Pipfile.lock",
    "package-lock.json",
    "pdm.lock",
    "poetry.lock",
    "pylock.toml",
    "uv.lock",
    "yarn.lock",
}
# Written so that no pattern matches itself.
PACKAGE_ADDRESS = re.compile(
    r"(?:extra-)?index[-_]url\b|find-links\b|--trusted-hos[t]"
    r"|https?://\S*(?:/simple\b|pythonhosted|registry\.)|\"resolved\": *\"http",
    re.IGNORECASE,
)
MACHINE_PATH = re.compile(r"(?<![\w.~<{$-])/(?:work|root|home|Users)/\w")


CONSTRAINTS = sorted((ROOT / "constraints").glob("*.txt"))


def plain(name: str) -> str:
    """A distribution's name as the package index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(file: str) -> dict[str, str]:
    """The versions in a file of ``constraints``, by the name of the distribution."""
    text = (ROOT / "constraints" / f"{file}.txt").read_text(encoding="utf-8")
    return {plain(name): it for name, it in re.findall(r"^([\w.-]+)==(.+)$", text, re.MULTILINE)}


def distributions_of(extra: str) -> set[str]:
    """What an extra installs directly, with the base and the extras of ours that it contains."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found, waiting = set(), [*project["dependencies"], f"checkins[{extra}]"]
    while waiting:
        name, extras = re.match(r"([\w.-]+)(?:\[([\w,-]+)\])?", waiting.pop()).groups()
        if name != "checkins":
            found.add(plain(name))
        elif extras:
            waiting += [
                requirement
                for each in extras.split(",")
                for requirement in project["optional-dependencies"][each]
            ]
    return found


def repository_files() -> list[Path]:
    """Tracked files, and those that would be tracked by the next `git add`."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    return [ROOT / name for name in listed if name and (ROOT / name).is_file()]


def text_files() -> dict[str, str]:
    contents = {str(path.relative_to(ROOT)): path.read_bytes() for path in repository_files()}
    return {
        name: content.decode("utf-8") for name, content in contents.items() if b"\0" not in content
    }


def matches(pattern: re.Pattern[str]) -> list[str]:
    this = str(Path(__file__).relative_to(ROOT))
    return [
        f"{name}: {found[0]}"
        for name, text in text_files().items()
        if name != this
        for found in pattern.finditer(text)
    ]


def test_no_file_says_where_packages_are_downloaded_from() -> None:
    assert matches(PACKAGE_ADDRESS) == []


@pytest.mark.parametrize(
    "name", ["Makefile", ".ci/run", *(f"constraints/{path.name}" for path in CONSTRAINTS)]
)
def test_what_installs_packages_holds_no_address(name: str) -> None:
    assert "://" not in (ROOT / name).read_text(encoding="utf-8")


def test_only_the_urls_of_the_project_are_addresses_in_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    urls = project["project"].pop("urls")
    assert "://" not in repr(project)
    assert all(url.startswith((HOME, PAPER)) for url in urls.values())


def test_no_file_holds_a_path_of_one_machine() -> None:
    assert matches(MACHINE_PATH) == []


def test_no_file_is_large() -> None:
    large = [path for path in repository_files() if path.stat().st_size > LARGEST_BYTES]
    assert large == []


def test_there_is_no_lock_file() -> None:
    assert [path for path in repository_files() if path.name in LOCK_FILES] == []


@pytest.mark.parametrize("file", CONSTRAINTS, ids=lambda path: path.stem)
def test_constraints_are_plain_pins(file: Path) -> None:
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line]
    assert [line for line in lines if not re.match(r"#|[\w.-]+==[\w.+!]+$", line)] == []
    assert pins(file.stem)


@pytest.mark.parametrize(
    ("file", "extra"),
    [("dev", "dev"), ("all", "all"), ("flower", "dev-flower"), ("dev", "bench")],
)
def test_every_dependency_of_an_environment_is_pinned(file: str, extra: str) -> None:
    assert distributions_of(extra) - pins(file).keys() == set()


def test_pins_agree() -> None:
    """Users and contributors get the same versions. Flower needs older ones."""
    dev, everything = pins("dev"), pins("all")
    different = {name for name in dev.keys() & everything.keys() if dev[name] != everything[name]}
    assert different == set()


def test_the_version_is_written_once_in_effect() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == checkins.__version__


def test_the_changelog_has_a_heading_for_guarantees() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    unreleased = text.split("## [Unreleased]")[1].split("\n## ")[0]
    headings = re.findall(r"^### (\w+)$", unreleased, re.MULTILINE)
    assert headings == ["Added", "Changed", "Fixed", "Guarantees"]


@pytest.mark.parametrize("name", [".ci/run", "hooks/pre-commit"])
def test_scripts_are_executable(name: str) -> None:
    assert os.access(ROOT / name, os.X_OK)
