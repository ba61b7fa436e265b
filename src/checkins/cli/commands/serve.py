"""`checkins serve`: run the coordinator of a campaign."""

from __future__ import annotations

import json as jsons
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from checkins import validate
from checkins.cli import params, terminal
from checkins.cli.errors import UsageError, missing_extra, printable, warn
from checkins.cli.params import GivenOptions, options

if TYPE_CHECKING:
    from checkins.campaign import Campaign
    from checkins.service.settings import Enrolment, Limits, Settings

STORE = "sqlite:///checkins.db"
HOST, PORT = "127.0.0.1", 8470
MOST_LIMIT = 10**6
OPERATOR = "CHECKINS_OPERATOR_TOKEN"
STORE_VARIABLE = "CHECKINS_STORE"
"""Environment variable for the URL of the store, because the URL may contain a password."""

OPTIONS = (
    params.argument("file", "[CAMPAIGN.TOML]", required=False),
    *options(f"""
    --store URL  The database: sqlite:///FILE.db or postgresql://... Default: the environment
        variable {STORE_VARIABLE}, otherwise {STORE}.
    --host H  Address to listen on. Default {HOST}.
    --port P  Port to listen on; 0 means any free port. Default {PORT}.
    --workers N  Number of processes. More than one process needs PostgreSQL. Default 1.
    --start now|+SECONDS|INSTANT  When the first slot begins, in place of the time in the file.
        This changes the seal.
    --enrolment open|secret|allow-list  Who may enrol. open: anyone. secret: clients that send
        the secret of --secret-file. allow-list: clients that send a key of --allow-list.
        Default: as the given file implies, otherwise open.
    --secret-file FILE  File with the secret that every client needs to enrol.
    --allow-list FILE  File with one key, or the sha256:HEX of a key, on each line. Each key can
        enrol once per run.
    --operator-token-file FILE  File with the token for operators. Default: the environment
        variable {OPERATOR}, otherwise a token is generated and printed.
    --witness FILE  File outside the store that records the progress of the store, to detect
        that the store was rolled back. Default: a file in $XDG_STATE_HOME/checkins or
        ~/.local/state/checkins.
    --again  Run the campaign again if it is over. Needs --start now or --start +SECONDS.
    --restore  Accept a store that was rolled back, and end every campaign that was running in
        it.
    --trust-clock  Accept that the system clock has jumped, and close the slots whose time has
        passed.
    --rate R  Largest number of requests per second from one address; 0 means no limit. Default
        1000.
    --connections C  Largest number of open connections of one worker. Default 15000.
    --per-address C  Largest number of connections from one address; 0 means no limit. Default
        1000.
    --trusted-proxies A,B  Addresses or networks of trusted proxies. For their requests, --rate
        counts by the address in the header X-Forwarded-For, and --per-address does not apply.
    --log-file FILE  File for the log, in JSON lines. Default: standard error.
    --no-plan  Disable the planner at /plan. By default anyone may use it.
    --until-done  Exit when the campaign is over. Needs a campaign file and one worker.
    """),
    params.JSON,
)


@params.command(*OPTIONS)
def serve(given: GivenOptions) -> None:
    """Run the coordinator of a campaign until it is stopped.

    Started again with the same file and store, the coordinator continues where it stopped. Without
    a file, it serves the campaigns in the store and those that the operator posts.
    """
    _require_service()
    masked = _without_password(given)
    from checkins.protocol.wire import format_time
    from checkins.service import logs, server, startup

    values, json = given.values, given.json
    file, until_done = values["file"], values["until_done"]
    campaign, folder = (None, Path.cwd()) if file is None else _campaign(file)
    with masked.naming_options():
        begins = startup.Start()
        if "start" in given:
            begins = startup.parsed_start(given.texts["start"])
        settings, generated = _settings(given, folder)
        count = given.integer("workers", default=1, most=MOST_LIMIT)
        listen_port = given.integer("port", default=PORT, least=0, most=65535)
    if count > 1 and settings.store.startswith("sqlite"):
        raise given.invalid("workers", "SQLite allows one worker: give --store postgresql://...")
    if until_done and (campaign is None or count > 1):
        raise UsageError("--until-done: needs a campaign file and one worker")
    listen_host = given.texts.get("host", HOST)
    with given.naming_options():
        listener = server.bind(listen_host, listen_port)
    if values["restore"] and settings.witness is not None and not settings.witness.exists():
        warn(
            f"{settings.witness}: no such witness file. Without it, runs that were opened after the"
            " copy was made are not detected. Name the witness of the lost store with --witness"
        )
    warnings: list[str] = []
    try:
        if "witness" not in given and settings.witness is not None:
            settings.witness.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with terminal.working("opening the campaign", quiet=json):
            terms = startup.prepare(
                settings,
                campaign,
                start=begins,
                again=values["again"],
                restore=values["restore"],
                trust_clock=values["trust_clock"],
                warn=warnings.append,
            )
    except BaseException as error:
        listener.close()
        if not isinstance(error, Exception):
            raise
        raise _explained(error, settings) from error
    for warning in warnings:
        warn(warning)
    named = f"[{listen_host}]" if ":" in listen_host else listen_host
    url = f"http://{named}:{listener.getsockname()[1]}"
    answer: dict[str, object] = {
        "url": url,
        "campaign": terms and terms.id,
        "seal": terms and terms.seal,
        "start": terms and format_time(terms.times.begins(1)),
        "store": settings.redacted_store,
        "witness": str(settings.witness),
        "enrolment": str(settings.enrolment.kind),
        "workers": count,
        "operator_token": settings.operator_token if generated else None,
    }

    def ready() -> None:
        try:
            if json:
                print(jsons.dumps(answer))
            else:
                _show(answer)
            sys.stdout.flush()
        except OSError:  # a full disk or a closed pipe does not stop the campaigns
            logs.warning("output-lost")
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115

    if count == 1:
        server.serve(
            settings,
            listener,
            ready=ready,
            until_done=terms.id if until_done and terms is not None else None,
        )
    else:
        server.serve_with_workers(settings, listener, workers=count, ready=ready)


