"""What an operator may decide, and what must never be shown of it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.errors import InvalidValue
from checkins.service.authentication import NotAdmitted, hashed, is_operator, read_secret
from checkins.service.settings import (
    Enrolment,
    EnrolmentKind,
    Limits,
    Settings,
    redacted_url,
)

SECRET = "correct-horse-battery"
TOKEN = "the-operators-own-token"
visible = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=16, max_size=60)


def settings(**changes: object) -> Settings:
    known = {"store": "sqlite:///x.db", "enrolment": Enrolment.open(), "operator_token": TOKEN}
    return Settings(**{**known, **changes})


@pytest.mark.parametrize(
    "store",
    [
        "sqlite:///x.db",
        "sqlite:////var/lib/checkins/x.db",
        "postgresql://ann:pw@db.example:5432/checkins",
        "postgresql:///checkins?host=/run/postgresql",
    ],
)
def test_a_file_and_a_postgres_are_stores(store):
    assert settings(store=store).store == store


@pytest.mark.parametrize(
    "store",
    [
        "",
        "x.db",
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "mysql://ann:hunter22@db/x",
        "postgresql+asyncpg://ann:hunter22@db/x",
        "postgresql://ann:hunter22@db",
        "host=db password=hunter22",
        None,
    ],
)
def test_another_store_is_refused_with_the_remedy_and_without_its_password(store):
    with pytest.raises(InvalidValue, match="sqlite:///") as caught:
        settings(store=store)
    assert "hunter22" not in str(caught.value)


@given(password=visible)
def test_no_password_is_ever_shown(password):
    for url in (
        f"postgresql://ann:{password}@db/x",
        f"postgresql://ann@db/x?password={password.replace('&', '')}&sslmode=require",
    ):
        shown = redacted_url(url)
        assert password not in shown
        assert "***" in shown


def test_no_secret_is_in_a_repr():
    secret = Enrolment(kind=EnrolmentKind.SECRET, secret=SECRET)
    told = repr(settings(enrolment=secret, store="postgresql://ann:hunter22@db/x"))
    assert not any(each in told for each in (SECRET, TOKEN, "hunter22"))
    assert "hunter22" not in settings(store="postgresql://ann:hunter22@db/x").redacted_store


@pytest.mark.parametrize(
    "bad", ["", "short", "with space inside it all", "ünïcode-is-not-header", 7]
)
def test_a_weak_or_unsendable_secret_is_refused_without_being_shown(bad):
    for make in (
        lambda: settings(operator_token=bad),
        lambda: Enrolment(kind=EnrolmentKind.SECRET, secret=bad),
    ):
        with pytest.raises(InvalidValue, match="at least 16") as caught:
            make()
        assert repr(bad) not in str(caught.value)


def test_open_enrolment_asks_for_nothing():
    assert Enrolment.open().admit(None) is None
    assert Enrolment.open().admit("anything") is None


def test_a_shared_secret_admits_its_knowers_and_names_nobody(tmp_path):
    file = tmp_path / "secret"
    file.write_text(f"# for the clinic\n{SECRET}\n")
    enrolment = Enrolment.from_secret_file(file)
    assert enrolment.admit(SECRET) is None
    for wrong in (None, "", SECRET[:-1], SECRET + "x", "\udc80"):
        with pytest.raises(NotAdmitted):
            enrolment.admit(wrong)


def test_an_allow_list_admits_its_keys_plain_or_hashed(tmp_path):
    file = tmp_path / "keys"
    second = hashlib.sha256(b"second-key-of-sixteen").hexdigest()
    file.write_text(f"# two people\n\nfirst-key-of-sixteen # ann\nsha256:{second.upper()}\n")
    enrolment = Enrolment.from_allow_list_file(file)
    assert enrolment.admit("first-key-of-sixteen") == hashed("first-key-of-sixteen")
    assert enrolment.admit("second-key-of-sixteen") == second
    for wrong in ("", second, f"sha256:{second}", "third-key-of-sixteen"):
        assert enrolment.admit(wrong) not in enrolment.allow_list
    with pytest.raises(NotAdmitted):
        enrolment.admit(None)


@pytest.mark.parametrize("text", ["", "# nothing\n", "short\n", "sha256:12\n"])
def test_a_broken_allow_list_is_refused(tmp_path, text):
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(InvalidValue, match="allow_list"):
        Enrolment.from_allow_list_file(file)


def test_a_missing_or_doubled_secret_file_is_refused(tmp_path):
    two = tmp_path / "two"
    two.write_text(f"{SECRET}\n{TOKEN}\n")
    for path in (tmp_path / "none", tmp_path, two):
        with pytest.raises(InvalidValue, match="secret_file"):
            read_secret(path, name="secret_file")


def test_a_kind_of_enrolment_takes_exactly_what_it_needs():
    keys = frozenset({hashed("k")})
    for values in (
        {"kind": EnrolmentKind.OPEN, "secret": SECRET},
        {"kind": EnrolmentKind.SECRET},
        {"kind": EnrolmentKind.OPEN, "allow_list": keys},
        {"kind": EnrolmentKind.SECRET, "secret": SECRET, "allow_list": keys},
        {"kind": EnrolmentKind.ALLOW_LIST, "allow_list": frozenset({"plain"})},
        {"kind": "open"},
    ):
        with pytest.raises(InvalidValue):
            Enrolment(**values)


def test_only_the_operators_token_is_the_operators():
    assert is_operator(TOKEN, TOKEN)
    assert not any(is_operator(each, TOKEN) for each in (None, "", TOKEN + "x", "\udc80"))


@pytest.mark.parametrize(
    "bad",
    [
        {"body_bytes": 0},
        {"campaign_bytes": -1},
        {"burst": 0},
        {"requests_per_s": float("nan")},
        {"connections": -1},
        {"connections": True},
        {"connections": False},
        {"per_address": 1.5},
        {"head_s": 0},
        {"body_s": float("inf")},
        {"waiting_s": "60"},
    ],
)
def test_a_limit_out_of_range_is_refused_by_name(bad):
    with pytest.raises(InvalidValue, match=next(iter(bad))):
        Limits(**bad)


def test_no_limit_is_written_as_zero():
    free = Limits(requests_per_s=0, connections=0, per_address=0)
    assert (free.requests_per_s, free.connections, free.per_address) == (0, 0, 0)


@pytest.mark.parametrize(
    "url", ["host", "ftp://h", "https://u:pw123456@h", "https://h?x=1", "http:// h"]
)
def test_a_public_address_is_a_plain_web_address(url):
    with pytest.raises(InvalidValue, match="public_url") as caught:
        settings(public_url=url)
    assert "pw123456" not in str(caught.value)


@given(
    token=visible,
    keys=st.none() | st.frozensets(visible, min_size=1, max_size=5),
    paths=st.tuples(*[st.none() | st.just(Path("a/b"))] * 2),
    public=st.none() | st.just("https://c.example:8470/under"),
    rate=st.floats(0, 1e6),
)
def test_a_worker_reads_the_settings_that_were_written(token, keys, paths, public, rate):
    enrolment = Enrolment.open()
    if keys is not None:
        listed = frozenset(hashed(key) for key in keys)
        enrolment = Enrolment(kind=EnrolmentKind.ALLOW_LIST, allow_list=listed)
    written = settings(
        operator_token=token,
        enrolment=enrolment,
        progress_file=paths[0],
        log_file=paths[1],
        public_url=public,
        limits=Limits(requests_per_s=rate),
    )
    assert Settings.from_json(written.to_json()) == written


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"colour": 1}',
        settings().to_json().replace('"open"', '"closed"'),
        settings().to_json().replace('"burst"', '"bursts"'),
        settings().to_json().replace('"enrolment":{', '"enrolment":3,"x":{'),
    ],
)
def test_other_json_is_refused_without_showing_secrets(text):
    with pytest.raises(InvalidValue) as caught:
        Settings.from_json(text)
    assert TOKEN not in str(caught.value)


def test_a_changed_setting_is_checked_again():
    with pytest.raises(InvalidValue, match="folder"):
        replace(settings(), folder="text")
