"""What uvicorn_hooks needs of uvicorn is there, in the code that it was written against."""

from __future__ import annotations

import hashlib
import inspect
from types import ModuleType

import pytest
import uvicorn.server
from uvicorn.protocols.http import httptools_impl

from checkins.service.http import uvicorn_hooks
from checkins.service.settings import Limits

READ = {uvicorn.server: "c1be9d133467a42a", httptools_impl: "1d4e1c579df41684"}
"""Digests of the sources that were read when ``uvicorn_hooks`` was last checked against them."""


@pytest.mark.parametrize("module", READ, ids=lambda module: module.__name__)
def test_the_code_of_uvicorn_is_the_code_that_was_read(module: ModuleType) -> None:
    found = hashlib.sha256(inspect.getsource(module).encode()).hexdigest()[:16]
    assert found == READ[module], (
        f"uvicorn {uvicorn.__version__} changed {module.__name__}: read the difference, check"
        " uvicorn_hooks against it, run test_connection_limits.py, and renew the digest"
    )


def test_every_method_that_is_overridden_is_one_of_uvicorn() -> None:
    """A method that uvicorn renames would never be called here."""
    own = {"_is_responding", "_refuse_head", "_start_head_timer", "_head_timed_out", "_close_with"}
    own |= {"_start_slow_reader_timer", "_check_slow_reader"}
    for ours in (uvicorn_hooks.limited_protocol(Limits()), uvicorn_hooks.GracefulServer):
        methods = {name for name, value in vars(ours).items() if inspect.isfunction(value)} - own
        assert {name for name in methods if not hasattr(ours.__mro__[1], name)} == set()
