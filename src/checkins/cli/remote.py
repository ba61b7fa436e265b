"""HTTP requests of commands to a running service, for its campaigns, ledgers and models."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from checkins.cli.errors import UsageError, describe_data_error, printable
from checkins.cli.params import GivenOptions, argument, option, options
from checkins.errors import InvalidData, InvalidValue
from checkins.protocol import wire

if TYPE_CHECKING:
    import httpx

    from checkins.campaign import Task
    from checkins.client import CampaignView

URL = argument("url", "URL")
CAMPAIGN_ID, *ACCESS, FOLLOW = options("""
    --campaign ID  Id of the run to join. Default: the open run.
    --key-file FILE  File with the key for enrolment, if the service requires one.
    --seal SHA256  Join only if the campaign has this seal, sha256:...
    --allow-model MODULE:FUNCTION  Let the campaign use this Python function as its model. Default:
        no code is imported.
    --follow  Also take part in the later runs of the campaign.
""")

OPTION_NAMES = {"key": "key_file"}
"""Maps a parameter of the library to its command-line option, where the two names differ."""
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
ADDRESS = re.compile(r"https?://", re.IGNORECASE)
_CAMPAIGN = re.compile(rf"(https?://[^?#]+?)/campaigns/({wire.RUN_ID})/?", re.IGNORECASE)
TIMEOUT_S = 30.0
"""Time limit of a response. A ledger may take longer, as long as data keep arriving."""
LEDGER_BYTES = 64 * 2**30
"""Largest ledger that is fetched. Fetch a larger ledger with another tool and verify the file."""
MOST_CAMPAIGNS = 100
"""Largest number of campaigns of a service for which the URL may leave out the run.

Up to this number, commands check whether all campaigns have the same population."""


def is_address(place: str) -> bool:
    """Return True for an http or https URL, False for a file."""
    return ADDRESS.match(place) is not None


def split_address(url: str) -> tuple[str, str | None]:
    """Split a URL into the address of the service and the run id, or None if it has none.

    >>> split_address("http://127.0.0.1:8470/campaigns/0123456789ab-1")
    ('http://127.0.0.1:8470', '0123456789ab-1')
    """
    named = _CAMPAIGN.fullmatch(url)
    return (named[1], named[2]) if named else (url.rstrip("/"), None)


@contextmanager
def service(url: str) -> Iterator[tuple[httpx.Client, str]]:
    """Connect to the service at ``url``. Yield the connection and the id of a run.

    ``url`` may name the run, as in URL/campaigns/ID. It may be the address of the service if all
    its campaigns have the same population. Responses are limited in size and time.
    """
    try:
        import httpx
    except ImportError as error:
        raise UsageError(
            f"{printable(url)}: needs the extra client: pip install 'checkins[client]'"
        ) from error

    from checkins.client.bounded_http import ResponseRejected

    base, named = split_address(url)
    try:
        with httpx.Client(base_url=base, timeout=TIMEOUT_S) as http:
            yield http, named or _only_run(http, url)
    except httpx.InvalidURL as error:
        raise UsageError(f"{printable(url)}: is not an address: {error}") from error
    except ResponseRejected as error:
        raise UsageError(f"{printable(url)}: {error}: is a coordinator there?") from error
    except httpx.HTTPError as error:
        raise UsageError(
            f"{printable(url)}: does not respond ({type(error).__name__}): is a coordinator there?"
        ) from error


def latest_model(http: httpx.Client, run: str) -> bytes:
    """Fetch the latest released model of a run."""
    from checkins.ledger.entry import MOST_NUMBERS
    from checkins.protocol.report import most_model_bytes

    path = wire.RUN_PATH.format(run=run)
    try:
        tensors = _view(http, run)["tensors"]
        shapes = {str(one["name"]): tuple(int(n) for n in one["shape"]) for one in tensors}
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise UsageError(f"{http.base_url.join(path)}: is not a campaign of checkins") from error
    max_bytes = most_model_bytes(shapes)
    if not 0 < max_bytes <= 2 * 8 * MOST_NUMBERS:
        raise UsageError(f"{http.base_url.join(path)}: declares a model of {max_bytes:,} bytes")
    return _fetched(http, wire.LATEST_MODEL_PATH.format(run=run), max_bytes)


@contextmanager
def ledger(http: httpx.Client, run: str) -> Iterator[tuple[Iterator[bytes], str]]:
    """Stream the ledger of a run's population. Yield its chunks of bytes and its URL."""
    from checkins.client import bounded_http

    path = wire.LEDGER_PATH.format(run=run)
    with bounded_http.stream(http, path, max_bytes=LEDGER_BYTES, timeout_s=TIMEOUT_S) as (
        response,
        pieces,
    ):
        if not response.is_success:
            _check(response, b"".join(islice(pieces, 1)))
        yield pieces, str(response.url)


