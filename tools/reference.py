"""Print the reference of the Python API as Markdown, one page per package, from its docstrings.

python tools/reference.py checkins.accounting

A page lists the names in ``__all__`` of its package. A package without ``__all__`` has a section
for each of its public modules.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

PACKAGES = {
    "checkins.accounting": "Certificates and calibration",
    "checkins.strategies": "Correlated noise",
    "checkins.randomizers": "Randomizers",
    "checkins.campaign": "Campaign files",
    "checkins.protocol": "State machines and messages",
    "checkins.ledger": "Ledgers",
    "checkins.planning": "Planner",
    "checkins.tasks": "Data and models",
    "checkins.simulation": "Simulator",
    "checkins.client": "Device SDK",
    "checkins.swarm": "Load test",
    "checkins.audit": "Audit",
    "checkins.errors": "Exceptions",
}
"""The packages that have a page, each with the title of the page."""

LABEL = re.compile(r"^(?P<label>[A-Z][a-z]+):\s+(?P<text>.+)$")
"""A labelled line of a docstring, as in ``Theorem:     [BW18, Thm 8]``."""
LITERAL = re.compile(r"``(.+?)``", re.DOTALL)


def page(package: str) -> str:
    """Return the page of a package."""
    module = importlib.import_module(package)
    sections = "".join(_sections(module, level=2))
    return f"# {package}\n\n{prose(inspect.getdoc(module) or '')}\n\n{sections}"


def _sections(module: ModuleType, *, level: int) -> Iterator[str]:
    """Yield a section for each public name of a module, or for each module of a package."""
    names = public_names(module)
    if names:
        for name in names:
            yield section(module.__name__, name, getattr(module, name), level=level)
        return
    for found in pkgutil.iter_modules(module.__path__):
        if found.name.startswith("_"):
            continue
        inner = importlib.import_module(f"{module.__name__}.{found.name}")
        text = prose(inspect.getdoc(inner) or "")
        yield f"{'#' * level} {inner.__name__}\n\n{text}\n\n"
        yield from _sections(inner, level=level + 1)


def public_names(module: ModuleType) -> list[str]:
    """Return ``__all__``, or the public classes and functions that a module without it defines."""
    declared = getattr(module, "__all__", None)
    if declared is not None:
        return list(declared)
    if hasattr(module, "__path__"):
        return []
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    ]


def section(module: str, name: str, value: Any, *, level: int) -> str:
    """Return the section of one public name: signature, docstring and public methods."""
    heading = f"{'#' * level} {name}\n\n"
    if inspect.isclass(value):
        return heading + _class(name, value, level=level)
    if callable(value):
        return heading + f"{_signature(name, value)}{prose(_doc(value))}\n\n"
    return heading + f"{_constant_doc(module, name)}\n\n"


def _class(name: str, kind: type, *, level: int) -> str:
    parts = ["" if issubclass(kind, (enum.Enum, BaseException)) else _signature(name, kind)]
    parts.append(prose(_doc(kind)) + "\n\n")
    if issubclass(kind, enum.Enum):
        parts.append("".join(f"- `{name}.{one.name}` = `{one.value!r}`\n" for one in kind) + "\n")
    for method, found in vars(kind).items():
        function = found.__func__ if isinstance(found, (classmethod, staticmethod)) else found
        if isinstance(function, property) and not method.startswith("_"):
            text = _doc(function.fget)
            if text:
                parts.append(f"**`{name}.{method}`** {prose(text)}\n\n")
        elif inspect.isfunction(function) and not method.startswith("_") and _doc(function):
            parts.append(_signature(f"{name}.{method}", function))
            parts.append(prose(_doc(function)) + "\n\n")
    return "".join(parts)


def _doc(value: Any) -> str:
    """Return the docstring, but not the one that ``dataclass`` makes from the fields."""
    text = inspect.getdoc(value) or ""
    generated = dataclasses.is_dataclass(value) and text.startswith(f"{value.__name__}(")
    return "" if generated else text


def _signature(name: str, value: Callable[..., Any]) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    parameters = [
        parameter.replace(
            default=_default(parameter.default), annotation=_annotation(parameter.annotation)
        )
        for parameter in signature.parameters.values()
        if parameter.name != "self"
    ]
    returned = _annotation(signature.return_annotation)
    text = str(signature.replace(parameters=parameters, return_annotation=returned))
    if inspect.isclass(value):
        text = text.removesuffix(" -> None")
    if len(name) + len(text) > 88 and parameters:
        inside, _, result = text[1:].rpartition(")")
        text = "(\n" + "".join(f"    {one},\n" for one in _arguments(inside)) + ")" + result
    return f"```python {{.signature}}\n{name}{text}\n```\n\n"


class _Verbatim:
    """Text that appears in a signature without quotation marks."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _annotation(annotation: Any) -> Any:
    return _Verbatim(annotation) if isinstance(annotation, str) else annotation


