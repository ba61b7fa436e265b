"""HTTP requests that commands send to a running service, to fetch campaigns, ledgers and models."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checkins.cli.params import GivenOptions, argument, dashed_name, options
from checkins.cli.terminal import UsageError, describe_data_error, printable, warn
from checkins.errors import InvalidData, InvalidValue
from checkins.protocol import wire

if TYPE_CHECKING:
    import httpx

    from checkins.campaign import Task
    from checkins.client import CampaignView

URL_ARGUMENT = argument("url", "URL")
RUN_ID_OPTION, *JOIN_OPTIONS, FOLLOW_OPTION = options("""
    --campaign ID  The run to join, by its id (as in URL/campaigns/ID). Required if several runs
        are open. Default: the only open run.
    --key-file FILE  File with the key or secret for enrolment, if the service requires one.
    --seal SHA256  Join only if the campaign has this seal (its hash), sha256:...
    --allow-model MODULE:FUNCTION  Python function that the campaign may import as its model.
        Default: the campaign may import no code.
    --follow  Also take part in the later runs of the campaign.
""")
CONNECTION_OPTIONS = options("""
    --ca FILE  PEM file with the certificate authorities to trust for https://, and no others.
        Default: the public authorities.
    --plain-http  Allow http:// to another machine, without encryption.
""")

OPTION_NAMES = {"key": "key_file"}
"""Maps a parameter of the library to its command-line option, where the two names differ."""
HTTP_URL = re.compile(r"https?://", re.IGNORECASE)
TIMEOUT_S = 30.0
"""Time limit of a response. For a ledger, it is the limit of the wait for the next data."""
MAX_LEDGER_BYTES = 64 * 2**30
"""Size of the largest ledger that is fetched. A larger one must be fetched by another tool."""
MAX_CAMPAIGNS_COMPARED = 100
"""If a service has more campaigns than this, the URL must name a run.

Up to this number, the commands fetch every campaign and check that all have one population."""


def is_http_url(location: str) -> bool:
    """Return True for an http or https URL, False for anything else, such as a path."""
    return HTTP_URL.match(location) is not None


@contextmanager
def connect(url: str, given: GivenOptions) -> Iterator[tuple[httpx.Client, str]]:
    """Connect to the service at ``url``. Yield the connection and the id of a run.

    ``url`` may name the run, as in URL/campaigns/ID. If it is only the address of the service, the
    newest run is used, and all campaigns of the service must have the same population.
    """
    with open_connection(url, given) as (http, run):
        yield http, run or _newest_run_of_only_population(http, url)


@contextmanager
def open_connection(url: str, given: GivenOptions) -> Iterator[tuple[httpx.Client, str | None]]:
    """Connect to the service at ``url``. Yield the connection, and the id of the run in ``url``.

    Responses are limited in size and time. ``given`` has the options ``CONNECTION_OPTIONS``.
    """
    import httpx

    from checkins.client.actions import UNTRUSTED_CERTIFICATE
    from checkins.client.bounded_http import ResponseRejected
    from checkins.client.drivers import check_url, tls_context
    from checkins.client.joining import split_run_url

    base_url, run = split_run_url(url)
    with errors_as_option_errors(given):
        arguments = connection_arguments(given)
        check_url(base_url, **arguments)
        verify = tls_context(arguments["ca"]) or True
    try:
        with httpx.Client(base_url=base_url, timeout=TIMEOUT_S, verify=verify) as http:
            yield http, run
    except httpx.InvalidURL as error:
        raise UsageError(f"{printable(url)}: is not a valid URL: {error}") from error
    except ResponseRejected as error:
        raise UsageError(f"{printable(url)}: {error}; is a coordinator there?") from error
    except httpx.HTTPError as error:
        if UNTRUSTED_CERTIFICATE in str(error):
            raise _untrusted(url) from error
        raise UsageError(
            f"{printable(url)}: does not respond ({type(error).__name__}); is a coordinator there?"
        ) from error


def _untrusted(url: str) -> UsageError:
    return UsageError(
        f"{printable(url)}: its certificate is not trusted; --ca FILE names the authority that"
        " signed it"
    )


def fetch_latest_model(http: httpx.Client, run: str) -> bytes:
    """Fetch the latest released model of a run."""
    from checkins.protocol.report import most_model_bytes

    path = wire.RUN_PATH.format(run=run)
    try:
        tensors = _fetch_view(http, run)["tensors"]
        shapes = {str(each["name"]): tuple(int(n) for n in each["shape"]) for each in tensors}
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise UsageError(f"{http.base_url.join(path)}: is not a campaign of checkins") from error
    max_bytes = most_model_bytes(shapes)
    if not 0 < max_bytes <= 2 * 8 * wire.MAX_NUMBERS:
        raise UsageError(
            f"{http.base_url.join(path)}: declares a model of impossible size, {max_bytes:,} bytes"
        )
    return _fetch(http, wire.LATEST_MODEL_PATH.format(run=run), max_bytes)


@contextmanager
def stream_ledger(http: httpx.Client, run: str) -> Iterator[tuple[Iterator[bytes], str]]:
    """Fetch the ledger of a run's population. Yield its chunks of bytes and its URL."""
    from checkins.client import bounded_http

    path = wire.LEDGER_PATH.format(run=run)
    with bounded_http.stream(http, path, max_bytes=MAX_LEDGER_BYTES, timeout_s=TIMEOUT_S) as (
        response,
        chunks,
    ):
        if not response.is_success:
            _raise_for_status(response, b"".join(islice(chunks, 1)))
        yield chunks, str(response.url)