def _fetched(http: httpx.Client, path: str, max_bytes: int) -> bytes:
    """Return the body of a response. Raise the error that the service reports."""
    from checkins.client.actions import Request, RequestKind
    from checkins.client.bounded_http import fetch

    request = Request(RequestKind.VIEW, "GET", path, TIMEOUT_S, max_bytes=max_bytes)
    response, body = fetch(http, request)
    _check(response, body)
    return body


def _check(response: httpx.Response, body: bytes) -> None:
    """Raise a usage error for a response that is not successful."""
    if response.is_success:
        return
    try:
        detail = str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError, RecursionError):
        detail = "it is not a coordinator of checkins"
    raise UsageError(f"{response.url}: {response.status_code}: {detail}")


def _view(http: httpx.Client, run: str) -> wire.CampaignView:
    from checkins.client.service_client import VIEW_BYTES

    path = wire.RUN_PATH.format(run=run)
    found: wire.CampaignView = json.loads(_fetched(http, path, VIEW_BYTES))
    return found


def _only_run(http: httpx.Client, url: str) -> str:
    """Return the newest run. Raise if the campaigns have several populations."""
    from checkins.client.service_client import LISTING_BYTES

    try:
        listed: wire.Campaigns = json.loads(_fetched(http, wire.CAMPAIGNS_PATH, LISTING_BYTES))
        runs = [str(campaign["id"]) for campaign in listed["campaigns"]]
        campaigns = {wire.seal_digits(run): run for run in runs}
        ledgers: set[str] = set()
        for run in islice(campaigns.values(), MOST_CAMPAIGNS):
            view = _view(http, run)
            ledgers.add(view["population_id"] or view["seal"])
            if len(ledgers) > 1:
                break
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{printable(url)}: is not a coordinator of checkins") from error
    if not runs:
        raise UsageError(f"{printable(url)}: has no campaign yet")
    if len(ledgers) > 1 or len(campaigns) > MOST_CAMPAIGNS:
        many = "campaigns of several populations" if len(ledgers) > 1 else "many campaigns"
        each = ", ".join(wire.RUN_PATH.format(run=run) for run in runs[:8])
        raise UsageError(f"{printable(url)}: has {many}; choose one of them: {each}")
    return runs[0]


def addressed(given: GivenOptions) -> tuple[str, GivenOptions]:
    """Return the address of the service, and the options with the run id from the URL."""
    url = given.values["url"]
    base, run = split_address(url)
    if run is None:
        return url, given
    if given.texts.get("campaign", run) != run:
        raise given.invalid("campaign", f"the URL names the run {run}")
    return base, given.replacing(campaign=run)


def campaign_at(url: str, given: GivenOptions) -> CampaignView:
    """Fetch the campaign to join and check its seal."""
    from checkins.client import fetch_campaign
    from checkins.validate import installed

    for name in ("httpx", "safetensors"):
        installed(name, extra="client", wanted_by=url, setting="url")
    with naming_options(given):
        view = fetch_campaign(url, given.texts.get("campaign"))
        view.check(seal=given.texts.get("seal"))
    return view


def task_of(view: CampaignView) -> Task:
    """Return the task of the campaign. Raise if the campaign has no task."""
    if view.campaign.task is None:
        raise UsageError(f"campaign {view.id}: has no task that a device could train")
    return view.campaign.task


def keys_in(given: GivenOptions) -> list[str]:
    """Return the lines of the key file. Return an empty list if there is no ``--key-file``."""
    if "key_file" not in given:
        return []
    path = Path(given.texts["key_file"])
    try:
        lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise given.invalid("key_file", f"cannot be read: {error}") from error
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise given.invalid("key_file", "contains no key; write one key per line")
    return keys


def unencrypted_warning(url: str) -> str | None:
    """Return a warning if the connection is not encrypted, otherwise None."""
    parts = urlsplit(url)
    if parts.scheme == "https" or parts.hostname in LOCAL_HOSTS:
        return None
    return (
        "The connection is not encrypted: anyone on the network path sees when this device reports."
    )


@contextmanager
def naming_options(given: GivenOptions) -> Iterator[None]:
    """Turn an ``InvalidValue`` of the client into an error that names the option."""
    try:
        yield
    except InvalidData as error:
        raise given.invalid("data", describe_data_error(error)) from error
    except InvalidValue as error:
        name = OPTION_NAMES.get(error.name, error.name)
        if name in given:
            raise given.invalid(name, error.expected) from error
        if error.value is None or name in OPTION_NAMES.values():
            raise UsageError(f"{option(name)}: {error.expected}") from error
        raise
