"""Plans that several tests look at: each takes a second or two, and is made once."""

from __future__ import annotations

from functools import cache

from checkins.accounting import Adjacency, NoiseAt, Population, Protocol
from checkins.campaign import Optimizer, RandomizerKind, Task
from checkins.planning import Constraints, Devices, Learning, Plan, Question, Server, make_plan

ADD_REMOVE, REPLACE_ONE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE
PATIENTS = Learning.of(Task("patients", "logistic", Optimizer(rate=1.0)), name="patients")


def ask(
    epsilon: float = 1.0,
    adjacency: Adjacency = ADD_REMOVE,
    *,
    population: tuple[int, int] = (9_000, 11_000),
    dimension: int = 14,
    delta: float = 1e-6,
    **more: object,
) -> Question:
    return Question(
        Population(*population),
        epsilon,
        delta,
        adjacency,
        dimension,
        **more,  # type: ignore[arg-type]  # devices, server, fixed, learning
    )


QUESTIONS: dict[str, Question] = {
    "add-remove": ask(0.5, learning=PATIENTS, population=(15_000, 20_000)),
    "replace-one": ask(1.0, REPLACE_ONE, population=(900, 1_000)),
    "repeated": ask(2.0, REPLACE_ONE, fixed=Constraints(repeats=3, slots=20)),
    "client": ask(fixed=Constraints(noise_at=NoiseAt.CLIENT, slots=50, repeats=1)),
    "crowded": ask(fixed=Constraints(noise_at=NoiseAt.CLIENT, slots=50, capacity=40, repeats=1)),
    "averaged": ask(1.0, REPLACE_ONE, fixed=Constraints(protocol=Protocol.AVERAGED)),
    "laplace": ask(fixed=Constraints(randomizer=RandomizerKind.LAPLACE), dimension=4),
    "privunit": ask(fixed=Constraints(randomizer=RandomizerKind.PRIVUNIT, slots=2_000)),
    "sliding": ask(
        fixed=Constraints(protocol=Protocol.SLIDING),
        devices=Devices(availability_s=60.0, dropout=0.2),
        server=Server(updates_per_s=50.0),
    ),
    "many": ask(1.0, population=(10**8, 10**8), dimension=10**6),
}


@cache
def plan(name: str) -> Plan:
    return make_plan(QUESTIONS[name])
