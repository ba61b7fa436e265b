"""Make one HTML file of a page of the service, with its style sheets and scripts inside.

The file needs no server: browsers refuse to load modules from files, so each script becomes a
``data:`` URL in an import map, under its name.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

PAGES = Path(__file__).resolve().parent.parent / "src/checkins/service/page"

STYLE = re.compile(r'<link rel="stylesheet" href="page/([\w-]+\.css)">')
SCRIPT = re.compile(r'<script type="module" src="page/([\w-]+\.js)"></script>')
IMPORT = re.compile(r'(\bfrom )"\./([\w-]+\.js)"')


def standalone_page(name: str, *, home: str, home_title: str) -> str:
    """Return the page as one file. Its links to the service's first page lead to ``home``."""
    text = (PAGES / name).read_text(encoding="utf-8")
    text = STYLE.sub(lambda found: f"<style>\n{_read(found[1])}</style>", text)
    text = SCRIPT.sub(lambda found: _import_map(found[1]), text)
    text = re.sub(r'<a href="\./">[^<]+</a>', f'<a href="{home}">{home_title}</a>', text)
    return text.replace('href="./"', f'href="{home}"')


def _import_map(first: str) -> str:
    """Return the script element of the module ``first``, and an import map of what it imports."""
    urls: dict[str, str] = {}
    waiting = [first]
    while waiting:
        name = waiting.pop()
        if name not in urls:
            script = _read(name)
            waiting += [found[2] for found in IMPORT.finditer(script)]
            by_name = IMPORT.sub(r'\1"\2"', script)  # a data: URL has no folder
            encoded = base64.b64encode(by_name.encode("utf-8")).decode("ascii")
            urls[name] = f"data:text/javascript;base64,{encoded}"
    imports = json.dumps({"imports": urls})
    return (
        f'<script type="importmap">{imports}</script>\n'
        f'<script type="module">import "{first}";</script>'
    )


def _read(name: str) -> str:
    return (PAGES / name).read_text(encoding="utf-8")
