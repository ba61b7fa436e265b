"""Every kept figure says at which commit it was measured, and a change of its code is noticed."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from bench import gpu
from bench.__main__ import BENCHES, sections, text_of
from bench.measure import Section
from tools import figures
from tools.figure_list import FIGURES, RECORDS, RESULTS, Figure
from tools.measured import ROOT, VARIABLE, NoCommit, Record, commit_here, measuring
from tools.sources import NoSource, Sources, code_of

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SPEED = Figure("speed", "python -m bench speed", ("bench/speed.py",))
FILES = {
    "bench/speed.py": "from checkins.engine import Loop\n\ndef speed():\n    return Loop()\n",
    "src/checkins/__init__.py": '"""A package."""\n',
    "src/checkins/engine/__init__.py": (
        "from checkins.engine.loop import Loop\nfrom checkins.engine.page import Page\n"
    ),
    "src/checkins/engine/loop.py": "from .noise import draw\n\n\nclass Loop:\n    DRAW = draw\n",
    "src/checkins/engine/noise.py": "def draw():\n    import checkins.words\n    return 4\n",
    "src/checkins/engine/page.py": "class Page:\n    pass\n",
    "src/checkins/words.py": "HELLO = 'hello'\n",
}
MEASURED = {
    "bench/speed.py",
    "src/checkins/engine/loop.py",
    "src/checkins/engine/noise.py",
    "src/checkins/words.py",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with one figure, measured and shown."""
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    record = measuring(Sources(tmp_path).digests(SPEED.sources), commit=COMMIT, root=tmp_path)
    (tmp_path / RECORDS).write_text(json.dumps({"speed": record.as_json()}))
    shown = figures.line_of("speed", record)
    (tmp_path / RESULTS).write_text(f"# Figures\n\n## Speed\n\n| 4 |\n\n{shown}\n")
    return tmp_path


def edit(tree: Path, path: str, old: str, new: str) -> None:
    text = (tree / path).read_text()
    assert old in text
    (tree / path).write_text(text.replace(old, new))


def checked(tree: Path, figure: Figure = SPEED) -> figures.Findings:
    return figures.checked([figure], tree)


def test_what_a_figure_measures_is_all_that_it_imports_and_nothing_that_is_only_re_exported(
    tree: Path,
) -> None:
    assert set(Sources(tree).digests(SPEED.sources)) == MEASURED


def test_code_as_it_was_measured_is_not_told_of(tree: Path) -> None:
    found = checked(tree)
    assert (found.changed, found.wrong) == ([], [])
    assert found.unchanged == ["speed: measured at 0123456; nothing that it measures has changed"]


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("bench/speed.py", "Loop()", "Loop"),
        ("src/checkins/engine/loop.py", "DRAW = draw", "DRAW = draw()"),
        ("src/checkins/engine/noise.py", "4", "5"),
        ("src/checkins/words.py", "hello", "hullo"),
    ],
)
def test_a_change_of_a_measured_file_is_told_with_what_measures_it_again(
    tree: Path, path: str, old: str, new: str
) -> None:
    edit(tree, path, old, new)
    found = checked(tree)
    again = "run `python -m bench speed`"
    assert found.changed == [f"speed: measured at 0123456; {path} changed since: {again}"]
    assert (found.unchanged, found.wrong) == ([], [])


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("src/checkins/engine/page.py", "pass", "SIZE = 4"),
        ("src/checkins/engine/__init__.py", "import Page\n", "import Page\n\n__all__ = ['Page']\n"),
        ("src/checkins/engine/noise.py", "    return 4", '    """Fair."""\n\n    return 4  # dice'),
    ],
)
def test_a_change_of_other_files_or_of_comments_is_not(
    tree: Path, path: str, old: str, new: str
) -> None:
    edit(tree, path, old, new)
    assert checked(tree).changed == []


