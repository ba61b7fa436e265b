"""Write the pages of the notebooks, docs/notebooks/*.md, from examples/notebooks/*.py.

    python -m tools.notebooks            run each notebook whose page is not of its present text
    python -m tools.notebooks --again    run all

A page has the text, the code and the outputs of a notebook. The outputs are kept, so that the site
builds without running anything; tests run the notebooks and compare them with their pages.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from pprint import pformat
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.py"))
PAGES = ROOT / "docs" / "notebooks"
WIDTH = 88
"""Largest number of characters in a line of output."""


def cells(notebook: Path) -> list[ast.FunctionDef]:
    """Return the functions of a notebook that are its cells."""
    tree = ast.parse(notebook.read_text(encoding="utf-8"))
    return [node for node in tree.body if isinstance(node, ast.FunctionDef)]


def run(notebook: Path) -> Sequence[Any]:
    """Run a notebook as a script, without marimo's server, and return the output of each cell."""
    spec = importlib.util.spec_from_file_location(notebook.stem, notebook)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    outputs, _ = module.app.run()
    return outputs


def page(notebook: Path, outputs: Sequence[Any] | None) -> str:
    """Return the page of a notebook. Without outputs, it ends each cell at its code."""
    source = notebook.read_text(encoding="utf-8")
    listed = cells(notebook)
    found = outputs or [None] * len(listed)
    parts = [
        part
        for cell, output in zip(listed, found, strict=True)
        for part in cell_parts(cell, source, output)
    ]
    imports, first, *rest = parts  # the cell with the imports comes first in a notebook
    title, _, text = first.partition("\n")
    link = (
        f"This is the notebook [{notebook.name}](../../examples/notebooks/{notebook.name}) with its"
        f" outputs. `.venv/bin/marimo edit examples/notebooks/{notebook.name}` opens it in a"
        " browser."
    )
    return formatted("\n\n".join([title, text.strip(), imports, *rest, link]) + "\n")


def formatted(markdown: str) -> str:
    """Return a page as ``make check`` wants it: code that left a cell has other blank lines."""
    ruff = [Path(sys.executable).parent / "ruff", "format", "--stdin-filename", "page.md", "-"]
    done = subprocess.run(
        ruff, input=markdown, cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout


def cell_parts(cell: ast.FunctionDef, source: str, output: Any) -> Iterator[str]:
    """Yield the text of a cell, or its code and its output."""
    body = [line for line in cell.body if not isinstance(line, ast.Return)]
    called = body[-1].value if isinstance(body[-1], ast.Expr) else None
    if isinstance(called, ast.Call) and ast.unparse(called.func) == "mo.md":
        if isinstance(called.args[0], ast.Constant):
            yield textwrap.dedent(str(called.args[0].value)).strip()
            return
        body = body[:-1]  # what typesets a result
    if body:
        code = "\n".join(source.splitlines()[body[0].lineno - 1 : body[-1].end_lineno])
        code = textwrap.dedent(code).replace("import marimo as mo\n", "").strip()
        yield f"```py\n{code}\n```"
    if output is not None:
        yield shown(output)


def shown(output: Any) -> str:
    """Return an output as Markdown.

    >>> shown(("0.53", "0.54"))
    "```text\\n('0.53', '0.54')\\n```"
    """
    if hasattr(output, "_repr_markdown_"):
        return str(output._repr_markdown_()).strip()
    return f"```text\n{pformat(output, width=WIDTH)}\n```"


def is_current(notebook: Path) -> bool:
    """Return True if the page has every text and all code of the notebook."""
    place = PAGES / f"{notebook.stem}.md"
    if not place.exists():
        return False
    kept, bare = place.read_text(encoding="utf-8"), page(notebook, None)
    return all(part in kept for part in bare.split("\n\n"))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--again", action="store_true", help="even if no notebook has changed")
    again = parser.parse_args().again
    PAGES.mkdir(exist_ok=True)
    for notebook in NOTEBOOKS:
        if again or not is_current(notebook):
            place = PAGES / f"{notebook.stem}.md"
            place.write_text(page(notebook, run(notebook)), encoding="utf-8")
            print(f"{place.relative_to(ROOT)}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
