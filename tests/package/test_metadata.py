"""What the project says about itself: citation, policies, addresses, workflows."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import checkins
from tests.architecture.test_repository import HOME, PAPER, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTIONS = {
    "actions/checkout",
    "actions/download-artifact",
    "actions/setup-python",
    "actions/upload-artifact",
    "pypa/gh-action-pypi-publish",
}
TARGETS = set(
    re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
)


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def citation() -> dict[str, Any]:
    return yaml.safe_load(text("CITATION.cff"))


def test_the_citation_names_this_version_and_the_paper() -> None:
    cited = citation()
    assert cited["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "type"} <= cited.keys()
    assert cited["version"] == checkins.__version__
    assert cited["license"] == PROJECT["license"]
    assert cited["repository-code"] == cited["url"] == HOME
    paper = cited["preferred-citation"]
    assert (paper["type"], paper["year"], paper["url"]) == ("conference-paper", 2020, PAPER)
    assert paper["title"] == "Privacy Amplification via Random Check-Ins"


def test_the_authors_of_the_paper_are_those_of_the_references() -> None:
    entry = text("docs/references.bib").split("{BKMTT20,")[1].split("\n}")[0]
    listed = re.search(r"author\s*= \{(.*)\}", entry)[1].split(" and ")
    authors = citation()["preferred-citation"]["authors"]
    assert [f"{each['family-names']}, {each['given-names']}" for each in authors] == listed


def test_urls_name_files_that_exist() -> None:
    for url in PROJECT["urls"].values():
        if "/blob/main/" in url:
            assert (ROOT / url.split("/blob/main/")[1]).is_file(), url
    assert {"Homepage", "Documentation", "Source", "Issues", "Changelog"} <= PROJECT["urls"].keys()


def test_the_classifiers_name_the_oldest_python() -> None:
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert f"Programming Language :: Python :: {oldest}" in PROJECT["classifiers"]


def test_the_security_policy_says_how_to_report_and_has_a_threat_model_of_ten_lines() -> None:
    policy = text("SECURITY.md")
    assert f"<{HOME}>" in policy
    assert re.findall(r"^## (.*)$", policy, re.MULTILINE) == [
        "Report a problem",
        "What we promise",
        "Threat model",
    ]
    numbers = re.findall(r"^(\d+)\. ", policy.split("## Threat model")[1], re.MULTILINE)
    assert numbers == [str(number) for number in range(1, 11)]


def test_every_policy_is_linked_from_the_readme_or_the_index() -> None:
    pages = text("README.md") + text("docs/index.md")
    for name in ("SECURITY.md", "CITATION.cff", "CODE_OF_CONDUCT.md", "versions.md"):
        assert f"{name})" in pages, name


@pytest.fixture(params=WORKFLOWS, ids=lambda path: path.stem)
def workflow(request: pytest.FixtureRequest) -> dict[Any, Any]:
    path: Path = request.param
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def steps(workflow: dict[Any, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_workflows_are_those_of_ci_and_of_releases() -> None:
    assert [path.stem for path in WORKFLOWS] == ["ci", "release"]


def test_a_workflow_has_a_trigger_jobs_and_few_permissions(workflow: dict[Any, Any]) -> None:
    assert workflow[True], "on: is read as true by YAML"
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert job["runs-on"], name
        assert job["timeout-minutes"] > 0, name


def test_a_workflow_runs_targets_of_the_makefile(workflow: dict[Any, Any]) -> None:
    commands = [step["run"] for step in steps(workflow) if "run" in step]
    assert any(command.startswith("make ") for command in commands)
    for command in commands:
        if command.startswith("gh release create "):
            continue  # what no laptop does
        target = re.fullmatch(r'make ([a-z]+)(?: [A-Z]+="?[\w$]+"?)?', command)
        assert target, command
        assert target[1] in TARGETS, command


def test_a_workflow_uses_known_actions_of_one_version(workflow: dict[Any, Any]) -> None:
    for step in steps(workflow):
        if "uses" in step:
            action, _, version = step["uses"].partition("@")
            assert action in ACTIONS, action
            assert version, action


def test_ci_tests_every_change_and_soaks_every_week() -> None:
    ci = yaml.safe_load(text(".github/workflows/ci.yml"))
    assert {"push", "pull_request", "schedule"} <= ci[True].keys()
    runs = {name: [step.get("run") for step in job["steps"]] for name, job in ci["jobs"].items()}
    assert "make test" in runs["test"]
    assert "make soak" in runs["soak"]


def test_only_the_job_that_publishes_gets_an_identity_and_no_job_a_password() -> None:
    release = yaml.safe_load(text(".github/workflows/release.yml"))
    assert "secrets." not in text(".github/workflows/release.yml")
    jobs = release["jobs"]
    assert [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})] == [
        "publish"
    ]
    assert jobs["publish"]["needs"] == "build"
    assert jobs["publish"]["environment"]["name"] == "pypi"
    build = [step.get("run") for step in jobs["build"]["steps"]]
    assert build.index("make test") < build.index("make package")
    assert 'make tagged TAG="$GITHUB_REF_NAME"' in build
