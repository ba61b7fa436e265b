"""`checkins serve`: run the coordinator (the server) of a campaign."""

from __future__ import annotations

import json as json_module
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from checkins import validate
from checkins.cli import params, terminal
from checkins.cli.params import GivenOptions, options
from checkins.cli.terminal import UsageError, printable, warn

if TYPE_CHECKING:
    import socket

    from checkins.campaign import Campaign
    from checkins.protocol.server import Ending
    from checkins.service.settings import Enrolment, Limits, Settings
    from checkins.service.store.run_state import RunSpec

DEFAULT_STORE = "sqlite:///checkins.db"
DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8470
LARGEST_LIMIT = 10**6
"""Largest value of the options that limit connections or set the number of workers."""
OPERATOR_TOKEN_VARIABLE = "CHECKINS_OPERATOR_TOKEN"
STORE_VARIABLE = "CHECKINS_STORE"
"""Environment variable for the URL of the store, because the URL may contain a password."""
SECONDS_PER_DAY = 86_400.0

OPTIONS = (
    params.argument("file", "[CAMPAIGN.TOML]", required=False),
    *options(f"""
    --store URL  The database (store): sqlite:///FILE.db or postgresql://... Default: the
        environment variable {STORE_VARIABLE}, otherwise {DEFAULT_STORE}.
    --host H  Address to listen on. Default {DEFAULT_HOST}.
    --port P  Port to listen on; 0 means any free port. Default {DEFAULT_PORT}.
    --tls-cert FILE  Certificate for HTTPS in PEM format, followed by the certificates that signed
        it. Needs --tls-key. After a renewal, SIGHUP loads both files again.
    --tls-key FILE  Private key of the certificate in PEM format, without a password.
    --plain-http  Serve without encryption on an address that other machines can reach, because a
        proxy in front of the coordinator encrypts the connections, or for a test.
    --workers N  Number of processes. More than one process needs PostgreSQL. Default 1.
    --start now|+SECONDS|INSTANT  When the first slot begins, such as +60 or
        2030-01-01T00:00:00Z. It replaces the time in the file and so changes the seal, the
        hash of the campaign.
    --enrolment open|secret|allow-list  Who may enrol. open: anyone. secret: clients that send
        the secret of --secret-file. allow-list: clients that send a key of --allow-list.
        Default: secret with --secret-file, allow-list with --allow-list, otherwise open.
    --secret-file FILE  File with the secret that every client needs to enrol.
    --allow-list FILE  File with one key, or the hash sha256:HEX of a key, on each line. With each
        key, one client can enrol per run. `checkins allow-list` adds and revokes keys later.
    --operator-token-file FILE  File with the token that operators send. Default: the environment
        variable {OPERATOR_TOKEN_VARIABLE}, otherwise a token is generated and printed.
    --signing-key FILE  Key file that `checkins signing-key` wrote, to sign the hashes of ledgers.
        Default: nothing is signed.
    --progress-file FILE  File outside the store that records how far its campaigns have progressed,
        so that the coordinator detects a store that was restored from an earlier copy. Default: a
        file in $XDG_STATE_HOME/checkins or ~/.local/state/checkins.
    --again  Open the campaign once more if it is over. Needs --start now or --start +SECONDS.
    --restore  Accept a store that was rolled back, and end every campaign that was running in
        it.
    --trust-clock  Accept that the system clock was set forward, and close the slots whose time
        has passed.
    --rate R  Largest number of requests per second from one address; 0 means no limit. Default
        1000.
    --connections C  Largest number of open connections of one process. Default 15000.
    --per-address C  Largest number of connections from one address; 0 means no limit. Default
        1000.
    --trusted-proxies A,B  Addresses or networks of trusted proxies. For requests from them, --rate
        applies to the address in the header X-Forwarded-For, and --per-address does not apply.
    --log-file FILE  File for the log, in JSON lines. Default: standard error.
    --no-plan  Disable the planner, the page /plan. By default anyone may use it.
    --until-done  Exit when the campaign is over. Needs a campaign file and one worker.
    """),
    click.Option(["--witness"], multiple=True, hidden=True),  # earlier name of --progress-file
    params.JSON_OPTION,
)


