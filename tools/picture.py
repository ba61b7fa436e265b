"""Take the picture of the live page in README.md, while a demonstration runs.

    make picture

The demonstration is that of `make demo`, with real devices and a real coordinator. It is ended when
the picture is taken, after two minutes.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.support.browser import DESK, find_chromium

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "live-page.png"
AFTER_SLOTS = 38
"""Slots of the demonstration that are closed when the picture is taken."""
LIMIT_MS = 300_000.0
CLOSED = """(slots) => {
  const found = /^Slot (\\d+) of/.exec(document.getElementById("now").textContent);
  return found !== null && Number(found[1]) > slots;
}"""


def address(demonstration: subprocess.Popen[str]) -> str:
    """Return the address that the demonstration prints first."""
    assert demonstration.stdout is not None
    for line in demonstration.stdout:
        if found := re.search(r"http://[\w.:]+", line):
            return found[0]
    raise SystemExit("picture: the demonstration ended without an address")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        demonstration = subprocess.Popen(
            [sys.executable, "-u", ROOT / "examples" / "demo.py", "--out", folder],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            take(address(demonstration))
        finally:
            demonstration.send_signal(signal.SIGINT)
            demonstration.communicate()
    print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size / 1000:.0f} kB")
    return 0


def take(url: str) -> None:
    """Save what a reader of the live page sees on the first screen."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium())
        page = browser.new_page(viewport={"width": DESK[0], "height": DESK[1]})
        page.goto(url)
        page.wait_for_function(CLOSED, arg=AFTER_SLOTS, timeout=LIMIT_MS)
        page.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    sys.exit(main())
