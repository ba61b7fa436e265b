"""The canonical form of a campaign, and its seal: the hash of the canonical form (invariant 9).

Two campaign files with the same values have the same canonical form. The order of keys, comments,
the spelling of numbers, and defaults that are left out do not matter. If any value differs, the
canonical form differs. It is JSON in UTF-8 with sorted keys and no spaces. Floats are written as
Python prints them, times are in UTC, and absent values have no key. ``campaign_from_canonical``
reads it back, so a ledger that contains it can be verified without any other file.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from checkins.campaign import fields


def canonical(campaign: Any) -> str:
    """Return the canonical form of a campaign."""
    return json.dumps(
        sealed_values(campaign),
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    )


def sealed(text: str) -> str:
    """Return the seal of a canonical form.

    >>> sealed("")
    'sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855'
    """
    return f"sha256:{hashlib.sha256(text.encode('utf-8')).hexdigest()}"


def sealed_values(campaign: Any) -> dict[str, Any]:
    """Return the sealed values of a campaign by section and key."""
    values: dict[str, Any] = {}
    for section in fields.SECTIONS:
        if not section.is_in(campaign):
            continue
        table = values
        for part in section.name.split(".") if section.name else ():
            table = table.setdefault(part, {})
        for key in section.keys:
            if key.read is not None and (value := key.sealed_value(campaign)) is not None:
                table[key.name] = value
    return values
