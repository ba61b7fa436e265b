"""Limits on the text of a TOML file, checked in one pass before it is parsed.

Parsers of TOML take time that grows with the square of a dotted key's parts, and their stack with
the nesting of brackets. A text within these limits is parsed in a fraction of a second, whoever
wrote it.
"""

from __future__ import annotations

import re

MOST_BYTES = 200_000
MOST_KEYS = 20_000
MOST_PARTS = 8
"""Parts of a dotted key, such as task.optimizer.rate."""
MOST_NESTING = 16
"""Brackets inside brackets."""

# Strings and comments as the standard has them: what stands in one is neither key nor bracket.
_TOKEN = re.compile(
    r"""
      (?P<blank> [ \t]++ | \#[^\n]*+ )
    | (?P<part>
          \"\"\" (?: [^"\\]++ | \\. | "{1,2}(?!") )*+ "{3,5}
        | ''' (?: [^']++ | '{1,2}(?!') )*+ '{3,5}
        | " (?: [^"\\\n]++ | \\. )*+ "
        | ' [^'\n]*+ '
        | [A-Za-z0-9_-]++
      )
    | (?P<mark> . )
    """,
    re.VERBOSE | re.DOTALL,
)


def excess(text: str) -> tuple[int | None, str] | None:
    """The line (None for the whole) and the words for a limit that a text exceeds, or None.

    >>> excess("a.b.c = [[1.5], [2.5]]  # ....................")
    >>> excess("name = 'x'\\na.b.c.d.e.f.g.h.i = 1")
    (2, 'must have at most 8 parts in a dotted key')
    """
    if len(text) > MOST_BYTES or len(text.encode("utf-8", "surrogatepass")) > MOST_BYTES:
        return None, f"must have at most {MOST_BYTES:,} bytes"
    parts = depth = keys = 0
    joined = False
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup
        if kind == "blank":
            continue
        if kind == "part":
            parts = parts + 1 if joined else 1
            joined = False
            if parts > MOST_PARTS:
                return _line(text, token), f"must have at most {MOST_PARTS} parts in a dotted key"
            continue
        mark = token[0]
        joined = mark == "." and parts > 0
        if not joined:
            parts = 0
        keys += mark in "=["
        depth += (mark in "[{") - (mark in "]}")
        if depth > MOST_NESTING:
            return _line(text, token), "is nested too deeply"
        if keys > MOST_KEYS:
            return _line(text, token), f"must have at most {MOST_KEYS:,} keys, tables and arrays"
    return None


def _line(text: str, token: re.Match[str]) -> int:
    return text.count("\n", 0, token.start()) + 1
