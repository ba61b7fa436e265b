"""How all tests and doctests are run: each in an empty folder of its own, those that wait first.

Tests that wait for real processes leave a processor to others, so there are more workers than
processors (``make test``), and a worker that waits takes turns with one that computes.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Generator, Iterable
from importlib.util import find_spec
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import pytest

from tests.soak import LEFT_TO_SOAK, ONE_IN_THREE, SOAK

FOLDER = pytest.StashKey[Path]()
TESTS = Path(__file__).parent / "tests"
# Flower has an environment of its own (`make flower`), and is in no other.
collect_ignore = [] if find_spec("flwr") else ["tests/flower", "src/checkins/flower"]
BUG_IS_PLANTED = os.environ.get("HYPOTHESIS_PROFILE") == "mutants"

SPLIT = (
    "tests/service/faults/test_kills.py",
    "tests/service/faults/test_network.py",
    "tests/service/faults/test_store.py",
    "tests/service/faults/test_browser_tabs.py",
    "tests/audit/test_live.py",
    "tests/examples/test_demo.py",
    "tests/service/test_server.py",
    "tests/client/test_commands.py",
)
"""Files whose tests are long and share nothing: any worker may take any test of theirs."""
PAGES = (
    "tests/service/test_page.py",
    "tests/service/test_plan_page.py",
    "tests/service/test_page_live.py",
    "tests/service/test_take_part_page.py",
    "tests/simulation/test_report.py",
    "tests/docs/test_site.py",
    "tests/browser_client/test_device.py",
    "tests/browser_client/test_vectors.py",
)
"""Files whose tests look at pages: one worker takes them all, with one browser."""
PLANS = (
    "tests/planning/test_plan.py",
    "tests/planning/test_odd_questions.py",
    "tests/planning/test_sensitivity.py",
    "tests/planning/test_cost_model.py",
    "tests/planning/test_search_space.py",
)
"""Files whose tests look at the same plans: one worker takes them all, and makes each plan once."""
SHARING = dict.fromkeys(PAGES, "pages") | dict.fromkeys(PLANS, "plans")
"""The name of the group of each file that shares a browser or plans with others."""
WAITING = (
    "tests/service/faults/test_kills.py",
    "tests/service/faults/test_network.py",
    "tests/service/faults/test_store.py",
    "tests/service/faults/test_browser_tabs.py",
    "tests/audit/test_live.py",
    "tests/service/test_load.py",
    "tests/service/hostile/test_storm.py",
    *PAGES,
    "tests/examples/test_demo.py",
    "tests/service/test_server.py",
    "tests/client/test_real_service.py",
    "tests/client/test_commands.py",
    "tests/package/test_device.py",
)
"""Files whose tests mostly wait, for slots or for processes; the longest first."""


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder of this process's working directories; collect no garbage for a while."""
    gc.disable()  # until the tests are collected: their objects stay, and are many
    config.stash[FOLDER] = Path(tempfile.mkdtemp(prefix="checkins-tests-")).resolve()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove them, all at the end: a process started for several tests stays in its first one."""
    shutil.rmtree(config.stash[FOLDER], ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path,
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for doctests in the sources and tools alone: tests have none."""
    found = yield
    return (
        found
        if TESTS not in file_path.parents
        else [one for one in found if type(one) is pytest.Module]
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test, its fixtures included, where no other test has left anything."""
    before = Path.cwd()
    os.chdir(tempfile.mkdtemp(dir=item.config.stash[FOLDER]))
    try:
        return (yield)
    finally:
        os.chdir(before)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to ``make soak`` what is left to it; begin with what takes long and with what waits."""
    if not SOAK:
        for item in _left_to_soak(items):
            item.add_marker(pytest.mark.skip(reason="make soak"))
    places = {file: place for place, file in enumerate(WAITING)}
    slow = Counter(_file(item.nodeid) for item in items if item.get_closest_marker("slow"))
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(_file(item.nodeid), []).append(item)
    waiting = sorted((file for file in files if file in places), key=places.__getitem__)
    computing = sorted((file for file in files if file not in places), key=lambda file: -slow[file])
    items[:] = [item for file in _in_turn(waiting, computing) for item in files[file]]


def pytest_collection_finish() -> None:
    """Leave all collected tests out of later garbage collections, which take long with them."""
    gc.collect()
    gc.freeze()
    gc.enable()


def _left_to_soak(items: list[pytest.Item]) -> Iterable[pytest.Item]:
    """Yield the items that ``tests/soak.py`` names; where a bug is planted every case counts."""
    several: dict[str, list[pytest.Item]] = {}
    for item in items:
        file, _, name = item.nodeid.partition("::")
        if item.nodeid.endswith(LEFT_TO_SOAK.get(file, ("\0",))):
            yield item
        elif name.partition("[")[0] in ONE_IN_THREE.get(file, ()) and not BUG_IS_PLANTED:
            several.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in several.values():
        cases.sort(key=lambda item: item.nodeid)
        yield from (item for place, item in enumerate(cases) if place % 3)


def _in_turn(*several: Iterable[str]) -> list[str]:
    return [one for one in chain.from_iterable(zip_longest(*several)) if one is not None]


def _file(nodeid: str) -> str:
    return nodeid.split("::", 1)[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Hand out whole files, whose fixtures are made once, or ``SHARING`` files, or single tests."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = _file(nodeid)
            return nodeid if file in SPLIT else SHARING.get(file, file)

    config.option.loadscopereorder = False  # the order of the collection is the order of work
    return Scheduling(config, log)