def split_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Split chunks of bytes into lines with newlines. Stop at a line too long to be valid."""
    from checkins.ledger.entry import MAX_LINE_BYTES

    rest = bytearray()
    for chunk in chunks:
        lines, newline, last = chunk.rpartition(b"\n")
        if newline:
            yield from bytes(rest + lines + newline).splitlines(keepends=True)
            rest = bytearray(last)
        else:
            rest += chunk
        if len(rest) > MAX_LINE_BYTES:
            break
    if rest:
        yield bytes(rest)


def fetch_signed_head(http: httpx.Client, run: str, entries: int) -> tuple[bytes, str]:
    """Fetch the signed hash of a line of a ledger. Return its JSON and its URL."""
    from checkins.ledger.signature import MAX_SIGNED_HEAD_BYTES

    path = wire.SIGNED_HEAD_PATH.format(run=run, entries=entries)
    return _fetch(http, path, MAX_SIGNED_HEAD_BYTES), str(http.base_url.join(path))


def send_as_operator(
    http: httpx.Client, method: str, path: str, token: str, body: bytes | None = None
) -> bytes:
    """Send a request with an operator's token and return the body of the response."""
    from checkins.client.actions import Request, RequestKind
    from checkins.client.bounded_http import fetch
    from checkins.client.service_client import MAX_LISTING_BYTES

    headers = wire.bearer(token) | ({} if body is None else {"Content-Type": wire.JSON_TYPE})
    request = Request(
        RequestKind.OPERATE, method, path, TIMEOUT_S, headers, body, max_bytes=MAX_LISTING_BYTES
    )
    response, answer = fetch(http, request)
    _raise_for_status(response, answer)
    return answer


def _fetch(http: httpx.Client, path: str, max_bytes: int) -> bytes:
    """Send a GET request and return the body. Raise the error that the service reports, if any."""
    from checkins.client.actions import Request, RequestKind
    from checkins.client.bounded_http import fetch

    request = Request(RequestKind.VIEW, "GET", path, TIMEOUT_S, max_bytes=max_bytes)
    response, body = fetch(http, request)
    _raise_for_status(response, body)
    return body


def _raise_for_status(response: httpx.Response, body: bytes) -> None:
    """Raise an error with the detail in ``body`` if the response is not successful."""
    if response.is_success:
        return
    try:
        detail = str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError, RecursionError):
        detail = "there is no coordinator of checkins at this URL"
    raise UsageError(f"{response.url}: {response.status_code}: {detail}")


def _fetch_view(http: httpx.Client, run: str) -> wire.CampaignView:
    from checkins.client.service_client import MAX_VIEW_BYTES

    path = wire.RUN_PATH.format(run=run)
    view: wire.CampaignView = json.loads(_fetch(http, path, MAX_VIEW_BYTES))
    return view


