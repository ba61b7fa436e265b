"""Every test and doctest runs in an empty working directory of its own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

FOLDER = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder of this process's working directories."""
    config.stash[FOLDER] = Path(tempfile.mkdtemp(prefix="checkins-tests-")).resolve()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove them, all at the end: a process started for several tests stays in its first one."""
    shutil.rmtree(config.stash[FOLDER], ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test, its fixtures included, where no other test has left anything."""
    before = Path.cwd()
    os.chdir(tempfile.mkdtemp(dir=item.config.stash[FOLDER]))
    try:
        return (yield)
    finally:
        os.chdir(before)
