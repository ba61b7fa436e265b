"""`checkins serve`: the coordinator of a campaign, for devices that come and go."""

from __future__ import annotations

import json as jsons
import os
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from checkins.cli import options, screen
from checkins.cli.failures import Refused, quoted
from checkins.cli.options import Given, Texts, text

if TYPE_CHECKING:
    from checkins.campaign import Campaign
    from checkins.service.settings import Enrolment, Limits, Settings

STORE = "sqlite:///checkins.db"
HOST, PORT = "127.0.0.1", 8470
OPERATOR = "CHECKINS_OPERATOR_TOKEN"
STORE_VARIABLE = "CHECKINS_STORE"
"""So that a password need not stand where every process of the machine can read it."""

File = Annotated[str | None, typer.Argument(metavar="CAMPAIGN.TOML", show_default=False)]
Store = Annotated[
    Texts,
    text(
        "--store",
        "URL",
        f"sqlite:///FILE.db, or postgresql://...; or set {STORE_VARIABLE}. Default {STORE}.",
    ),
]
Host = Annotated[Texts, text("--host", "H", f"Address to listen on. Default {HOST}.")]
Port = Annotated[Texts, text("--port", "P", f"0 picks a free one. Default {PORT}.")]
Workers = Annotated[
    Texts, text("--workers", "N", "Processes on one address; more than 1 need PostgreSQL.")
]
StartAt = Annotated[
    Texts,
    text(
        "--start",
        "now|+SECONDS|INSTANT",
        "Begin then, whatever the file says; the campaign is sealed with it.",
    ),
]
EnrolmentKind = Annotated[
    Texts, text("--enrolment", "open|secret|allow-list", "Who may enrol. Default open.")
]
SecretFile = Annotated[
    Texts, text("--secret-file", "FILE", "Holds the secret that every client shows to enrol.")
]
AllowList = Annotated[
    Texts,
    text("--allow-list", "FILE", "One key a line, or sha256:HEX of it; each enrols once a run."),
]
TokenFile = Annotated[
    Texts,
    text(
        "--operator-token-file",
        "FILE",
        f"Holds the operator's token; or set {OPERATOR}. Without either one is made and shown.",
    ),
]
Witness = Annotated[
    Texts,
    text(
        "--witness",
        "FILE",
        "Remembers outside the store how far it came. Default: a file in $XDG_STATE_HOME/checkins,"
        " or in ~/.local/state/checkins.",
    ),
]
Again = Annotated[
    bool,
    typer.Option(
        "--again",
        help="With --start now or +SECONDS: open the campaign once more if it is over.",
    ),
]
Restore = Annotated[
    bool,
    typer.Option(
        "--restore",
        help="Use a store that was rolled back: ends every campaign that was running in it.",
    ),
]
TrustClock = Annotated[
    bool,
    typer.Option(
        "--trust-clock",
        help="The clock is right although it has jumped: slots that are over by it are closed.",
    ),
]
Rate = Annotated[
    Texts, text("--rate", "R", "Requests a second of one address; 0: any. Default 1000.")
]
Connections = Annotated[
    Texts, text("--connections", "C", "Open at once, of one worker. Default 15000.")
]
PerAddress = Annotated[
    Texts, text("--per-address", "C", "Connections of one address; 0: any. Default 1000.")
]
Proxies = Annotated[
    Texts,
    text(
        "--trusted-proxies",
        "A,B",
        "Addresses or networks whose X-Forwarded-For tells a client's address, for --rate;"
        " --per-address is not for them.",
    ),
]
LogFile = Annotated[Texts, text("--log-file", "FILE", "JSON lines. Default: standard error.")]
NoPlan = Annotated[
    bool,
    typer.Option("--no-plan", help="Make no plans: without it anyone may ask for some, at /plan."),
]
UntilDone = Annotated[bool, typer.Option("--until-done", help="Leave once the campaign is over.")]


