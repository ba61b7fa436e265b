"""What programs that join a campaign share: addresses, keys, and the privacy loss so far."""

from __future__ import annotations

import re
from pathlib import Path

from checkins import formatting
from checkins.client.odometer import PrivacyLoss
from checkins.errors import InvalidValue
from checkins.protocol import wire

_RUN_URL = re.compile(rf"(https?://[^?#]+?)/campaigns/({wire.RUN_ID})/?", re.IGNORECASE)


def split_run_url(url: str) -> tuple[str, str | None]:
    """Split a URL into the address of the service and the run id. The id is None if there is none.

    >>> split_run_url("http://127.0.0.1:8470/campaigns/0123456789ab-1")
    ('http://127.0.0.1:8470', '0123456789ab-1')
    """
    match = _RUN_URL.fullmatch(url)
    return (match[1], match[2]) if match else (url.rstrip("/"), None)


def read_keys(path: Path) -> list[str]:
    """Return the enrolment keys in a file, one per line. Lines that begin with # are comments."""
    try:
        lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValue("key_file", str(path), f"cannot be read: {error}") from error
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise InvalidValue("key_file", str(path), "contains no key; write one key per line")
    return keys


def spent_sentence(spent: PrivacyLoss) -> str:
    """State the upper bound on the privacy loss of all participations of a device."""
    return (
        f"All participations of this device together: epsilon <= {formatting.up(spent.epsilon)},"
        f" delta <= {formatting.up(spent.delta)} ({spent.adjacency})."
    )
