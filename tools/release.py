"""Build the files of a release, and describe and check the packages that it depends on.

python tools/release.py package          dist/: the sdist, the wheel, and `twine check --strict`
python tools/release.py tagged v1.2.3    check that this is the version of package and changelog
python tools/release.py sbom             dist/: the software bill of materials of `checkins[all]`
python tools/release.py vulnerabilities  known vulnerabilities of all pinned versions

The last two need a package index, and say so if it cannot be reached.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.environments import ROOT, Environment, Offline, build

DIST = ROOT / "dist"
CONSTRAINTS = ROOT / "constraints"
ENVIRONMENTS = ROOT / "build" / "release"
AUDITED = ("all.txt", "dev.txt", "flower.txt", "release.txt")
"""The files of pinned versions that are compared with known vulnerabilities."""
NO_DATABASE = "pip-audit cannot reach a database of vulnerabilities"
UNREACHABLE = ("ConnectionError", "Max retries exceeded", "Failed to establish", "timed out")
"""Texts in the errors of pip-audit that mean that there is no connection."""


class WrongTag(Exception):
    """The tag of a release is not the version that would be released."""


def package() -> None:
    """Build the sdist, and the wheel from the unpacked sdist, as an installer would build it."""
    shutil.rmtree(DIST, ignore_errors=True)
    sdist = build("sdist", DIST)
    with tempfile.TemporaryDirectory() as folder:
        shutil.unpack_archive(sdist, folder, filter="data")
        [source] = Path(folder).iterdir()
        wheel = build("wheel", DIST, source=source)
    twine = [sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel)]
    subprocess.run(twine, check=True)


def tagged(tag: str) -> None:
    """Raise unless ``tag`` names the version of the package, and the changelog has this version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if tag != f"v{project['version']}":
        raise WrongTag(f"the tag {tag!r} is not v{project['version']}, as in pyproject.toml")
    if f"\n## [{project['version']}]" not in changelog:
        raise WrongTag(f"CHANGELOG.md has no heading for {project['version']}")


def sbom() -> None:
    """Write the bill of materials of an environment with ``checkins[all]`` in pinned versions."""
    tools = _tools("cyclonedx-bom")
    with tempfile.TemporaryDirectory() as folder:
        wheel = build("wheel", Path(folder))
        environment = Environment.create(ENVIRONMENTS / "all")
        environment.install(f"{wheel}[all]", constraints=CONSTRAINTS / "all.txt")
    DIST.mkdir(exist_ok=True)
    file = DIST / f"{wheel.stem.rsplit('-', 3)[0]}.cdx.json"
    arguments = ("--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "library")
    written = ("--output-reproducible", "--output-file", str(file))
    done = tools.run(
        "cyclonedx-py", "environment", *arguments, *written, environment.program("python")
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    print(f"Wrote {file.relative_to(ROOT)}: {len(environment.packages())} packages.")


def vulnerabilities() -> None:
    """Print the known vulnerabilities of all pinned versions. Exit with 1 if there are any.

    A package about which the index knows nothing is a failure too, because it was not checked.
    """
    tools, problems = _tools("pip-audit"), 0
    for name in AUDITED:
        pins = ("-r", str(CONSTRAINTS / name), "--no-deps", "--disable-pip")
        done = tools.run("pip-audit", "--progress-spinner", "off", "--format", "json", *pins)
        if not done.stdout.startswith("{"):
            is_offline = any(text in done.stderr for text in UNREACHABLE)
            raise Offline(NO_DATABASE) if is_offline else RuntimeError(done.stderr)
        found = audit_findings(json.loads(done.stdout))
        problems += len(found)
        print("\n".join([f"constraints/{name}: {len(found)} problems", *found]))
    if problems:
        sys.exit(1)


def audit_findings(report: dict[str, Any]) -> list[str]:
    """Return a line for each vulnerability and each unknown package in a report of pip-audit.

    Raise ``Offline`` if the index knew nothing about any package, as a partial mirror does.
    """
    packages = report["dependencies"]
    unknown = [package for package in packages if "skip_reason" in package]
    if len(unknown) == len(packages):
        raise Offline(NO_DATABASE)
    return [
        *(f"  {package['name']}: not checked: {package['skip_reason']}" for package in unknown),
        *(
            f"  {package['name']} {package['version']}: {one['id']}, fixed in"
            f" {', '.join(one['fix_versions']) or 'no version'}"
            for package in packages
            for one in package.get("vulns", ())
        ),
    ]


def _tools(name: str) -> Environment:
    """Return an environment with one of the pinned tools of a release."""
    environment = Environment.create(ENVIRONMENTS / name)
    environment.install(name, constraints=CONSTRAINTS / "release.txt")
    return environment


COMMANDS = {
    "package": package,
    "tagged": tagged,
    "sbom": sbom,
    "vulnerabilities": vulnerabilities,
}


def main(arguments: list[str]) -> int:
    command, *values = arguments or [""]
    if command not in COMMANDS or len(values) != (command == "tagged"):
        print(f"usage: python tools/release.py {'|'.join(COMMANDS)}", file=sys.stderr)
        return 2
    try:
        COMMANDS[command](*values)
    except Offline as error:
        print(f"make {command}: offline, so nothing was checked: {error}", file=sys.stderr)
        return 1
    except WrongTag as error:
        print(f"make {command}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
