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


@pytest.mark.parametrize("name", ["Makefile", "pyproject.toml", ".ci/run", "constraints/dev.txt"])
def test_what_installs_packages_holds_no_address(name: str) -> None:
    assert "://" not in (ROOT / name).read_text(encoding="utf-8")


def test_no_file_holds_a_path_of_one_machine() -> None:
    assert matches(MACHINE_PATH) == []


def test_no_file_is_large() -> None:
    large = [path for path in repository_files() if path.stat().st_size > LARGEST_BYTES]
    assert large == []


def test_there_is_no_lock_file() -> None:
    assert [path for path in repository_files() if path.name in LOCK_FILES] == []


def test_constraints_are_plain_pins() -> None:
    lines = (ROOT / "constraints" / "dev.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.+!]+", pin)] == []


def test_every_dependency_of_a_contributor_is_pinned() -> None:
    def plain(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = {plain(re.match(r"[\w.-]+", requirement)[0]) for requirement in wanted}
    text = (ROOT / "constraints" / "dev.txt").read_text(encoding="utf-8")
    pinned = {plain(name) for name in re.findall(r"^([\w.-]+)==", text, re.MULTILINE)}
    assert names - pinned == set()


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
