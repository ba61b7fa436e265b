"""Run the story of docs/tutorial.md, and keep the output of its commands on the page.

    python tools/tutorial.py            run the story if a command of the page has changed
    python tools/tutorial.py --again    run the story

The story serves a real campaign for half a minute, so `make check` does not repeat it. A block
after a marker is filled, and the commands run in the order of the page, in one empty folder:

    <!-- kept: checkins check campaign.toml -->               runs to its end
    <!-- kept, meanwhile: checkins swarm URL ... -->           runs during the next command
    <!-- kept, to the end: checkins serve campaign.toml -->    runs until the story is over

A picture after ``<!-- kept, on a phone: URL -->`` shows the page at the URL on a small screen,
after its button "Take part" was pressed and the device has taken part.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.figures import recorded_by_hand
from tools.generated import ROOT, TERMINAL, shown

PAGE = ROOT / "docs" / "tutorial.md"
SERVICE = "http://127.0.0.1:8470"
MAX_S = 300
TOKEN = re.compile(r"(Operator token, valid until the service stops: )\S+")
BLOCK = re.compile(
    r"^<!-- kept(?:, (?P<how>meanwhile|to the end))?: (?P<command>.+?) -->\n"
    r"```console\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
PICTURE = re.compile(
    r"^<!-- kept, on a phone: (?P<url>\S+) -->\n!\[[^]]*\]\((?P<file>[\w.-]+)\)$", re.MULTILINE
)
STEP = re.compile(f"{BLOCK.pattern}|{PICTURE.pattern}", re.MULTILINE | re.DOTALL)
TOOK_PART = "document.getElementById('progress').dataset.state !== undefined"


class Story:
    """The commands of the page that run, and their outputs, in an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outputs: dict[str, Path] = {}
        self.meanwhile: list[tuple[str, subprocess.Popen[bytes]]] = []
        self.to_the_end: list[subprocess.Popen[bytes]] = []
        self.phone: Phone | None = None

    def run(self, command: str, how: str | None) -> None:
        started = self._start(command)
        if how == "to the end":
            self.to_the_end.append(started)
            _wait_for_service()
        elif how == "meanwhile":
            self.meanwhile.append((command, started))
        else:
            _finish(command, started)
            for other, running in self.meanwhile:
                _finish(other, running)
            self.meanwhile.clear()
            if self.phone:
                self.phone.finish()
                self.phone = None

    def stop(self) -> None:
        if self.phone:
            self.phone.close()
        for running in (*(one for _, one in self.meanwhile), *self.to_the_end):
            if running.poll() is None:
                running.send_signal(signal.SIGINT)
                running.wait(MAX_S)

    def text(self, command: str) -> str:
        """Return the output of a command, without the token and the folder of this story."""
        output = self.outputs[command].read_text(encoding="utf-8").strip("\n")
        output = TOKEN.sub(r"\1...", output.replace(str(self.folder), "~"))
        return "\n".join(line.rstrip() for line in output.splitlines()) + "\n"

    def _start(self, command: str) -> subprocess.Popen[bytes]:
        self.outputs[command] = self.folder / f"output-{len(self.outputs)}"
        with self.outputs[command].open("wb") as output:
            return subprocess.Popen(
                shlex.split(command),
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _environment(self) -> dict[str, str]:
        home = {"HOME": str(self.folder), "XDG_STATE_HOME": ""}
        return {name: value for name, value in (os.environ | TERMINAL | home).items() if value}


class Phone:
    """A browser with a small screen, in which the button of a page is pressed."""

    def __init__(self, url: str, picture: Path) -> None:
        from playwright.sync_api import sync_playwright

        from tests.support.browser import PHONE, find_chromium

        self.picture = picture
        self.playwright = sync_playwright().start()
        browser = self.playwright.chromium.launch(executable_path=find_chromium())
        self.page = browser.new_page(viewport={"width": PHONE[0], "height": PHONE[1]})
        self.page.goto(url)
        self.page.get_by_role("button", name="Take part").click()

    def finish(self) -> None:
        """Wait until the device has taken part, and save what the screen shows."""
        self.page.wait_for_function(TOOK_PART, timeout=1000.0 * MAX_S)
        self.page.screenshot(path=self.picture)
        self.close()

    def close(self) -> None:
        self.playwright.stop()


def _finish(command: str, started: subprocess.Popen[bytes]) -> None:
    if code := started.wait(MAX_S):
        raise RuntimeError(f"exit {code}: {command}")


def _wait_for_service() -> None:
    ends = time.monotonic() + MAX_S
    while time.monotonic() < ends:
        try:
            with urllib.request.urlopen(f"{SERVICE}/healthz", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    raise RuntimeError(f"{SERVICE} does not answer")


def changed(text: str) -> list[str]:
    """Return the commands whose blocks do not show them, or show no output."""
    blocks = list(BLOCK.finditer(text))
    return [
        picture["url"]
        for picture in PICTURE.finditer(text)
        if not (PAGE.parent / picture["file"]).exists()
    ] + [
        block["command"]
        for block in blocks
        if not block["body"].startswith(f"{shown(block['command'])}\n")
        or block["body"] == f"{shown(block['command'])}\n"
    ]


def tell(text: str, folder: Path) -> str:
    """Run the story in the folder, and return the page with the outputs."""
    story = Story(folder)
    try:
        for step in STEP.finditer(text):
            if step["url"]:
                story.phone = Phone(step["url"], PAGE.parent / step["file"])
            else:
                story.run(step["command"], step["how"])
    finally:
        story.stop()

    def fill(block: re.Match[str]) -> str:
        body = f"{shown(block['command'])}\n{story.text(block['command'])}"
        return block[0].replace(f"```console\n{block['body']}```", f"```console\n{body}```")

    return BLOCK.sub(fill, text)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--again", action="store_true", help="even if no command has changed")
    again = parser.parse_args().again
    text = PAGE.read_text(encoding="utf-8")
    if not (again or changed(text)):
        return 0
    with tempfile.TemporaryDirectory() as folder:
        PAGE.write_text(tell(text, Path(folder)), encoding="utf-8")
    recorded_by_hand("tutorial", None)
    print(f"{PAGE.name}: told again")
    return 0


if __name__ == "__main__":
    sys.exit(main())
