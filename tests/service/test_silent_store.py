"""PostgreSQL that is silent, away or crashing while a coordinator starts, serves and leaves."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy.engine import make_url

from checkins.service import startup
from checkins.service.runs.runner import Runner
from checkins.service.startup import Start, prepare
from checkins.service.store import database as databases
from checkins.service.store import metadata
from checkins.service.store.database import Database, StoreUnavailable
from checkins.service.workers.epsilon_process import EpsilonProcesses
from tests.support.campaigns import campaign, campaign_text, write_campaign
from tests.support.coordinator import Coordinator
from tests.support.in_process import Living, play, problem, settings
from tests.support.postgres import Postgres
from tests.support.silent_proxy import Silence


def through(proxy: Silence, url: str) -> str:
    return make_url(url).set(port=proxy.port).render_as_string(hide_password=False)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_asked_to_stop_while_postgresql_is_silent_it_leaves(
    tmp_path: Path, postgres: Postgres, postgres_url: str, workers: int
) -> None:
    """Before, it waited for as long as PostgreSQL was silent; who waits is told to come again."""
    path = write_campaign(tmp_path, campaign_text(slot_s=3600.0, choose_s=3000.0))
    answers: list[httpx.Response] = []
    with Silence(postgres.port).open() as proxy:
        served = Coordinator(path, through(proxy, postgres_url), workers=workers)
        with served.running(), httpx.Client(base_url=served.url, timeout=90) as http:
            enrolments = f"/campaigns/{served.told['campaign']}/enrolments"
            assert http.post(enrolments).status_code == 201
            proxy.silent.set()

            def ask() -> None:
                with contextlib.suppress(httpx.TransportError):  # it came too late to be heard
                    answers.append(http.post(enrolments))

            asked = threading.Thread(target=ask)
            asked.start()
            assert proxy.swallowed.wait(60)
            assert served.stop() == 0
            asked.join(60)
        log = served.log.read_text()
    assert '"event": "store-silent"' in log
    for answer in answers:
        assert problem(answer) == (503, "busy")


def test_asked_to_stop_before_postgresql_has_answered_a_coordinator_leaves(
    tmp_path: Path, postgres: Postgres, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("checkins.service.runs.runner.LAST_COMMITS_TIMEOUT_S", 0.0)
    prepare(settings(postgres_url, tmp_path), None, start=Start())
    with Silence(postgres.port).open() as proxy:
        proxy.silent.set()

        async def main() -> None:
            url = through(proxy, postgres_url)
            runner = Runner(settings(url, tmp_path), Database(url), EpsilonProcesses(url))
            starting = asyncio.create_task(runner.start())
            await asyncio.sleep(0.05)
            runner.release_waiters()
            async with asyncio.timeout(60):
                await starting
                await runner.stop()

        asyncio.run(main())


def crashing(postgres: Postgres, function: Any, *, times: int = 1) -> Any:
    """The same function, which lets PostgreSQL crash before it is first called."""
    left = times

    def crash_first(*given: Any, **named: Any) -> Any:
        nonlocal left
        if left > 0:
            left -= 1
            postgres.crash()
        return function(*given, **named)

    return crash_first


@pytest.mark.parametrize("step", ["migrate", "metadata.begin_epoch", "opening.open_run"])
def test_a_crash_of_postgresql_at_any_step_of_the_start_is_waited_for(
    tmp_path: Path,
    postgres: Postgres,
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    place, _, name = f"startup.{step}".rpartition(".")
    holder: Any = startup
    for part in place.split(".")[1:]:
        holder = getattr(holder, part)
    monkeypatch.setattr(holder, name, crashing(postgres, getattr(holder, name)))
    spec = prepare(settings(postgres_url, tmp_path), campaign(), start=Start())
    assert spec is not None
    database = Database(postgres_url)
    assert metadata.epoch_of(database) >= 1
    database.close()


def test_a_crash_of_postgresql_while_runs_are_looked_for_is_waited_for(
    tmp_path: Path, postgres: Postgres, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(it: Living) -> None:
        await it.open(slots=2)
        await it.begin(1)
        assert await it.enrol()

    monkeypatch.setattr(metadata, "secret_key_of", crashing(postgres, metadata.secret_key_of))
    play(postgres_url, tmp_path, scenario)


def test_a_postgresql_that_stays_away_is_named_with_how_long_it_was_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "START_TIMEOUT_S", 0)
    away = settings("postgresql://ann:hidden-word@127.0.0.1:1/x", tmp_path)
    with pytest.raises(StoreUnavailable, match="accepted no connections for 0 s: is it running"):
        prepare(away, None, start=Start())
