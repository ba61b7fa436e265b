"""`checkins allow-list` and `checkins operators`: change who may enrol, and who operates a service.

Keys and tokens never leave this machine: the service gets their hashes. `checkins signing-key`
makes the key with which a service signs the hashes of its ledgers.
"""

from __future__ import annotations

import json as json_module
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checkins import durable_file
from checkins.cli import params, remote, terminal
from checkins.cli.commands.serve import OPERATOR_TOKEN_VARIABLE
from checkins.cli.params import GivenOptions, options
from checkins.cli.terminal import UsageError, print_failure, printable
from checkins.protocol import wire

if TYPE_CHECKING:
    pass

KEYS_PER_REQUEST = 1000
TOKEN_OPTION = options(f"""
    --operator-token-file FILE  File with your operator's token. Default: the environment variable
        {OPERATOR_TOKEN_VARIABLE}.
""")


class Role(StrEnum):
    """What the token of an operator may do."""

    OPERATOR = "operator"
    METRICS = "metrics"


@params.command(
    remote.URL_ARGUMENT,
    *options("""
    --add FILE  File with keys that may enrol from now on: one key, or the hash sha256:HEX of a key,
        on each line.
    --revoke FILE  File with keys that may no longer enrol.
    """),
    *TOKEN_OPTION,
    *remote.CONNECTION_OPTIONS,
    params.JSON_OPTION,
)
def allow_list(given: GivenOptions) -> None:
    """Add or revoke keys in the allow-list of a service.

    Without --add and --revoke, print the number of keys that may enrol. A change is durable, and
    applies to every coordinator of the store. A key that was revoked and added again gets no second
    token in the same run. A device that has enrolled before its key was revoked may still take part
    in the open run.
    """
    if "add" in given and "revoke" in given:
        raise UsageError("--add and --revoke: give one of these options at a time")
    change = "add" if "add" in given else "revoke"
    hashes = _key_hashes(given, change) if change in given else []
    path = wire.ADDED_KEYS_PATH if change == "add" else wire.REVOKED_KEYS_PATH
    changed = 0
    with _operator_connection(given) as send:
        for start in range(0, len(hashes), KEYS_PER_REQUEST):
            answer = send("POST", path, {"keys": hashes[start : start + KEYS_PER_REQUEST]})
            changed += answer["changed"]
        size = send("GET", wire.ALLOW_LIST_PATH)["keys"]
    if given.json:
        terminal.show_json({"keys": size, "changed": changed})
        return
    if hashes:
        done = "Added" if change == "add" else "Revoked"
        terminal.show_plain(f"{done}: {changed:,} of {len(hashes):,} keys in the file.")
    terminal.show_plain(f"Keys that may enrol: {size:,}.")


def _key_hashes(given: GivenOptions, option: str) -> list[str]:
    from checkins.service.authentication import Enrolment

    with given.errors_as_option_errors():
        path = Path(given.texts[option])
        keys = Enrolment.from_allow_list_file(path, name=option).allow_list
    return [f"sha256:{digest}" for digest in sorted(keys)]


@params.command(
    remote.URL_ARGUMENT,
    *options("""
    --add NAME  Add an operator with this name, 1 to 40 of a-z, 0-9, ".", "_" and "-". Needs --out.
    --out FILE  File for the token of the new operator. It must not exist.
    --role operator|metrics  What the token may do: everything, or only read the metrics. Default
        operator.
    --revoke NAME  Revoke the token of this operator.
    --log  Print the log of operators' actions, and check its chain of hashes.
    """),
    *TOKEN_OPTION,
    *remote.CONNECTION_OPTIONS,
    params.JSON_OPTION,
)
def operators(given: GivenOptions) -> None:
    """List, add or revoke the operators of a service.

    With --log, print the log of their actions. To replace a token, add an operator with a new name
    and then revoke the old name. The token of `checkins serve` is not in the list and stays valid.
    """
    chosen = [name for name in ("add", "revoke") if name in given]
    if len(chosen) + given.values["log"] > 1:
        raise UsageError("--add, --revoke and --log: give one of these options at a time")
    if "add" in given:
        _add_operator(given)
    elif "revoke" in given:
        with _operator_connection(given) as send:
            send("DELETE", wire.OPERATOR_PATH.format(name=_name(given, "revoke")))
        _show(given, {"revoked": given.texts["revoke"]}, f"Revoked: {given.texts['revoke']}.")
    elif given.values["log"]:
        _show_log(given)
    else:
        with _operator_connection(given) as send:
            listed = send("GET", wire.OPERATORS_PATH)["operators"]
        table = terminal.plain_table("name", "role")
        for each in listed:
            table.add_row(each["name"], each["role"])
        _show(given, {"operators": listed}, table)


