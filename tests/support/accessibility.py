"""Barriers for people who use a screen reader or a keyboard, found by axe-core in a real browser.

axe-core is third-party, so it is not in the repository: `make axe` fetches it. Tests that need it
fail if it is missing; they are never skipped.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.browser import Page

SCRIPT = Path(__file__).resolve().parents[2] / "build" / "axe-core" / "axe.min.js"
MISSING = (
    "no axe-core found, and this test looks for barriers in a page: run `make axe`, or name a copy"
    " of axe.min.js in the variable AXE_CORE"
)
RUN = """() => axe.run(document, { resultTypes: ["violations"] }).then((found) =>
  found.violations
    .filter((rule) => ["serious", "critical"].includes(rule.impact))
    .flatMap((rule) => rule.nodes.map((node) =>
      `${rule.id}: ${node.target.join(" ")}: ${node.failureSummary.replaceAll("\\n", " ")}`)))
"""


def barriers(page: Page) -> list[str]:
    """Return the serious and critical violations on the page as it is now."""
    script = Path(os.environ.get("AXE_CORE", SCRIPT))
    if not script.is_file():
        pytest.fail(MISSING)
    page.evaluate(script.read_text(encoding="utf-8"))
    found: list[str] = page.evaluate(RUN)
    return found
