"""A running service as the other commands see it: its campaigns, and what anyone may fetch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

from checkins.cli.failures import Refused, quoted

if TYPE_CHECKING:
    import httpx

ADDRESS = re.compile(r"https?://", re.IGNORECASE)
_CAMPAIGN = re.compile(r"(https?://[^?#]+?)/campaigns/([0-9a-f]{12}-[0-9]{1,7})/?", re.IGNORECASE)
TIMEOUT_S = 30.0
"""How long an answer may take; a ledger takes longer, as long as it keeps coming."""
LEDGER_BYTES = 64 * 2**30
"""A longer ledger is fetched with other tools, and verified as a file."""
MOST_CAMPAIGNS = 100
"""So many are looked at to find out whether all are on one population."""


def is_address(place: str) -> bool:
    """Whether this is a service's address and no file."""
    return ADDRESS.match(place) is not None


def parted(url: str) -> tuple[str, str | None]:
    """The address of a service, and the run that it names if it is that of a campaign.

    >>> parted("http://127.0.0.1:8470/campaigns/0123456789ab-1")
    ('http://127.0.0.1:8470', '0123456789ab-1')
    """
    named = _CAMPAIGN.fullmatch(url)
    return (named[1], named[2]) if named else (url.rstrip("/"), None)


@contextmanager
def service(url: str) -> Iterator[tuple[httpx.Client, str]]:
    """A connection to the service at ``url``, and the run that it is about.

    ``url`` is the service's address, if all its campaigns are on one population, or that of a
    campaign: URL/campaigns/ID. What it answers is bounded in size and time.
    """
    try:
        import httpx
    except ImportError as error:
        raise Refused(
            f"{quoted(url)}: needs the extra client: pip install 'checkins[client]'"
        ) from error
    from checkins.client.bounded_http import ResponseRejected

    base, named = parted(url)
    try:
        with httpx.Client(base_url=base, timeout=TIMEOUT_S) as http:
            yield http, named or _only_run(http, url)
    except httpx.InvalidURL as error:
        raise Refused(f"{quoted(url)}: is no address: {error}") from error
    except ResponseRejected as error:
        raise Refused(f"{quoted(url)}: {error}: is a coordinator there?") from error
    except httpx.HTTPError as error:
        raise Refused(
            f"{quoted(url)}: does not answer ({type(error).__name__}): is a coordinator there?"
        ) from error


def latest_model(http: httpx.Client, run: str) -> bytes:
    """The latest release of a run, as its service has it."""
    from checkins.ledger.entry import MOST_NUMBERS
    from checkins.protocol.report import most_model_bytes

    path = f"/campaigns/{run}"
    try:
        tensors = _view(http, run)["tensors"]
        shapes = {str(one["name"]): tuple(int(n) for n in one["shape"]) for one in tensors}
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise Refused(f"{http.base_url.join(path)}: is no campaign of checkins") from error
    max_bytes = most_model_bytes(shapes)
    if not 0 < max_bytes <= 2 * 8 * MOST_NUMBERS:
        raise Refused(f"{http.base_url.join(path)}: says that its model is {max_bytes:,} bytes")
    return _fetched(http, f"{path}/models/latest", max_bytes)


@contextmanager
def ledger(http: httpx.Client, run: str) -> Iterator[tuple[Iterator[bytes], str]]:
    """The ledger of a run's population, piece by piece as it comes, and its address."""
    from checkins.client import bounded_http

    with bounded_http.stream(
        http, f"/campaigns/{run}/ledger", max_bytes=LEDGER_BYTES, timeout_s=TIMEOUT_S
    ) as (response, pieces):
        if not response.is_success:
            _check(response, b"".join(islice(pieces, 1)))
        yield pieces, str(response.url)


def _fetched(http: httpx.Client, path: str, max_bytes: int) -> bytes:
    """An answer, or what the service says is wrong."""
    from checkins.client import bounded_http

    response, body = bounded_http.fetch(http, "GET", path, max_bytes=max_bytes, timeout_s=TIMEOUT_S)
    _check(response, body)
    return body


def _check(response: httpx.Response, body: bytes) -> None:
    """Refuse an answer that is none."""
    if response.is_success:
        return
    try:
        detail = str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError, RecursionError):
        detail = "it is no coordinator of checkins"
    raise Refused(f"{response.url}: {response.status_code}: {detail}")


def _view(http: httpx.Client, run: str) -> dict[str, Any]:
    from checkins.client.service_client import VIEW_BYTES

    found: dict[str, Any] = json.loads(_fetched(http, f"/campaigns/{run}", VIEW_BYTES))
    return found


def _only_run(http: httpx.Client, url: str) -> str:
    """The newest run, if all campaigns are on one population; one run of each tells which."""
    from checkins.client.service_client import LISTING_BYTES

    try:
        listed = json.loads(_fetched(http, "/campaigns", LISTING_BYTES))["campaigns"]
        runs = [str(campaign["id"]) for campaign in listed]
        campaigns = {run.rpartition("-")[0]: run for run in runs}
        ledgers: set[str] = set()
        for run in islice(campaigns.values(), MOST_CAMPAIGNS):
            view = _view(http, run)
            ledgers.add(view["population_id"] or view["seal"])
            if len(ledgers) > 1:
                break
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Refused(f"{quoted(url)}: is no coordinator of checkins") from error
    if not runs:
        raise Refused(f"{quoted(url)}: has no campaign yet")
    if len(ledgers) > 1 or len(campaigns) > MOST_CAMPAIGNS:
        many = "campaigns on several populations" if len(ledgers) > 1 else "many campaigns"
        each = ", ".join(f"/campaigns/{run}" for run in runs[:8])
        raise Refused(f"{quoted(url)}: has {many}; name one: {each}")
    return runs[0]