def serve(
    context: typer.Context,
    file: File = None,
    store: Store = None,
    host: Host = None,
    port: Port = None,
    workers: Workers = None,
    start: StartAt = None,
    enrolment: EnrolmentKind = None,
    secret_file: SecretFile = None,
    allow_list: AllowList = None,
    operator_token_file: TokenFile = None,
    witness: Witness = None,
    again: Again = False,
    restore: Restore = False,
    trust_clock: TrustClock = False,
    rate: Rate = None,
    connections: Connections = None,
    per_address: PerAddress = None,
    trusted_proxies: Proxies = None,
    log_file: LogFile = None,
    no_plan: NoPlan = False,
    until_done: UntilDone = False,
    json: options.Json = False,
) -> None:
    """Run the coordinator of a campaign until it is told to stop.

    Started again with the same file and store, it goes on where it was. Without a file it serves
    what the store holds, and campaigns that the operator posts.
    """
    given = Given.of(context)
    _require_service()
    shown = _without_password(given)
    from checkins.service import logs, server, startup

    campaign, folder = (None, Path.cwd()) if file is None else _campaign(file)
    with shown.in_own_words():
        begins = startup.Start()
        if "start" in given:
            begins = startup.parsed_start(given.texts["start"])
        settings, made = _settings(given, folder, plan=not no_plan)
        count = _whole(given, "workers", 1)
        listen_port = _whole(given, "port", PORT, least=0, most=65535)
    if count > 1 and settings.store.startswith("sqlite"):
        raise given.contradiction("workers", "SQLite has one: give --store postgresql://...")
    if until_done and (campaign is None or count > 1):
        raise Refused("--until-done: goes with a campaign file and one worker")
    listen_host = given.texts.get("host", HOST)
    with given.in_own_words():
        listener = server.bind(listen_host, listen_port)
    if restore and settings.witness is not None and not settings.witness.exists():
        print(
            f"checkins: {settings.witness}: no such witness, so runs that were opened after the"
            " copy was made go unnoticed: name that of the store that was lost with --witness",
            file=sys.stderr,
        )
    warnings: list[str] = []
    try:
        if "witness" not in given and settings.witness is not None:
            settings.witness.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with screen.working("opening the campaign", quiet=json):
            terms = startup.prepare(
                settings,
                campaign,
                start=begins,
                again=again,
                restore=restore,
                trust_clock=trust_clock,
                warn=warnings.append,
            )
    except BaseException as error:
        listener.close()
        if not isinstance(error, Exception):
            raise
        raise _explained(error, settings) from error
    for warning in warnings:
        print(f"checkins: {warning}", file=sys.stderr)
    named = f"[{listen_host}]" if ":" in listen_host else listen_host
    url = f"http://{named}:{listener.getsockname()[1]}"
    answer: dict[str, object] = {
        "url": url,
        "campaign": None if terms is None else terms.id,
        "seal": None if terms is None else terms.seal,
        "start": None if terms is None else _instant(terms.begins(1)),
        "store": settings.shown_store,
        "witness": str(settings.witness),
        "enrolment": str(settings.enrolment.kind),
        "workers": count,
        "operator_token": settings.operator_token if made else None,
    }

    def ready() -> None:
        try:
            if json:
                print(jsons.dumps(answer))
            else:
                _tell(answer)
            sys.stdout.flush()
        except OSError:  # a full disk, or nobody reads it: campaigns go on without
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


def _without_password(given: Given) -> Given:
    """The same, as it may be printed."""
    from checkins.service.settings import shown_url

    if "store" not in given:
        return given
    return Given({**given.texts, "store": shown_url(given.texts["store"])})


def _require_service() -> None:
    try:
        import fastapi  # noqa: F401
        import sqlalchemy  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise Refused(
            f"serve needs the extra service ({error.name} is missing):"
            " pip install 'checkins[service]'"
        ) from error


def _campaign(file: str) -> tuple[Campaign, Path]:
    from checkins.campaign import read_campaign

    found = read_campaign(file).campaign
    if found.missing:
        raise Refused(f"{quoted(file)}: cannot be served without {', '.join(found.missing)}")
    return found, Path(file).resolve().parent