def _default(value: Any) -> Any:
    """Return a default value as a signature shows it: enum members by name, no memory addresses."""
    if value is inspect.Parameter.empty:
        return value
    text = f"{type(value).__name__}.{value.name}" if isinstance(value, enum.Enum) else repr(value)
    return _Verbatim("..." if " at 0x" in text or "<" in text or len(text) > 60 else text)


def _arguments(text: str) -> Iterator[str]:
    """Split at the commas that are not inside brackets."""
    depth = start = 0
    for place, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0:
            yield text[start:place].strip()
            start = place + 1
    yield text[start:].strip()


def prose(text: str) -> str:
    """Return a docstring as Markdown: labelled lines as a table, examples as code.

    >>> prose("Add ``a``.\\n\\nRounding:    up")
    'Add `a`.\\n\\n| | |\\n|---|---|\\n| **Rounding** | up |'
    """
    blocks = [_block(block) for block in re.split(r"\n\s*\n", text.strip("\n")) if block.strip()]
    return "\n\n".join(blocks)


def _block(block: str) -> str:
    lines = block.split("\n")
    if lines[0].lstrip().startswith(">>> "):
        return "```pycon\n" + inspect.cleandoc(block) + "\n```"
    if all(line.startswith("    ") for line in lines):
        return "```text\n" + "\n".join(line[4:] for line in lines) + "\n```"
    if LABEL.match(lines[0]) and re.match(r"^[A-Z][a-z]+:\s{2,}", lines[0]):
        rows: list[list[str]] = []
        for line in lines:
            found = LABEL.match(line)
            if found:
                rows.append([found["label"], found["text"]])
            else:
                rows[-1][1] += " " + line.strip()
        table = "\n".join(f"| **{label}** | {_cell(text)} |" for label, text in rows)
        return "| | |\n|---|---|\n" + table
    return _inline(block)


def _inline(text: str) -> str:
    return LITERAL.sub(r"`\1`", text)


def _cell(text: str) -> str:
    return _inline(text).replace("|", "\\|")


def _constant_doc(module: str, name: str) -> str:
    """Return the string after the assignment of a constant, from the source of its module."""
    for source in _modules_that_may_define(module):
        text = inspect.getsource(source)
        found = re.search(
            rf'^{re.escape(name)}\b[^\n]*=.*?^"""(?P<doc>.*?)"""', text, re.DOTALL | re.MULTILINE
        )
        if found:
            return prose(inspect.cleandoc(found["doc"]))
    return ""


def _modules_that_may_define(package: str) -> Iterator[ModuleType]:
    top = importlib.import_module(package)
    yield top
    for found in pkgutil.iter_modules(getattr(top, "__path__", [])):
        yield importlib.import_module(f"{package}.{found.name}")


def main() -> None:
    sys.stdout.write(page(sys.argv[1]))


if __name__ == "__main__":
    main()