def test_a_file_that_is_imported_now_or_no_longer_is_a_change(tree: Path) -> None:
    edit(tree, "src/checkins/engine/noise.py", "checkins.words", "checkins.engine.page")
    (line,) = checked(tree).changed
    assert "src/checkins/engine/page.py" in line
    assert "src/checkins/words.py" in line


def test_a_package_that_holds_code_is_measured_with_its_modules(tree: Path) -> None:
    (tree / "src/checkins/engine/__init__.py").write_text("SEED = 1\n")
    (tree / "bench/speed.py").write_text("import checkins.engine.loop\n")
    assert "src/checkins/engine/__init__.py" in Sources(tree).digests(SPEED.sources)


def test_folders_that_are_imported_and_not_measured_are_left_out(tree: Path) -> None:
    kept = Sources(tree).digests(SPEED.sources, apart=("src/checkins/engine",))
    assert set(kept) == {"bench/speed.py", "src/checkins/words.py"}
    with pytest.raises(NoSource, match="nothing there is imported"):
        Sources(tree).digests(SPEED.sources, apart=("src/checkins/gone",))


def test_a_docstring_on_the_line_of_its_class_takes_no_code_with_it() -> None:
    assert code_of(b"class A: 'one'\nclass B: 'two'\n") == b"class A:\nclass B:"
    assert code_of("'é'; X = '#'  # é\n".encode()) == b"; X = '#'"


@pytest.mark.parametrize(
    ("held", "says"),
    [
        ({}, "no record"),
        ({"speed": {"files": {"a": "b"}}}, "no commit: None"),
        ({"speed": {"commit": "yesterday", "files": {"a": "b"}}}, "no commit: 'yesterday'"),
        ({"speed": {"commit": COMMIT}}, "no digests"),
    ],
)
def test_a_figure_without_its_commit_or_digests_is_an_error(
    tree: Path, held: object, says: str
) -> None:
    (tree / RECORDS).write_text(json.dumps(held))
    (line,) = checked(tree).wrong
    assert says in line
    assert "run `python -m bench speed`" in line


def test_a_table_that_shows_no_commit_or_another_is_an_error(tree: Path) -> None:
    edit(tree, RESULTS, "`0123456`", "`7654321`")
    assert checked(tree).wrong == [f"{RESULTS}: does not show speed with its commit 0123456"]
    edit(tree, RESULTS, "<!-- figure: speed -->", "")
    silent, table = checked(tree).wrong
    assert silent == f"{RESULTS}: does not show speed with its commit 0123456"
    assert "'Speed' does not say at which commit" in table


def test_a_table_or_a_kept_file_that_is_not_listed_is_an_error(tree: Path) -> None:
    (tree / "bench/other.json").write_text("{}")
    edit(tree, RESULTS, "## Speed", "Fast. <!-- figure: unheard-of -->\n\n## Speed")
    unknown, kept = checked(tree).wrong
    assert unknown == f"{RESULTS}: no figure unheard-of is listed"
    assert kept == "bench/other.json: kept, and not in tools/figure_list.py"


def test_a_source_that_is_gone_is_an_error(tree: Path) -> None:
    (line, *_) = checked(tree, replace(SPEED, sources=("bench/gone.py",))).wrong
    assert "bench/gone.py: no such file" in line


def test_a_changed_figure_fails_only_when_asked_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = figures.Findings(changed=["speed: ..."])
    monkeypatch.setattr(figures, "checked", lambda: found)
    assert figures.main(["--check"]) == 0
    assert "figures: speed: ..." in capsys.readouterr().out
    assert figures.main(["--strict"]) == 1
    found.wrong.append("no commit")
    assert figures.main(["--check"]) == 1


def test_the_commit_is_the_one_that_is_given_or_set_or_of_the_history_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(NoCommit, match=r"--commit or set CHECKINS_COMMIT"):
        commit_here(root=tmp_path)
    monkeypatch.setenv(VARIABLE, COMMIT)
    assert commit_here(root=tmp_path) == COMMIT
    assert commit_here("abcdef0", tmp_path) == "abcdef0"
    with pytest.raises(NoCommit, match="'main': must be 7 to 40 hexadecimal digits"):
        commit_here("main", tmp_path)


