"""Which files a script runs, read from its imports, and a digest of each.

Nobody has to list what a figure measures, so nothing can be left out of the list. A digest leaves
out comments and docstrings, and is the same for every Python.
"""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

FOLLOWED = ("checkins", "bench", "tests", "examples")
"""Packages whose imports are followed. ``tools`` keeps figures; it is not what they measure."""


class NoSource(Exception):
    """A file or folder that a figure is said to measure is not there."""


class Sources:
    """The files under a root, each read once: an instance sees them as they were then."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._trees: dict[str, ast.Module] = {}
        self._digests: dict[str, str] = {}
        self._imported: dict[str, set[str]] = {}
        self._files: dict[str, str | None] = {}

    def digests(self, sources: Sequence[str], *, apart: Sequence[str] = ()) -> dict[str, str]:
        """Of the sources and all that they import within this repository, nearest first.

        ``apart`` are folders that are imported and not measured.
        """
        found = self.closure(sources)
        for folder in apart:
            if not any(path.startswith(f"{folder}/") for path in found):
                raise NoSource(f"{folder}: nothing there is imported by {', '.join(sources)}")
        folders = tuple(f"{folder}/" for folder in apart)
        return {path: self._digest(path) for path in found if not path.startswith(folders)}

    def closure(self, sources: Sequence[str]) -> list[str]:
        """The sources, the modules they import, the modules those import, and so on."""
        found: dict[str, None] = {}
        here = list(sources)
        while here:
            for path in here:
                if not (self._root / path).is_file():
                    raise NoSource(f"{path}: no such file")
                found[path] = None
            modules = [path for path in here if path.endswith(".py")]
            here = sorted({one for path in modules for one in self._imports(path)} - found.keys())
        return list(found)

    def _imports(self, path: str) -> set[str]:
        """Files of what a module imports, inside functions too."""
        if path not in self._imported:
            module = path.removeprefix("src/").removesuffix(".py").replace("/", ".")
            package = module.rpartition(".")[0]  # that of an __init__ is itself
            found: set[str] = set()
            for node in ast.walk(self._tree(path)):
                if isinstance(node, ast.Import):
                    for alias in node.names:
                        found.update(self._whole(alias.name))
                elif isinstance(node, ast.ImportFrom):
                    for alias in node.names:
                        found.update(self._named(_absolute(node, package), alias.name))
            self._imported[path] = found - {path}
        return self._imported[path]

    def _whole(self, module: str) -> Iterator[str]:
        """The file of a module, and of the packages it lies in where they hold code."""
        file = self._file(module)
        if file is not None:
            yield file
        while "." in module:
            module = module.rpartition(".")[0]
            above = self._file(module)
            if above is not None and not self._only_imports(above):
                yield above

    def _named(self, module: str, name: str) -> Iterator[str]:
        """Where ``from module import name`` comes from, looking through what only re-exports."""
        if name != "*" and self._file(f"{module}.{name}") is not None:
            yield from self._whole(f"{module}.{name}")
            return
        file = self._file(module)
        if file is None:
            return
        if not (file.endswith("/__init__.py") and self._only_imports(file)):
            yield from self._whole(module)
            return
        for node in self._tree(file).body:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if name in ("*", alias.asname or alias.name):
                        yield from self._named(_absolute(node, module), alias.name)

    def _file(self, module: str) -> str | None:
        if module.partition(".")[0] not in FOLLOWED:
            return None
        if module not in self._files:
            base = module.replace(".", "/")
            places = [f"src/{base}.py", f"src/{base}/__init__.py", f"{base}.py"]
            places.append(f"{base}/__init__.py")
            there = [path for path in places if (self._root / path).is_file()]
            self._files[module] = there[0] if there else None
        return self._files[module]

    def _only_imports(self, path: str) -> bool:
        """Whether a module holds nothing but a docstring, imports and ``__all__``."""
        return all(
            isinstance(node, ast.Import | ast.ImportFrom)
            or _is_text(node)
            or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__")
            for node in self._tree(path).body
        )

    def _tree(self, path: str) -> ast.Module:
        if path not in self._trees:
            self._trees[path] = ast.parse((self._root / path).read_bytes())
        return self._trees[path]

    def _digest(self, path: str) -> str:
        if path not in self._digests:
            content = (self._root / path).read_bytes()
            if path.endswith(".py"):
                content = code_of(content)
            self._digests[path] = hashlib.sha256(content).hexdigest()[:16]
        return self._digests[path]


def code_of(content: bytes) -> bytes:
    """Python source without comments, docstrings and empty lines.

    >>> code_of(b'"What it says."\\n\\nX = 1  # one\\n')
    b'X = 1'
    """
    lines = content.splitlines()
    if b"#" in content:
        for token in tokenize.tokenize(io.BytesIO(content).readline):
            if token.type == tokenize.COMMENT:
                number, start = token.start
                lines[number - 1] = lines[number - 1].decode()[:start].encode()
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Expr) and _is_text(node):
            first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
            left = lines[first][: node.col_offset] + lines[last][node.end_col_offset :]
            lines[first : last + 1] = [left] + [b""] * (last - first)
    return b"\n".join(line.rstrip() for line in lines if line.strip())


def _absolute(node: ast.ImportFrom, package: str) -> str:
    """The module of a ``from`` import, dots at its front resolved."""
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    above = parts[: len(parts) - node.level + 1]
    return ".".join([*above, *([node.module] if node.module else [])])


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
