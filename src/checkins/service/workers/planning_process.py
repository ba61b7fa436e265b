"""The process that computes plans. It reads one question per line and writes one answer per line.

The process is started as ``python -m checkins.service.workers.planning_process`` and ends when its
standard input closes. The signal ``INTERRUPT`` and the limit on processor time both interrupt the
plan that is being computed. Questions and answers are JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from types import FrameType
from typing import IO, Any

from checkins.errors import InvalidValue

CPU_LIMIT_S = 15  # seconds of processor time that one plan may take; most plans take 2 s
INTERRUPT = signal.SIGUSR1  # the signal that interrupts a plan

Question = Mapping[str, Any]
"""The arguments of ``checkins.planning.Question`` as JSON values. Equal values give equal plans."""


class _Interrupted(BaseException):
    """The plan took too long, or no client waits for it any more.

    This is a BaseException, so that no ``except Exception`` catches it.
    """


class _Worker:
    """Answers questions one after another. A signal interrupts the plan that is being computed."""

    def __init__(self) -> None:
        self.is_computing = False

    def interrupt(self, _: int, __: FrameType | None) -> None:
        """Raise _Interrupted while a plan is being computed; otherwise do nothing."""
        if self.is_computing:
            self.is_computing = False
            raise _Interrupted

    def answer(self, line: str) -> str:
        try:
            self.is_computing = True
            signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT_S)
            answer = _answer_question(json.loads(line))
            self.is_computing = False
        except _Interrupted:
            return json.dumps({"interrupted": True})
        return answer

    def run(self, questions: IO[str], answers: IO[str]) -> None:
        """Write a line when the process is ready, then answer each line of ``questions``."""
        print(json.dumps({"ready": True}), file=answers, flush=True)
        for line in questions:
            print(self.answer(line), file=answers, flush=True)


def _answer_question(question: Question) -> str:
    from checkins.planning import make_plan

    try:
        plan = make_plan(_planning_question(question))
        return json.dumps({"plan": plan.as_json()}, allow_nan=False)
    except InvalidValue as error:
        value = error.value if isinstance(error.value, str | int | float | None) else None
        return json.dumps({"invalid": [error.name, value, error.expected]})
    except Exception as error:
        return json.dumps({"failed": type(error).__name__})


def _planning_question(question: Question) -> Any:
    """Convert JSON values to a ``checkins.planning.Question``."""
    from checkins import planning
    from checkins.accounting import Adjacency, NoiseAt, Population, Protocol
    from checkins.campaign import RandomizerKind

    enums: Any = {"protocol": Protocol, "noise_at": NoiseAt, "randomizer": RandomizerKind}
    constraints = {n: enums.get(n, lambda v: v)(value) for n, value in question["fixed"].items()}
    if "task" in question:
        task_arguments = _task_arguments(question["task"])
    else:
        task_arguments = {"dimension": question["dimension"]}
    return planning.Question(
        Population(*question["population"]),
        question["epsilon"],
        question["delta"],
        Adjacency(question["adjacency"]),
        **task_arguments,
        devices=planning.Devices(**question["devices"]),
        server=planning.Server(**question["server"]),
        fixed=planning.Constraints(**constraints),
    )


def _task_arguments(name: str) -> dict[str, Any]:
    """Return the arguments of ``planning.Question`` that follow from a built-in task."""
    from checkins.campaign import parse_campaign
    from checkins.campaign.file import Template, template_text
    from checkins.planning import Learning
    from checkins.tasks.loaded_task import model_of

    campaign = parse_campaign(template_text(Template(name))).campaign
    assert campaign.task is not None
    return {
        "dimension": int(model_of(campaign.task, folder=".").dimension),
        "learning": Learning.of(campaign.task, name=campaign.name),
        "name": campaign.name,
        "population_id": campaign.population_id,
    }


def main() -> None:
    """Answer questions until standard input closes."""
    os.nice(10)
    worker = _Worker()
    signal.signal(INTERRUPT, worker.interrupt)
    signal.signal(signal.SIGPROF, worker.interrupt)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the parent ends this process
    import checkins.planning  # noqa: F401  # so that the first question need not wait

    worker.run(sys.stdin, sys.stdout)


if __name__ == "__main__":
    main()
