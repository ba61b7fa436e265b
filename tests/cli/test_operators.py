"""checkins allow-list and checkins operators, at a running coordinator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.campaigns import long_campaign
from tests.support.coordinator import OPERATOR, serving
from tests.support.program import refused

KEYS = [f"key-of-a-device-{number}-0123456789" for number in range(1200)]


def test_an_operator_adds_and_revokes_keys_and_operators(
    checkins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHECKINS_OPERATOR_TOKEN", OPERATOR)
    many, one, token = (tmp_path / name for name in ("many.txt", "one.txt", "alice.token"))
    many.write_text("\n".join(KEYS))
    one.write_text(f"# the device that was lost\n{KEYS[7]}\n")
    with serving(tmp_path, long_campaign("keys"), "--enrolment", "allow-list") as served:
        url = str(served.told["url"])

        def keys(*options: object) -> dict[str, int]:
            outcome = checkins("allow-list", url, *options, "--json")
            assert (outcome.code, outcome.err) == (0, "")
            return dict(json.loads(outcome.out))

        assert keys("--add", many) == {"keys": 1200, "changed": 1200}  # in several requests
        outcome = checkins("allow-list", url, "--revoke", one)
        assert outcome.out == ("Revoked: 1 of 1 keys in the file.\nKeys that may enrol: 1,199.\n")
        assert keys() == {"keys": 1199, "changed": 0}
        outcome = checkins("operators", url, "--add", "alice", "--out", token)
        assert outcome.out == f"Added: alice. Its token is in {token}.\n"
        assert token.stat().st_mode & 0o777 == 0o600
        assert token.read_text().strip() not in served.log.read_text() + outcome.out
        monkeypatch.delenv("CHECKINS_OPERATOR_TOKEN")
        mine = ("--operator-token-file", token)
        assert "alice   operator" in checkins("operators", url, *mine).out
        refused(checkins("operators", url), code=2, says="--operator-token-file is missing")
        refused(
            checkins("operators", url, "--add", "alice", "--out", token, *mine),
            code=2,
            says="exists",
        )
        other = tmp_path / "other.token"
        again = checkins("operators", url, "--add", "alice", "--out", other, *mine)
        refused(again, code=2, says="there is an operator alice")
        assert not other.exists()
        log = json.loads(checkins("operators", url, "--log", *mine, "--json").out)
        assert [each["action"] for each in log["actions"]] == [
            *("campaign-opened", "keys-added", "keys-added"),
            *("keys-revoked", "operator-added"),
        ]
        assert f"Head of the log: {log['head']}" in checkins("operators", url, "--log", *mine).out
        revoked = checkins("operators", url, "--revoke", "alice", *mine)
        assert revoked.out == "Revoked: alice.\n"
        refused(checkins("operators", url, *mine), code=2, says="401")


def test_options_that_do_not_fit_are_refused(checkins, tmp_path: Path) -> None:
    url, key = "http://127.0.0.1:1", tmp_path / "key"
    both = ("--add", key, "--revoke", key)
    refused(checkins("allow-list", url, *both), code=2, says="one of these options at a time")
    refused(checkins("allow-list", url, "--add", key), code=2, says="--add")
    key.write_text("short")
    refused(checkins("allow-list", url, "--add", key), code=2, says="16 visible")
    refused(checkins("operators", url, "--add", "A", "--out", key), code=2, says="--add A")
    refused(checkins("operators", url, "--add", "a"), code=2, says="--out is missing")
    refused(checkins("operators", url, "--log", "--revoke", "a"), code=2, says="at a time")
    refused(checkins("operators", url, "--operator-token-file", tmp_path), code=2, says="cannot be")
