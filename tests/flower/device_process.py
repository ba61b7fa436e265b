"""A device that trains with a Flower app, in a process of its own (``tests.support.forks``).

    python -m tests.flower.device_process URL APP NUMBER STATE JOURNAL

What it does is appended to the journal, as JSON lines.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from checkins.flower import device


def main() -> None:
    url, app, number, state, journal = sys.argv[1:]

    def note(fields: Mapping[str, object]) -> None:
        with Path(journal).open("a", encoding="utf-8") as file:
            file.write(json.dumps(fields) + "\n")

    own = {"partition-id": int(number)}
    print(device(app, url=url, state=state, node_config=own, journal=note).run().name)


if __name__ == "__main__":
    main()