def _add_operator(given: GivenOptions) -> None:
    import hashlib

    name = _name(given, "add")
    role = given.choice("role", Role, default="operator")
    path = Path(given.required("out", "must be a file that does not exist"))
    if path.exists():
        raise UsageError(f"--out {printable(str(path))}: exists already; name another file")
    token = secrets.token_urlsafe(32)
    durable_file.replace_content(path, f"{token}\n".encode(), mode=0o600)
    digest = f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"
    try:
        with _operator_connection(given) as send:
            body = {"token": digest, "role": str(role)}
            send("PUT", wire.OPERATOR_PATH.format(name=name), body)
    except BaseException:
        path.unlink()
        raise
    _show(
        given,
        {"name": name, "role": str(role), "path": str(path)},
        f"Added: {name}. Its token is in {path}.",
    )


def _show_log(given: GivenOptions) -> None:
    from checkins.ledger.entry import InvalidLedger
    from checkins.ledger.operator_log import check_log

    lines: list[bytes] = []
    with _operator_connection(given) as send:
        while True:
            part = send("GET", f"{wire.OPERATOR_LOG_PATH}?after={len(lines)}", as_lines=True)
            if not part:
                break
            lines += part
    try:
        head, actions = check_log(lines, path="operator log")
    except InvalidLedger as error:
        raise print_failure(str(error)) from error
    table = terminal.plain_table("time", "operator", "action", "details")
    shown = {"time", "operator", "action", "entry", "previous", "hash"}
    for fields in actions:
        details = ", ".join(str(fields[name]) for name in sorted(fields.keys() - shown))
        table.add_row(fields["time"], fields["operator"], fields["action"], details)
    _show(given, {"entries": head.entries, "head": head.hash, "actions": actions}, table)
    if not given.json:
        terminal.show_plain(f"Head of the log: {head.hash} after {head.entries:,} actions.")


def _show(given: GivenOptions, result: dict[str, object], text: Any) -> None:
    if given.json:
        terminal.show_json(result)
    elif isinstance(text, str):
        terminal.show_plain(text)
    else:
        terminal.show(text)


def _name(given: GivenOptions, option: str) -> str:
    from checkins.ledger.operator_log import OPERATOR_NAME

    if not OPERATOR_NAME.fullmatch(given.texts[option]):
        raise given.invalid(option, "must be 1 to 40 of a-z, 0-9, '.', '_' and '-'")
    return given.texts[option]


@contextmanager
def _operator_connection(given: GivenOptions) -> Iterator[Any]:
    """Yield a function that sends one request with the operator's token.

    The function returns the JSON of the response, or its lines if ``as_lines`` is True.
    """
    token = _operator_token(given)
    with remote.open_connection(given.values["url"], given) as (http, _):

        def send(method: str, path: str, body: object = None, *, as_lines: bool = False) -> Any:
            content = None if body is None else json_module.dumps(body).encode()
            answer = remote.send_as_operator(http, method, path, token, content)
            if as_lines:
                return answer.splitlines(keepends=True)
            return json_module.loads(answer or b"null")

        yield send


def _operator_token(given: GivenOptions) -> str:
    if "operator_token_file" in given:
        try:
            lines = Path(given.texts["operator_token_file"]).read_text("utf-8").split()
        except (OSError, UnicodeDecodeError) as error:
            raise given.invalid("operator_token_file", f"cannot be read: {error}") from error
        if len(lines) != 1 or not lines[0].isascii():
            raise given.invalid("operator_token_file", "must contain one line, the token")
        return lines[0]
    token = os.environ.get(OPERATOR_TOKEN_VARIABLE)
    if not token:
        raise UsageError(
            "--operator-token-file is missing; it must be a file with your operator's token, or"
            f" the token must be in the environment variable {OPERATOR_TOKEN_VARIABLE}"
        )
    return token


@params.command(
    *options("""
    --out FILE  The key file to write. It must not exist. Required.
    --replaces FILE  Key file that the new key replaces. The old key signs a statement about this,
        so that those who trust the old key trust the new one.
    """),
    params.JSON_OPTION,
)
def signing_key(given: GivenOptions) -> None:
    """Make a key with which a service signs its ledgers.

    Give the file to `checkins serve --signing-key`, and publish the printed public key where the
    service cannot change it. Whoever has the public key can check ledgers with `checkins verify
    --key`. Whoever has the file can sign any ledger.
    """
    from checkins.ledger.signature import SigningKey

    path = Path(given.required("out", "must be a file that does not exist"))
    if path.exists():
        raise UsageError(f"--out {printable(str(path))}: exists already; name another file")
    replaced = None
    if "replaces" in given:
        with given.errors_as_option_errors():
            replaced = SigningKey.read(Path(given.texts["replaces"]), name="replaces")
    key = SigningKey.generate(replaced)
    key.write(path)
    if given.json:
        terminal.show_json(
            {"path": str(path), "key": key.public_key, "rotations": len(key.rotations)}
        )
        return
    terminal.show_plain(f"Wrote {path}. Only its owner can read it; keep a copy offline.")
    terminal.show_plain(f"Public key: {key.public_key}")