@params.command(*OPTIONS)
def serve(given: GivenOptions) -> None:
    """Run the coordinator of a campaign until it is stopped.

    If it is started again with the same file and store, the coordinator continues where it stopped.
    Without a file, it serves the campaigns in the store and those that the operator adds by HTTP.
    """
    if "witness" in given:
        given = given.replacing(progress_file=given.texts["witness"])
    redacted = _redacted_options(given)
    from checkins.protocol.wire import format_time
    from checkins.service import logs, server, startup

    values, json = given.values, given.json
    file, until_done = values["file"], values["until_done"]
    campaign, folder = (None, Path.cwd()) if file is None else _campaign(file)
    with redacted.errors_as_option_errors():
        start = startup.Start()
        if "start" in given:
            start = startup.parse_start(given.texts["start"])
        settings, is_generated = _settings(given, folder)
        worker_count = given.integer("workers", default=1, most=LARGEST_LIMIT)
        listen_port = given.integer("port", default=DEFAULT_PORT, least=0, most=65535)
    if worker_count > 1 and settings.store.startswith("sqlite"):
        raise given.invalid(
            "workers", "SQLite allows only one worker; more workers need --store postgresql://..."
        )
    if until_done and (campaign is None or worker_count > 1):
        raise UsageError("--until-done: needs a campaign file and one worker")
    listen_host = given.texts.get("host", DEFAULT_HOST)
    with given.errors_as_option_errors():
        listener = server.bind(listen_host, listen_port)
    _require_encryption(settings, listener, given)
    if (
        values["restore"]
        and settings.progress_file is not None
        and not settings.progress_file.exists()
    ):
        warn(
            f"{settings.progress_file}: this progress file does not exist. Only the file of the"
            " lost store shows whether runs were opened after the copy was made. Name it with"
            " --progress-file"
        )
    warnings: list[str] = []
    try:
        if "progress_file" not in given and settings.progress_file is not None:
            settings.progress_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with terminal.spinner("opening the campaign", quiet=json):
            run_spec = startup.prepare(
                settings,
                campaign,
                start=start,
                start_again=values["again"],
                restore=values["restore"],
                trust_clock=values["trust_clock"],
                warn=warnings.append,
            )
            ending = None if run_spec is None else startup.ending_of(settings, run_spec)
    except BaseException as error:
        listener.close()
        if not isinstance(error, Exception):
            raise
        raise _as_usage_error(error, settings) from error
    for warning in warnings:
        warn(warning)
    url_host = f"[{listen_host}]" if ":" in listen_host else listen_host
    scheme = "http" if settings.tls_cert is None else "https"
    url = f"{scheme}://{url_host}:{listener.getsockname()[1]}"
    summary: dict[str, object] = {
        "url": url,
        "campaign": run_spec and run_spec.id,
        "seal": run_spec and run_spec.seal,
        "start": run_spec and format_time(run_spec.run_schedule.begins(1)),
        "store": settings.redacted_store,
        "progress_file": str(settings.progress_file),
        "witness": str(settings.progress_file),  # the earlier name
        "enrolment": str(settings.enrolment.kind),
        "workers": worker_count,
        "operator_token": settings.operator_token if is_generated else None,
    }

    def ready() -> None:
        try:
            if json:
                print(json_module.dumps(summary))
            else:
                wait_s = 0.0
                if run_spec is not None:
                    wait_s = run_spec.run_schedule.begins(1) - time.time()
                rows_option = _rows_option(run_spec)
                _show_summary(summary, rows_option=rows_option, ending=ending, wait_s=wait_s)
            sys.stdout.flush()
        except OSError:  # the disk is full or the pipe is closed; the campaigns go on
            logs.warning("output-lost")
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115

    if worker_count == 1:
        server.serve(
            settings,
            listener,
            ready=ready,
            until_done=run_spec.id if until_done and run_spec is not None else None,
        )
    else:
        server.serve_with_workers(settings, listener, workers=worker_count, ready=ready)


