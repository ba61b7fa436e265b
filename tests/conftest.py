"""Settings that every test shares."""

from __future__ import annotations

import os

from hypothesis import Phase, settings

os.environ.setdefault("MPLBACKEND", "Agg")

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=60)
settings.register_profile("soak", deadline=None, max_examples=1000)
settings.register_profile(
    "mutants", settings.get_profile("ci"), phases=(Phase.explicit, Phase.generate)
)  # a planted bug need not be shrunk
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
