"""Run Algorithm 2 of the paper, A_avg, as a plain loop and with the library's state machines.

python examples/averaged_updates.py
"""

from __future__ import annotations

import math

import numpy as np

from checkins.protocol.model_update import ModelUpdate
from checkins.protocol.participant import Participant
from checkins.protocol.rehearsal import rehearse
from checkins.protocol.report import Report, ReportChecks
from checkins.protocol.rules import Filling, FixedWindow, Rules
from checkins.protocol.server import Server


def averaged_updates(theta, clients, dice, request, *, slots, eta, diameter=math.inf):
    """``eta(i)`` is the step size of slot i. Models lie in the ball around 0 of this diameter."""
    time = check_in(clients, dice)
    models, used = [], []
    for i in range(1, slots + 1):
        S = sorted(j for j in time if time[j] == i)
        if S:
            g = 0
            for j in S:
                g = g + request(j, theta).values
            theta = project(theta - eta(i) / len(S) * g, diameter)
        models.append(theta)  # after an empty slot the model is unchanged
        used.append(S)
    return models, used


def check_in(clients, dice):
    """Return the slot of each client that checks in. Client j has a window R_j and a p_j."""
    time = {}
    for j, (R, p) in clients.items():
        if dice.coin(j) < math.floor(p * 2**64):  # true with probability p_j
            time[j] = R[dice.pick(j, len(R))]  # uniform in R_j
    return time


def project(theta, diameter):
    norm = math.sqrt(math.fsum(theta * theta))
    return theta if norm <= diameter / 2 else theta * (diameter / 2 / norm)


class SimulatedDice:
    """Seeded randomness for simulations. A draw with the same name gives the same value."""

    def seeded(self, *name):
        return np.random.default_rng(list(repr(name).encode()))

    def coin(self, token):
        return int(self.seeded("coin", token).integers(2**64, dtype=np.uint64))

    def pick(self, token, below):
        return int(self.seeded("pick", token).integers(below))

    def choose(self, slot, ranges):
        return ()  # the server uses all check-ins

    def dummies(self, slot, count):
        return ()


if __name__ == "__main__":
    dice, start, m, diameter = SimulatedDice(), np.zeros(2), 100, 12.0
    clients = {f"{j:04}": (range(1, m + 1), 1.0) for j in range(300)}
    data = {j: dice.seeded("data", j).normal((3.0, 4.0)) for j in clients}

    def request(j, theta):  # A_ldp: a gradient, clipped to norm 1, plus noise
        gradient, noise = theta - data[j], dice.seeded("noise", j).normal(size=2)
        return Report.from_simulation(gradient / max(1.0, math.hypot(*gradient)) + noise)

    def eta(i):  # step size of Theorem 4.2
        return 1.5 / math.sqrt(i)

    models, used = averaged_updates(
        start, clients, dice, request, slots=m, eta=eta, diameter=diameter
    )
    print(f"{m} slots: {sum(map(len, used))} reports; {used.count([])} slots were empty.")
    left = math.dist(models[-1], (3, 4))
    print(f"Distance to the optimum (3, 4): 5.00 before, {left:.2f} after.")

    update = ModelUpdate(1.5, decay=0.5, diameter=diameter)
    form = ReportChecks(2, None, simulated=True)
    server = Server.start(Rules(m, None, Filling.NOTHING, 0, m, form, update), start)
    participants = {j: Participant(p, FixedWindow(R)) for j, (R, p) in clients.items()}
    machines = rehearse(server, participants, randomness=dice, train=request)
    if [shown.model.tobytes() for shown in machines.releases] != [t.tobytes() for t in models]:
        raise SystemExit("The state machines disagree.")
    print("The state machines agree, bit for bit.")
