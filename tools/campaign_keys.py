"""Print the table of the keys of one section of a campaign file as Markdown.

python tools/campaign_keys.py               the keys at the top of the file
python tools/campaign_keys.py task.data     the keys of a section
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from checkins.campaign import fields


def table(section: str) -> Iterator[str]:
    """Yield the lines of the table. The column privacy is omitted if it would be empty."""
    (keys,) = (known.keys for known in fields.SECTIONS if known.name == section)
    columns = ["key", "value", "meaning"] + ["privacy"] * any(key.privacy for key in keys)
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for key in keys:
        cells = (f"`{key.name}`", key.accepts, key.meaning, key.privacy)
        yield f"| {' | '.join(cells[: len(columns)])} |"


if __name__ == "__main__":
    print("\n".join(table(sys.argv[1] if sys.argv[1:] else "")))
