"""Print the packages of checkins as a Mermaid diagram, or as a table, from the import graph.

    python tools/architecture.py diagram    packages; an arrow points to the imported package
    python tools/architecture.py table      modules and lines of each package
    python tools/architecture.py modules account ...    modules that a `checkins` command runs

If a imports b and b imports c, an arrow from a to c is left out. ``modules`` counts functions that
run, and not modules that are only imported.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
from pathlib import Path
from types import FrameType

import grimp

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "checkins"
SOURCE = ROOT / "src" / PACKAGE


def imports_of_packages() -> dict[str, set[str]]:
    """Return the top-level packages and modules that each of them imports."""
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    found: dict[str, set[str]] = {
        name.rpartition(".")[2]: set() for name in graph.find_children(PACKAGE)
    }
    for module in graph.modules:
        importer = _top(module)
        for imported in graph.find_modules_directly_imported_by(module):
            other = _top(imported)
            if importer and other and other != importer:
                found[importer].add(other)
    return found


def _top(module: str) -> str:
    """Return the top-level package of a module, or an empty string for the root."""
    return module.split(".")[1] if "." in module else ""


def reduced(imports: dict[str, set[str]]) -> dict[str, set[str]]:
    """Leave out every arrow whose target can be reached by other arrows.

    >>> reduced({"a": {"b", "c"}, "b": {"c"}, "c": set()})
    {'a': {'b'}, 'b': {'c'}, 'c': set()}
    """
    reach = {name: _reached(name, imports) for name in imports}
    return {
        name: {o for o in others if not any(o in reach[via] for via in others - {o})}
        for name, others in imports.items()
    }


def _reached(start: str, imports: dict[str, set[str]]) -> set[str]:
    """Return everything that can be reached from ``start`` by at least one arrow."""
    seen: set[str] = set()
    waiting = list(imports[start])
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += imports[name]
    return seen


def diagram() -> str:
    """Return the diagram in Mermaid's notation."""
    imports = reduced(imports_of_packages())
    arrows = [f"  {a} --> {b}" for a in sorted(imports) for b in sorted(imports[a])]
    return "\n".join(["```mermaid", "flowchart TD", *arrows, "```"])


def table() -> str:
    """Return modules and lines of each package as a Markdown table."""
    rows = ["| package | modules | lines |", "|---|---:|---:|"]
    total_files = total_lines = 0
    for path in sorted(SOURCE.iterdir()):
        files = [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))
        if not files or path.name.startswith("__"):
            continue
        lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
        total_files, total_lines = total_files + len(files), total_lines + lines
        rows.append(f"| `{path.name}` | {len(files)} | {lines:,} |")
    return "\n".join([*rows, f"| all | {total_files} | {total_lines:,} |"])


def modules_of_command(arguments: list[str]) -> list[str]:
    """Run a `checkins` command. Return the modules of which it calls a function, in this order."""
    from checkins.cli.main import main

    called: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        path = Path(code.co_filename)
        if event == "call" and code.co_flags & inspect.CO_OPTIMIZED and SOURCE in path.parents:
            called.setdefault(str(path.relative_to(SOURCE)))

    sys.argv = [PACKAGE, *arguments]
    threading.setprofile(note)
    sys.setprofile(note)
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(sys.stderr):
        main()
    sys.setprofile(None)
    return list(called)


def main() -> None:
    """Print the diagram, the table, or the modules of a command."""
    match sys.argv[1:]:
        case ["diagram"]:
            print(diagram())
        case ["table"]:
            print(table())
        case ["modules", *arguments]:
            print("\n".join(modules_of_command(arguments)))
        case _:
            sys.exit(str(__doc__))


if __name__ == "__main__":
    main()