def _require_encryption(settings: Settings, listener: socket.socket, given: GivenOptions) -> None:
    """Close the listener and raise if other machines could connect to it without encryption."""
    from checkins.protocol.wire import is_loopback

    host = str(listener.getsockname()[0])
    if settings.tls_cert is not None or given.values["plain_http"] or is_loopback(host):
        return
    listener.close()
    raise given.invalid(
        "host",
        "other machines can reach this address, and HTTP is not encrypted: give --tls-cert and"
        " --tls-key, or --plain-http if a proxy in front of the coordinator encrypts",
    )


def _redacted_options(given: GivenOptions) -> GivenOptions:
    """Return the options without the password in the store's URL, for error messages."""
    from checkins.service.settings import redacted_url

    return given.replacing(store=redacted_url(given.texts["store"])) if "store" in given else given


def _campaign(file: str) -> tuple[Campaign, Path]:
    from checkins.campaign import read_campaign

    campaign = read_campaign(file).campaign
    if campaign.missing:
        raise UsageError(
            f"{printable(file)}: cannot be served without {', '.join(campaign.missing)}"
        )
    return campaign, Path(file).resolve().parent


def _settings(given: GivenOptions, folder: Path) -> tuple[Settings, bool]:
    import secrets

    from checkins.ledger.signature import SigningKey
    from checkins.service.authentication import read_secret
    from checkins.service.http.tls import Certificate
    from checkins.service.settings import Settings
    from checkins.service.store.rollback_detection import default_progress_file

    store = given.texts.get("store") or os.environ.get(STORE_VARIABLE) or DEFAULT_STORE
    token, is_generated = os.environ.get(OPERATOR_TOKEN_VARIABLE), False
    if "operator_token_file" in given:
        path = Path(given.texts["operator_token_file"])
        token = read_secret(path, name="operator_token_file")
    if token is None:
        token, is_generated = secrets.token_urlsafe(24), True
    progress_file = given.path("progress_file") or default_progress_file(store, folder)
    settings = Settings(
        store=store,
        enrolment=_enrolment(given),
        operator_token=token,
        limits=_limits(given),
        folder=folder,
        progress_file=progress_file,
        trusted_proxies=tuple(given.texts.get("trusted_proxies", "").replace(",", " ").split()),
        log_file=Path(given.texts["log_file"]) if "log_file" in given else None,
        plan=not given.values["no_plan"],
        tls_cert=given.path("tls_cert"),
        tls_key=given.path("tls_key"),
        signing_key=given.path("signing_key"),
    )
    Certificate.of(settings)  # raises if the files are not valid, before a worker starts
    if settings.signing_key is not None:
        SigningKey.read(settings.signing_key)
    return settings, is_generated


def _enrolment(given: GivenOptions) -> Enrolment:
    from checkins.service.settings import Enrolment, EnrolmentKind

    inferred = (
        "secret" if "secret_file" in given else "allow-list" if "allow_list" in given else "open"
    )
    kind = given.choice("enrolment", EnrolmentKind, default=inferred)
    if kind is EnrolmentKind.SECRET:
        return Enrolment.from_secret_file(Path(given.required("secret_file", "must be a file")))
    if kind is EnrolmentKind.ALLOW_LIST:
        if "allow_list" not in given:
            return Enrolment(kind=EnrolmentKind.ALLOW_LIST)
        return Enrolment.from_allow_list_file(Path(given.texts["allow_list"]))
    return Enrolment.open()


