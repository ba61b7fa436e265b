"""A file that is replaced has its old content or its new content, whatever happens in between."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from checkins import durable_file


def test_the_content_is_replaced_and_no_other_file_is_left(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    for content in (b"old", b"new"):
        durable_file.replace_content(path, content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_while_it_is_written_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(b"old")

    def failing() -> None:
        with durable_file.replacing(path) as file:
            file.write(b"half of the new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        failing()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_draft_that_a_crash_left_behind_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    (tmp_path / "state.json.part").write_bytes(b"longer than the new content")
    durable_file.replace_content(path, b"new")
    assert path.read_bytes() == b"new"


def test_content_name_and_folder_are_flushed_in_this_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, steps = tmp_path / "state.json", []
    fsync, replace = os.fsync, os.replace

    def flushed(descriptor: int) -> None:
        steps.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "content")
        fsync(descriptor)

    def renamed(source: Path, target: Path) -> None:
        steps.append("name")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", renamed)
    durable_file.replace_content(path, b"new")
    assert steps == ["content", "name", "folder"]


def test_permissions_are_those_that_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    durable_file.replace_content(path, b"new", mode=0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_link_is_followed_and_a_device_is_written_directly(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    durable_file.replace_content(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    durable_file.replace_content(Path("/dev/null"), b"new")
    assert not Path("/dev/null").is_file()


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "state.json"
    with pytest.raises(FileNotFoundError) as refused:
        durable_file.replace_content(path, b"new")
    assert refused.value.filename == str(path)


def test_a_disk_that_takes_only_a_part_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "write", lambda descriptor, content: len(content) - 1)
    with pytest.raises(OSError, match="No space left") as refused:
        durable_file.write_all(1, b"content")
    assert refused.value.errno == errno.ENOSPC
