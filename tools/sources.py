"""Find the files that a script imports, and compute a digest of each.

The files that a figure measures are found by imports, so that none can be forgotten. A digest does
not depend on comments, docstrings and the version of Python.
"""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

FOLLOWED = ("checkins", "bench", "tests", "examples")
"""Packages whose imports are followed. ``tools`` is left out, because it is not measured."""


class NoSource(Exception):
    """A file or folder that a figure measures does not exist."""


class Sources:
    """The files under a root. Each file is read once, so later changes are not seen."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._trees: dict[str, ast.Module] = {}
        self._digests: dict[str, str] = {}
        self._imported: dict[str, set[str]] = {}
        self._files: dict[str, str | None] = {}

    def digests(self, sources: Sequence[str], *, apart: Sequence[str] = ()) -> dict[str, str]:
        """Return digests of the sources and of all modules of this repository that they import.

        ``apart`` are folders that are imported but not measured.
        """
        found = self.closure(sources)
        for folder in apart:
            if not any(path.startswith(f"{folder}/") for path in found):
                raise NoSource(f"{folder}: nothing there is imported by {', '.join(sources)}")
        folders = tuple(f"{folder}/" for folder in apart)
        return {path: self._digest(path) for path in found if not path.startswith(folders)}

    def closure(self, sources: Sequence[str]) -> list[str]:
        """Return the sources and all modules that they import, directly or indirectly."""
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
        """Return the files that a module imports, also inside functions."""
        if path not in self._imported:
            module = path.removeprefix("src/").removesuffix(".py").replace("/", ".")
            package = module.rpartition(".")[0]  # for an __init__ the package itself
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
        """Yield the file of a module, and of each parent package that contains code."""
        file = self._file(module)
        if file is not None:
            yield file
        while "." in module:
            module = module.rpartition(".")[0]
            above = self._file(module)
            if above is not None and not self._only_imports(above):
                yield above

    def _named(self, module: str, name: str) -> Iterator[str]:
        """Yield the files that define ``name``, also if ``module`` only re-exports it."""
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
        """Return True if a module contains only a docstring, imports and ``__all__``."""
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
    """Return Python source without comments, docstrings and empty lines.

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
    """Return the absolute module name of a ``from`` import."""
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