def _settings(given: Given, folder: Path, *, plan: bool) -> tuple[Settings, bool]:
    from checkins.service.settings import Settings, read_secret
    from checkins.service.store.rollback_guard import default_witness

    store = given.texts.get("store") or os.environ.get(STORE_VARIABLE) or STORE
    token, made = os.environ.get(OPERATOR), False
    if "operator_token_file" in given:
        path = Path(given.texts["operator_token_file"])
        token = read_secret(path, name="operator_token_file")
    if token is None:
        token, made = secrets.token_urlsafe(24), True
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
        plan=plan,
    )
    return settings, made


def _enrolment(given: Given) -> Enrolment:
    from checkins.cli import values
    from checkins.service.settings import Enrolment, EnrolmentKind

    inferred = (
        "secret" if "secret_file" in given else "allow-list" if "allow_list" in given else "open"
    )
    kind = values.one_of("enrolment", given.texts.get("enrolment", inferred), EnrolmentKind)
    if kind is EnrolmentKind.SECRET:
        return Enrolment.from_secret_file(Path(given.need("secret_file", "a file")))
    if kind is EnrolmentKind.ALLOW_LIST:
        return Enrolment.from_allow_list_file(Path(given.need("allow_list", "a file")))
    return Enrolment.open()


def _limits(given: Given) -> Limits:
    from checkins import validate
    from checkins.cli import values
    from checkins.service.settings import Limits

    rate = values.real("rate", given.texts.get("rate", "1000"), validate.non_negative)
    return Limits(
        requests_per_s=rate,
        connections=_whole(given, "connections", 15_000, least=0),
        per_address=_whole(given, "per_address", 1000, least=0),
    )


def _whole(given: Given, name: str, default: int, *, least: int = 1, most: int = 10**6) -> int:
    from checkins.errors import InvalidValue

    text = given.texts.get(name, str(default))
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not least <= number <= most:
        raise InvalidValue(name, text, f"must be an integer from {least} to {most:,}")
    return number


def _explained(error: Exception, settings: Settings) -> Exception:
    from sqlalchemy.exc import DBAPIError

    from checkins.errors import ComputationFailed, ProtocolViolation
    from checkins.service.store.database import StoreAway
    from checkins.service.store.rollback_guard import NotRolledBack, RolledBack

    if isinstance(error, StoreAway):
        return ComputationFailed(f"--store {settings.shown_store}: {error}")
    if isinstance(error, RolledBack | NotRolledBack):
        return Refused(f"{settings.shown_store}: {error}")
    if isinstance(error, ProtocolViolation):
        return Refused(str(error))
    witness = settings.witness
    if isinstance(error, OSError) and witness is not None and _is_about(error, witness):
        return Refused(
            f"--witness {witness}: cannot be used: {error.strerror}; name a file outside the store"
            " that can be written, and that no backup of the store puts back"
        )
    if isinstance(error, OSError):
        return Refused(f"--store {settings.shown_store}: cannot be used: {error.strerror}")
    if isinstance(error, DBAPIError) and "not a database" in str(error.orig):
        return Refused(f"--store {settings.shown_store}: is no database of checkins")
    if isinstance(error, DBAPIError):
        return Refused(
            f"--store {settings.shown_store}: cannot be used"
            f" ({type(error.orig).__name__}): is it there, and may we write to it?"
        )
    return error


def _is_about(error: OSError, path: Path) -> bool:
    """Whether an error names this file, the one that replaces it, or a folder that it is in."""
    named = Path(str(error.filename))
    return named.with_suffix("") == path.with_suffix("") or named in path.parents


def _instant(moment: float) -> str:
    from checkins.service.runs.cached_responses import instant

    return instant(moment)


def _tell(answer: dict[str, object]) -> None:
    screen.show_plain(f"The page:  {answer['url']}/")
    if answer["campaign"] is not None:
        screen.show_plain(f"Campaign:  {answer['campaign']}, first slot at {answer['start']}")
        key = "" if answer["enrolment"] == "open" else " --key-file FILE"
        screen.show_plain(f"To join:   checkins join {answer['url']} --data FILE --state DIR{key}")
    screen.show_plain(f"Store:     {answer['store']}")
    screen.show_plain(f"Witness:   {answer['witness']} (never copy it with the store)")
    if answer["operator_token"] is not None:
        screen.show_plain(f"Operator's token, made for this start: {answer['operator_token']}")
    screen.show_plain("Ctrl-C stops it; started again, it goes on.")