def test_changes_that_were_not_committed_are_told(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    git(tree, "init", "-q")
    git(tree, "add", ".")
    git(tree, "-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "-qm", "All")
    commit = commit_here(root=tree)
    files = Sources(tree).digests(SPEED.sources)
    assert (
        measuring(files, commit=commit, root=tree)
        .sentence()
        .startswith(f"Measured at `{commit[:7]}` (Python ")
    )
    edit(tree, "src/checkins/words.py", "hello", "hullo")
    edit(tree, "src/checkins/engine/page.py", "pass", "SIZE = 4")
    record = measuring(files, commit=commit, root=tree)
    assert record.uncommitted == ("src/checkins/words.py",)
    assert "with changes to a file that was not committed" in record.sentence()
    assert Record.of(json.loads(json.dumps(record.as_json()))) == record
    with pytest.raises(NoCommit):  # somebody else's repository around the files
        commit_here(root=tree / "src")


def git(tree: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=tree, check=True, capture_output=True)


def test_a_figure_measured_by_hand_is_recorded_and_shown(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_hand = Figure("by-hand", "python bench/speed.py", SPEED.sources, shown="docs/page.md")
    monkeypatch.setattr(figures, "FIGURES", (SPEED, by_hand))
    (tree / "docs").mkdir()
    page = tree / "docs/page.md"
    page.write_text("| 4 |\n\nNobody knows. <!-- figure: by-hand -->\n\nMore.\n")
    figures.recorded_by_hand("by-hand", COMMIT, tree)
    assert page.read_text().startswith("| 4 |\n\nMeasured at `0123456` (Python")
    assert page.read_text().endswith("<!-- figure: by-hand -->\n\nMore.\n")
    found = figures.checked([SPEED, by_hand], tree)
    assert (len(found.unchanged), found.wrong) == (2, [])
    with pytest.raises(KeyError, match="run `python -m bench speed`"):
        figures.recorded_by_hand("speed", COMMIT, tree)


def test_a_table_is_printed_with_its_commit_and_found_again_by_its_name() -> None:
    section = Section("Speed, 2 cores", "Fast.", True, ("a",), [["4"]])
    record = Record(COMMIT, {"a": "b"}, "Python 3")
    text = text_of("table", section, record)
    assert "\n\nMeasured at `0123456` (Python 3). <!-- figure: table -->\n" in text
    assert sections(f"# Figures\n\n{text}\n{text_of('pure', section, record)}") == {
        "table": text,
        "pure": text_of("pure", section, record),
    }


def test_a_table_of_a_kept_file_shows_the_commit_of_the_file() -> None:
    kept = figures.record_of(figures.by_name("on_device"))
    section = Section("GPU", "Fast.", True, ("a",), [["4"]], ("on_device",), measured_here=False)
    text = text_of("on_device", section, Record(COMMIT, {"a": "b"}))
    assert kept.mark in text
    assert "0123456" not in text


def test_every_bench_is_a_listed_figure_of_the_module_that_it_is_in() -> None:
    listed = {figure.name: figure for figure in FIGURES}
    for name, module in BENCHES.items():
        assert listed[name].shown == RESULTS
        source = (ROOT / "bench" / f"{module}.py").read_text()
        assert f"def {name}() -> Section:" in source
        assert name == "on_device" or f"bench/{module}.py" in listed[name].sources


def test_figures_of_a_machine_without_git_hold_the_commit_that_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "case", lambda per_slot, **_: {"per_slot": per_slot})
    arguments = ["gpu", "--quick", "--out", str(tmp_path), "--commit", COMMIT]
    monkeypatch.setattr("sys.argv", arguments)
    gpu.main()
    record = Record.of(json.loads((tmp_path / "gpu.json").read_text())["measured"])
    assert record.commit == COMMIT
    assert {
        "src/checkins/simulation/engine/loop.py",
        "src/checkins/simulation/engine/mechanism.py",
    } <= set(record.files)