def _limits(given: GivenOptions) -> Limits:
    from checkins.service.settings import Limits

    return Limits(
        requests_per_s=given.number("rate", validate.non_negative, default=1000.0),
        connections=given.integer("connections", default=15_000, least=0, most=LARGEST_LIMIT),
        per_address=given.integer("per_address", default=1000, least=0, most=LARGEST_LIMIT),
    )


def _as_usage_error(error: Exception, settings: Settings) -> Exception:
    from sqlalchemy.exc import DBAPIError

    from checkins.errors import ComputationFailed, ProtocolViolation
    from checkins.service.store.database import StoreUnavailable
    from checkins.service.store.rollback_detection import NotRolledBack, RolledBack

    if isinstance(error, StoreUnavailable):
        return ComputationFailed(f"--store {settings.redacted_store}: {error}")
    if isinstance(error, RolledBack | NotRolledBack):
        return UsageError(f"{settings.redacted_store}: {error}")
    if isinstance(error, ProtocolViolation):
        return UsageError(str(error))
    path = settings.progress_file
    if isinstance(error, OSError) and path is not None and _is_about(error, path):
        return UsageError(
            f"--progress-file {path}: cannot be used: {error.strerror}; name a writable file that"
            " is not part of any backup of the store"
        )
    if isinstance(error, OSError):
        return UsageError(f"--store {settings.redacted_store}: cannot be used: {error.strerror}")
    if isinstance(error, DBAPIError) and "not a database" in str(error.orig):
        return UsageError(f"--store {settings.redacted_store}: is not a database of checkins")
    if isinstance(error, DBAPIError):
        return UsageError(
            f"--store {settings.redacted_store}: cannot be used"
            f" ({type(error.orig).__name__}): does it exist, and is it writable?"
        )
    return error


def _is_about(error: OSError, path: Path) -> bool:
    """Return True if the error names this file, its temporary copy or a parent folder."""
    error_path = Path(str(error.filename))
    return error_path.with_suffix("") == path.with_suffix("") or error_path in path.parents


def _rows_option(run_spec: RunSpec | None) -> str:
    from checkins.campaign.task import DEVICES

    task = None if run_spec is None else run_spec.campaign.task
    return "--flower APP" if task is not None and task.data == DEVICES else "--data FILE"


def _address_for_others(url: str) -> str:
    """Replace an address that stands for all addresses by NAME, the name of this machine."""
    for anywhere in ("://0.0.0.0:", "://[::]:"):
        url = url.replace(anywhere, "://NAME:")
    return url


def _show_summary(
    summary: dict[str, object], *, rows_option: str, ending: Ending | None, wait_s: float
) -> None:
    """Show the summary. ``rows_option`` is the option of `join` that names what to train on.

    ``ending`` is how the campaign ended, or None. ``wait_s`` is the time until its first slot.
    """
    show, url = terminal.show_plain, _address_for_others(str(summary["url"]))
    show(f"Page:      {url}/")
    campaign = summary["campaign"]
    if ending is not None:
        show(f"Campaign {campaign} is {ending}; --again with --start +SECONDS opens a new one.")
    elif campaign is not None:
        show(f"Campaign:  {campaign}, first slot at {summary['start']}")
        if wait_s > SECONDS_PER_DAY:
            days = f"{wait_s / SECONDS_PER_DAY:,.0f}"
            show(
                f"Warning:   the first slot is {days} days away. --start +SECONDS begins earlier,"
                " but this run is open now: give it with a new store, before anybody joins"
            )
        key = "" if summary["enrolment"] == "open" else " --key-file FILE"
        show(f"To join:   checkins join {url} {rows_option} --state DIR{key}")
    show(f"Store:     {summary['store']}")
    show(f"Progress:  {summary['progress_file']} (never back up this file with the store)")
    if summary["operator_token"] is not None:
        show(f"Operator token, valid until the service stops: {summary['operator_token']}")
    show("Ctrl-C stops the service. The same command continues it.")