def _without_password(given: GivenOptions) -> GivenOptions:
    """Return the options with the password in the store's URL masked, for error messages."""
    from checkins.service.settings import redacted_url

    return given.replacing(store=redacted_url(given.texts["store"])) if "store" in given else given


def _require_service() -> None:
    try:
        import fastapi  # noqa: F401
        import sqlalchemy  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise missing_extra("serve", "service", error) from error


def _campaign(file: str) -> tuple[Campaign, Path]:
    from checkins.campaign import read_campaign

    found = read_campaign(file).campaign
    if found.missing:
        raise UsageError(f"{printable(file)}: cannot be served without {', '.join(found.missing)}")
    return found, Path(file).resolve().parent


def _settings(given: GivenOptions, folder: Path) -> tuple[Settings, bool]:
    import secrets

    from checkins.service.authentication import read_secret
    from checkins.service.settings import Settings
    from checkins.service.store.rollback_guard import default_witness

    store = given.texts.get("store") or os.environ.get(STORE_VARIABLE) or STORE
    token, generated = os.environ.get(OPERATOR), False
    if "operator_token_file" in given:
        path = Path(given.texts["operator_token_file"])
        token = read_secret(path, name="operator_token_file")
    if token is None:
        token, generated = secrets.token_urlsafe(24), True
    witness = Path(given.texts["witness"]) if "witness" in given else default_witness(store, folder)
    settings = Settings(
        store=store,
        enrolment=_enrolment(given),
        operator_token=token,
        limits=_limits(given),
        folder=folder,
        witness=witness,
        trusted_proxies=tuple(given.texts.get("trusted_proxies", "").replace(",", " ").split()),
        log_file=Path(given.texts["log_file"]) if "log_file" in given else None,
        plan=not given.values["no_plan"],
    )
    return settings, generated


def _enrolment(given: GivenOptions) -> Enrolment:
    from checkins.service.settings import Enrolment, EnrolmentKind

    inferred = (
        "secret" if "secret_file" in given else "allow-list" if "allow_list" in given else "open"
    )
    kind = given.choice("enrolment", EnrolmentKind, default=inferred)
    if kind is EnrolmentKind.SECRET:
        return Enrolment.from_secret_file(Path(given.required("secret_file", "a file")))
    if kind is EnrolmentKind.ALLOW_LIST:
        return Enrolment.from_allow_list_file(Path(given.required("allow_list", "a file")))
    return Enrolment.open()


def _limits(given: GivenOptions) -> Limits:
    from checkins.service.settings import Limits

    return Limits(
        requests_per_s=given.number("rate", validate.non_negative, default=1000.0),
        connections=given.integer("connections", default=15_000, least=0, most=MOST_LIMIT),
        per_address=given.integer("per_address", default=1000, least=0, most=MOST_LIMIT),
    )


def _explained(error: Exception, settings: Settings) -> Exception:
    from sqlalchemy.exc import DBAPIError

    from checkins.errors import ComputationFailed, ProtocolViolation
    from checkins.service.store.database import StoreUnavailable
    from checkins.service.store.rollback_guard import NotRolledBack, RolledBack

    if isinstance(error, StoreUnavailable):
        return ComputationFailed(f"--store {settings.redacted_store}: {error}")
    if isinstance(error, RolledBack | NotRolledBack):
        return UsageError(f"{settings.redacted_store}: {error}")
    if isinstance(error, ProtocolViolation):
        return UsageError(str(error))
    witness = settings.witness
    if isinstance(error, OSError) and witness is not None and _is_about(error, witness):
        return UsageError(
            f"--witness {witness}: cannot be used: {error.strerror}; name a writable file that"
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
    """Return True if the error is about this file, its temporary copy or a parent folder."""
    named = Path(str(error.filename))
    return named.with_suffix("") == path.with_suffix("") or named in path.parents


def _show(answer: dict[str, object]) -> None:
    show = terminal.show_plain
    show(f"Page:      {answer['url']}/")
    if answer["campaign"] is not None:
        show(f"Campaign:  {answer['campaign']}, first slot at {answer['start']}")
        key = "" if answer["enrolment"] == "open" else " --key-file FILE"
        show(f"To join:   checkins join {answer['url']} --data FILE --state DIR{key}")
    show(f"Store:     {answer['store']}")
    show(f"Witness:   {answer['witness']} (do not copy it with the store)")
    if answer["operator_token"] is not None:
        show(f"Operator token, generated for this start: {answer['operator_token']}")
    show("Ctrl-C stops the service. The same command continues.")
