"""What routes share: whom they belong to, and who is asking."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from checkins.service.desk import Desk
from checkins.service.problems import Problem
from checkins.service.runner import Runner

MOST_SLOT = 10**12

_operator = HTTPBearer(scheme_name="operator", description="The operator's token", auto_error=False)
_client = HTTPBearer(
    scheme_name="client",
    description="An enrolment key, a token or a receipt, whichever the request is about",
    auto_error=False,
)


def get_runner(request: Request) -> Runner:
    runner: Runner = request.app.state.runner
    return runner


TheRunner = Annotated[Runner, Depends(get_runner)]
RunId = Annotated[
    str, Path(pattern=r"^[0-9a-f]{12}-[0-9]{1,7}$", description="A run of a campaign")
]
SlotNumber = Annotated[int, Path(ge=1, le=MOST_SLOT, description="1, 2, ... of the run's slots")]


def get_desk(run: RunId, runner: TheRunner) -> Desk:
    desk = runner.desks.get(run)
    if desk is None:
        raise Problem("unknown-campaign", "this coordinator has no such run; see GET /campaigns")
    return desk


TheDesk = Annotated[Desk, Depends(get_desk)]


def get_credential(
    given: Annotated[HTTPAuthorizationCredentials | None, Security(_client)],
) -> str | None:
    return None if given is None else given.credentials


Credential = Annotated[str | None, Depends(get_credential)]


def require_operator(
    runner: TheRunner,
    given: Annotated[HTTPAuthorizationCredentials | None, Security(_operator)],
) -> None:
    if not runner.settings.is_operator(None if given is None else given.credentials):
        raise Problem("not-operator", "send the operator's token as Authorization: Bearer")


Operator = Depends(require_operator)


def required(credential: str | None) -> str:
    """The token or receipt that a request must carry."""
    if credential is None:
        raise Problem("not-enrolled", "send your token or receipt as Authorization: Bearer")
    return credential
