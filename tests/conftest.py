"""Settings that every test shares."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import Phase, settings

from tests.support.browser import browser
from tests.support.postgres import postgres, postgres_url
from tests.support.program import checkins

__all__ = ["browser", "checkins", "postgres", "postgres_url"]

os.environ.setdefault("MPLBACKEND", "Agg")

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=25)
settings.register_profile("fast", settings.get_profile("ci"), max_examples=3)
settings.register_profile("soak", deadline=None, max_examples=1000)
settings.register_profile(
    "mutants", settings.get_profile("ci"), phases=(Phase.explicit, Phase.generate)
)  # a planted bug need not be shrunk
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture
def default_interrupt() -> Iterator[None]:
    """Default handling of SIGINT in this test and in the processes it starts.

    A shell that starts a job in the background, and nohup, have it ignored; children inherit that.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def ignored_interrupt() -> Iterator[None]:
    """SIGINT ignored in this test and in the processes it starts, as in a background job."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def state_folder() -> Iterator[None]:
    """What a coordinator keeps outside of its store goes here, and not into anybody's home."""
    with tempfile.TemporaryDirectory(prefix="checkins-tests-") as folder:
        before = os.environ.get("XDG_STATE_HOME")
        os.environ["XDG_STATE_HOME"] = folder
        yield
        if before is None:
            del os.environ["XDG_STATE_HOME"]
        else:
            os.environ["XDG_STATE_HOME"] = before
