"""The files of a release: the wheel, and the sdist, which builds the same wheel and runs tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from hashlib import sha256
from pathlib import Path

import pytest

from tests.architecture.test_repository import HOME, ROOT, repository_files
from tests.package.test_metadata import PROJECT
from tests.support.program import run_python
from tools import release
from tools.environments import Offline, build

PART_OF_THE_SUITE = (
    "tests/accounting/test_design.py",
    "tests/package/test_metadata.py",
    "tests/protocol/test_slot.py",
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    return build("wheel", folder), build("sdist", folder)


@pytest.fixture(scope="module")
def unpacked(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the sdist contains."""
    folder = tmp_path_factory.mktemp("sdist")
    shutil.unpack_archive(built[1], folder, filter="data")
    [source] = folder.iterdir()
    return source


def contents(wheel: Path) -> dict[str, str]:
    with zipfile.ZipFile(wheel) as files:
        return {name: sha256(files.read(name)).hexdigest() for name in files.namelist()}


def test_twine_accepts_the_wheel_and_the_sdist(built: tuple[Path, Path]) -> None:
    done = run_python("-m", "twine", "check", "--strict", *built)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("PASSED") == 2


def test_the_wheel_has_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    sources = {
        str(path.relative_to(ROOT / "src"))
        for path in repository_files()
        if path.is_relative_to(ROOT / "src")
    }
    names = contents(built[0]).keys()
    client = "checkins/service/client.js"
    assert {name for name in names if ".dist-info/" not in name} == sources | {client}
    assert "checkins/py.typed" in names


def test_the_wheel_has_the_device_for_browsers(built: tuple[Path, Path]) -> None:
    wanted = sha256((ROOT / "clients" / "js" / "client.js").read_bytes()).hexdigest()
    assert contents(built[0])["checkins/service/client.js"] == wanted


def test_the_wheel_says_what_it_is(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as files:
        [name] = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = HeaderParser().parsestr(files.read(name).decode("utf-8"))
    assert metadata["Version"] == PROJECT["version"]
    assert metadata["License-Expression"] == "Apache-2.0"
    assert any(HOME in url for url in metadata.get_all("Project-URL") or ())
    needed = metadata.get_all("Requires-Dist") or []
    assert [each for each in needed if "extra ==" not in each] == ["numpy>=2.0"]
    assert set(metadata.get_all("Provides-Extra") or ()) == set(PROJECT["optional-dependencies"])


def test_the_sdist_has_every_file_of_the_repository(built: tuple[Path, Path]) -> None:
    ours = {str(path.relative_to(ROOT)) for path in repository_files()}
    with tarfile.open(built[1]) as archive:
        files = [member.name for member in archive.getmembers() if member.isfile()]
    theirs = {name.partition("/")[2] for name in files}
    assert ours - theirs == set()
    assert theirs - ours <= {"PKG-INFO"}


def test_the_sdist_builds_the_same_wheel(
    built: tuple[Path, Path], unpacked: Path, tmp_path: Path
) -> None:
    assert contents(build("wheel", tmp_path, source=unpacked)) == contents(built[0])


@pytest.mark.slow
def test_the_sdist_runs_the_tests(unpacked: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(unpacked / "src")}
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *PART_OF_THE_SUITE)
    done = run_python(*words, cwd=unpacked, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    where = "import checkins; print(checkins.__file__)"
    found = run_python("-c", where, cwd=unpacked, env=environment).stdout.strip()
    assert Path(found).is_relative_to(unpacked)


def test_a_tag_is_the_version_of_the_package_and_of_the_changelog() -> None:
    with pytest.raises(release.WrongTag, match=f"is not v{PROJECT['version']}"):
        release.tagged("v99.0.0")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if f"\n## [{PROJECT['version']}]" in changelog:
        release.tagged(f"v{PROJECT['version']}")
    else:
        with pytest.raises(release.WrongTag, match="no heading"):
            release.tagged(f"v{PROJECT['version']}")


def test_a_vulnerability_and_an_unknown_package_are_findings() -> None:
    report = {
        "dependencies": [
            {"name": "a", "version": "1.0", "vulns": []},
            {"name": "b", "version": "2.0", "vulns": [{"id": "X-1", "fix_versions": ["2.1"]}]},
            {"name": "c", "skip_reason": "not found"},
        ]
    }
    assert release.audit_findings(report) == [
        "  c: not checked: not found",
        "  b 2.0: X-1, fixed in 2.1",
    ]


def test_an_index_that_knows_nothing_is_no_audit() -> None:
    with pytest.raises(Offline):
        release.audit_findings({"dependencies": [{"name": "a", "skip_reason": "not found"}]})


def test_a_target_without_a_connection_says_so() -> None:
    """pip finds no index, because its proxy does not exist."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PIP_")},
        **dict.fromkeys(("https_proxy", "http_proxy", "all_proxy"), "http://127.0.0.1:9"),
        **{"PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1", "PIP_RETRIES": "0"},
        "no_proxy": "",
    }
    done = subprocess.run(
        [sys.executable, "tools/release.py", "vulnerabilities"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    offline = "offline, so nothing was checked: pip cannot reach the package index"
    assert (done.returncode, done.stderr) == (1, f"make vulnerabilities: {offline}\n")
