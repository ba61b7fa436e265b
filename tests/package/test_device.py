"""A device installs ten packages, imports little, and takes part without a command line."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkins.campaign import DataFile
from tests.client.test_participant import soon
from tests.soak import only_in_soak
from tests.support.fake_service import FakeService, on_a_socket
from tests.support.program import run_python
from tools.environments import ROOT, Environment, Offline, build

MOST_PACKAGES, MOST_CPU_S, MOST_BYTES = 10, 0.4, 60_000_000
NEEDED = {"numpy", "httpx", "safetensors"}
NEVER = ("scipy", "pandas", "matplotlib", "rich", "click", "tomlkit", "jax", "dp_accounting")
MEASURE = """
import json, sys, time
import MODULES
memory = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([time.process_time(), 1024 * int(memory.split()[1])]))
"""
WITHOUT = f"""
import runpy, sys
for name in {NEVER!r}:
    sys.modules[name] = None  # as if it were not installed
sys.argv[0] = "device"
runpy.run_module("checkins.client", run_name="__main__")
"""
ENDED = """\
{}: its report was acknowledged.
All participations of this device together: epsilon <= 8, delta <= 1e-06 (add-remove).
"""
FEATURES = tuple(f"x{index}" for index in range(13))


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """A fresh environment with the wheel and the extra of devices."""
    folder = tmp_path_factory.mktemp("device")
    wheel = build("wheel", folder)
    environment = Environment.create(folder / "environment")
    try:
        environment.install(f"{wheel}[client]", constraints=ROOT / "constraints" / "dev.txt")
    except Offline as error:
        pytest.skip(str(error))
    return environment


@pytest.fixture
def service() -> FakeService:
    """A campaign of one slot, which learns from a table."""
    described = soon().campaign
    assert described.task is not None
    data = DataFile("visits.csv", "who", "y", FEATURES, ((0.0, 1.0),) * len(FEATURES))
    found = soon()
    found.campaign = replace(found.campaign, task=replace(described.task, data=data))
    found.id = f"{found.campaign.seal.removeprefix('sha256:')[:12]}-1"
    return found


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    file = tmp_path / "rows.csv"
    numbers = ",".join(["0.5"] * len(FEATURES))
    file.write_text(f"{','.join(FEATURES)},y\n{numbers},1\n", encoding="utf-8")
    return file


def measured(environment: Environment, modules: str) -> tuple[float, int]:
    """The least processor time of five processes that import modules, and the memory of one."""
    code = MEASURE.replace("MODULES", modules)
    runs = [json.loads(environment.run("python", "-c", code).stdout) for _ in range(5)]
    return min(cpu_s for cpu_s, _ in runs), runs[0][1]


@pytest.mark.slow
def test_a_device_installs_ten_packages(device: Environment) -> None:
    found = device.packages()
    assert {"checkins", *NEEDED} <= set(found)
    assert not {re.sub("_", "-", name) for name in NEVER} & set(found)
    assert len(found) <= MOST_PACKAGES, found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_a_device_imports_in_little_time_and_memory(device: Environment) -> None:
    """On a slow machine, the limit of the time is four times what numpy alone takes there."""
    cpu_s, size = measured(device, "checkins.client, httpx, safetensors.numpy")
    numpy_cpu_s, _ = measured(device, "numpy")
    assert cpu_s <= max(MOST_CPU_S, 4 * numpy_cpu_s)
    assert size <= MOST_BYTES


@pytest.mark.slow
def test_a_device_takes_part_without_a_command_line(
    device: Environment, service: FakeService, rows: Path, tmp_path: Path
) -> None:
    with on_a_socket(service) as url:
        words = ("--data", str(rows), "--state", str(tmp_path / "state"), "--seal")
        program = ("python", "-m", "checkins.client")
        done = device.run(*program, url, *words, service.campaign.seal)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ENDED.format(service.id)
    assert len(service.reports) == 1


@pytest.mark.slow
def test_a_device_without_a_command_line_says_so(device: Environment) -> None:
    done = device.run("checkins", "join", "http://127.0.0.1:9")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "checkins: the command line needs click, which is not installed: pip install"
        " 'checkins[cli]'; a device needs only python -m checkins.client\n"
    )


@pytest.mark.slow
def test_the_accountant_says_that_it_needs_scipy(device: Environment) -> None:
    describe = device.run("python", "-c", "from checkins.accounting import Design, Protocol")
    assert describe.returncode == 0, describe.stderr
    certify = device.run("python", "-c", "from checkins.accounting import certify")
    assert certify.returncode == 1
    assert certify.stderr.splitlines()[-1] == (
        "checkins.errors.MissingPackage: checkins.accounting needs scipy, which is not installed:"
        " pip install 'checkins[accounting]'"
    )


def test_a_device_takes_part_where_other_packages_cannot_be_imported(
    service: FakeService, rows: Path, tmp_path: Path
) -> None:
    """Also in an environment of contributors, which has all of them."""
    with on_a_socket(service) as url:
        words = (url, "--data", rows, "--state", tmp_path / "state")
        done = run_python("-c", WITHOUT, *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ENDED.format(service.id)


@pytest.fixture
def program(capsys: pytest.CaptureFixture[str]) -> Any:
    """Call the program of devices in this process: its exit code, what it printed, its error."""
    from checkins.client.__main__ import main

    def call(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(word) for word in words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def test_a_device_withdraws(program: Any, service: FakeService, rows: Path, tmp_path: Path) -> None:
    with on_a_socket(service) as url:
        page, state = f"{url}/campaigns/{service.id}", ("--state", tmp_path / "state")
        assert program(page, "--withdraw", *state) == (
            0,
            f"{service.id}: not withdrawn, because it does not take part.\n",
            "",
        )


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--data", "missing.csv"), 2, "missing.csv"),
        (("--data", "ROWS", "--client", "ann"), 2, "rows.csv has no column who"),
        (("--data", "ROWS", "--seal", "sha256:00"), 2, "must be sha256:00"),
        (("--data", "ROWS", "--campaign", "000000000000-9"), 2, "the URL names another run"),
        (("--data", "ROWS", "--key-file", "none.txt"), 2, "cannot be read"),
    ],
)
def test_a_wrong_option_is_one_line(
    program: Any,
    service: FakeService,
    rows: Path,
    words: tuple[str, ...],
    code: int,
    says: str,
) -> None:
    given = [str(rows) if word == "ROWS" else word for word in words]
    with on_a_socket(service) as url:
        ended, out, error = program(f"{url}/campaigns/{service.id}", "--state", "state", *given)
    assert (ended, out, error.count("\n")) == (code, "", 1)
    assert error.startswith("checkins: ")
    assert says in error


@only_in_soak
def test_a_service_that_does_not_answer_is_a_failure(program: Any) -> None:
    ended, out, error = program("http://127.0.0.1:9", "--data", "rows.csv", "--state", "state")
    assert (ended, out, error.count("\n")) == (1, "", 1)


def test_the_program_has_the_options_of_join() -> None:
    """Except --json, --row, which is for demonstrations, and those for Flower, a large package."""
    from checkins.cli.commands.join import join
    from checkins.client.__main__ import parser

    options = {word for action in parser()._actions for word in action.option_strings}
    wanted = {word for each in join.params for word in each.opts if word.startswith("--")}
    flower = {"--flower", "--run-config", "--node-config", "--train-config", "--try"}
    assert wanted - options == {"--row", "--json", *flower}
