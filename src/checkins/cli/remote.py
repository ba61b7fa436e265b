"""A running service as the other commands see it: its campaigns, and what anyone may fetch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from checkins.cli.failures import Refused, quoted

if TYPE_CHECKING:
    import httpx

ADDRESS = re.compile(r"https?://", re.IGNORECASE)
_CAMPAIGN = re.compile(r"(https?://[^?#]+?)/campaigns/([0-9a-f]{12}-[0-9]{1,7})/?", re.IGNORECASE)
TIMEOUT_S = 30.0


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
    campaign: URL/campaigns/ID.
    """
    try:
        import httpx
    except ImportError as error:
        raise Refused(
            f"{quoted(url)}: needs the extra client: pip install 'checkins[client]'"
        ) from error
    base, named = parted(url)
    try:
        with httpx.Client(base_url=base, timeout=TIMEOUT_S) as http:
            yield http, named or _only_run(http, url)
    except httpx.InvalidURL as error:
        raise Refused(f"{quoted(url)}: is no address: {error}") from error
    except httpx.HTTPError as error:
        raise Refused(
            f"{quoted(url)}: does not answer ({type(error).__name__}): is a coordinator there?"
        ) from error


def fetched(http: httpx.Client, path: str) -> httpx.Response:
    """An answer, or what the service says is wrong."""
    response = http.get(path)
    check(response)
    return response


def check(response: httpx.Response) -> None:
    """Refuse an answer that is none."""
    if response.is_success:
        return
    try:
        detail = str(response.json()["detail"])
    except (ValueError, KeyError, TypeError):
        detail = "it is no coordinator of checkins"
    raise Refused(f"{response.url}: {response.status_code}: {detail}")


def _only_run(http: httpx.Client, url: str) -> str:
    try:
        listed: list[dict[str, Any]] = fetched(http, "/campaigns").json()["campaigns"]
        runs = [str(campaign["id"]) for campaign in listed]
        views = {run: fetched(http, f"/campaigns/{run}").json() for run in runs}
        ledgers = {run: view["population_id"] or view["seal"] for run, view in views.items()}
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(f"{quoted(url)}: is no coordinator of checkins") from error
    if not runs:
        raise Refused(f"{quoted(url)}: has no campaign yet")
    if len(set(ledgers.values())) > 1:
        each = ", ".join(f"/campaigns/{run}" for run in runs[:8])
        raise Refused(f"{quoted(url)}: has campaigns on several populations; name one: {each}")
    return runs[0]