def _newest_run_of_only_population(http: httpx.Client, url: str) -> str:
    """Return the newest run of a service. Raise if its campaigns have several populations."""
    from checkins.client.service_client import MAX_LISTING_BYTES

    try:
        listed: wire.Campaigns = json.loads(_fetch(http, wire.CAMPAIGNS_PATH, MAX_LISTING_BYTES))
        runs = [str(campaign["id"]) for campaign in listed["campaigns"]]
        run_by_campaign = {wire.seal_digits(run): run for run in runs}
        populations: set[str] = set()
        for run in islice(run_by_campaign.values(), MAX_CAMPAIGNS_COMPARED):
            view = _fetch_view(http, run)
            populations.add(view["population_id"] or view["seal"])
            if len(populations) > 1:
                break
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{printable(url)}: is not a coordinator of checkins") from error
    if not runs:
        raise UsageError(f"{printable(url)}: has no campaign yet")
    if len(populations) > 1 or len(run_by_campaign) > MAX_CAMPAIGNS_COMPARED:
        problem = "campaigns of several populations" if len(populations) > 1 else "many campaigns"
        paths = ", ".join(wire.RUN_PATH.format(run=run) for run in runs[:8])
        raise UsageError(
            f"{printable(url)}: has {problem}; add the path of a run to the URL: {paths}"
        )
    return runs[0]


def split_run_from_url(given: GivenOptions) -> tuple[str, GivenOptions]:
    """Split the URL argument. Return the service's address and the options.

    If the URL names a run, the returned options have its id as ``--campaign``.
    """
    from checkins.client.joining import split_run_url

    url = given.values["url"]
    base_url, run = split_run_url(url)
    if run is None:
        return url, given
    if given.texts.get("campaign", run) != run:
        raise given.invalid("campaign", f"the URL names another run, {run}")
    return base_url, given.replacing(campaign=run)


def fetch_checked_campaign(url: str, given: GivenOptions) -> CampaignView:
    """Fetch the campaign to join. Raise if its seal is not the one of ``--seal``."""
    from checkins.client import ServiceFailed, fetch_campaign
    from checkins.client.actions import UNTRUSTED_CERTIFICATE
    from checkins.optional_imports import import_optional

    for name in ("httpx", "safetensors"):
        import_optional(name, value=url, setting="url")

    def tell(reason: str) -> None:
        warn(f"{printable(url)}: does not respond ({reason}); retrying")

    with errors_as_option_errors(given):
        connection = connection_arguments(given)
        try:
            view = fetch_campaign(url, given.texts.get("campaign"), on_retry=tell, **connection)
        except ServiceFailed as error:
            if UNTRUSTED_CERTIFICATE in str(error):
                raise _untrusted(url) from error
            raise
        view.check(seal=given.texts.get("seal"))
    return view


def task_of(view: CampaignView) -> Task:
    """Return the task of the campaign. Raise if the campaign has no task."""
    if view.campaign.task is None:
        raise UsageError(f"campaign {view.id}: has no [task], so a device has nothing to train")
    return view.campaign.task


def read_keys(given: GivenOptions) -> list[str]:
    """Return the keys in the file of ``--key-file``, or an empty list without this option."""
    if "key_file" not in given:
        return []
    from checkins.client import joining

    with errors_as_option_errors(given):
        return joining.read_keys(Path(given.texts["key_file"]))


def connection_arguments(given: GivenOptions) -> dict[str, Any]:
    """Return the arguments of the client library that ``CONNECTION_OPTIONS`` mean."""
    return {"ca": given.texts.get("ca"), "plain_http": given.values["plain_http"]}


@contextmanager
def errors_as_option_errors(given: GivenOptions) -> Iterator[None]:
    """Convert an ``InvalidValue`` of the client library into an error that names the option."""
    try:
        yield
    except InvalidData as error:
        raise given.invalid("data", describe_data_error(error)) from error
    except InvalidValue as error:
        name = OPTION_NAMES.get(error.name, error.name)
        if name in given:
            raise given.invalid(name, error.expected) from error
        if error.value is None or name in OPTION_NAMES.values():
            raise UsageError(f"{dashed_name(name)}: {error.expected}") from error
        raise
