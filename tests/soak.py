"""What ``make test`` leaves to ``make soak``: more examples, and the cases between the corners."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

SOAK = os.environ.get("CHECKINS_SOAK") == "1"

only_in_soak = pytest.mark.skipif(not SOAK, reason="make soak")
"""Mark of a case whose code other cases of the same test run through too."""


def examples(count: int, *, soak: int) -> settings:
    """So many examples where one takes a tenth of a second, and ``soak`` in ``make soak``."""
    return settings(max_examples=soak if SOAK else count)
