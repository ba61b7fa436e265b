"""Run Algorithm 1 of the paper, A_fix, as a plain loop and with the library's state machines.

python examples/fixed_window.py
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


def fixed_window(theta, clients, dice, request, fill, *, slots, eta, b, capacity=1):
    """In the paper the capacity is 1 and ``fill`` returns dummies. For noise at the server, use an
    infinite capacity and a ``fill`` that returns one draw of noise for the whole sum."""
    time = check_in(clients, dice)
    g = 0
    models, used = [], []
    for i in range(1, slots + 1):
        S = J = sorted(j for j in time if time[j] == i)
        if len(S) > capacity:  # sample J_i uniformly from S_i, without replacement
            J = [S.pop(k) for k in dice.choose(i, [len(S) - k for k in range(capacity)])]
        reports = [request(j, theta) for j in J]
        reports += fill(i, capacity - len(J))  # A_ldp(0) for each missing report
        g_i = sum(report.values for report in reports)
        theta, g = model_update(theta, g + g_i, i, eta=eta, b=b)
        models.append(theta)
        used.append(J)
    return models, used


def check_in(clients, dice):
    """Return the slot of each client that checks in. Client j has a window R_j and a p_j."""
    time = {}
    for j, (R, p) in clients.items():
        if dice.coin(j) < math.floor(p * 2**64):  # true with probability p_j
            time[j] = R[dice.pick(j, len(R))]  # uniform in R_j
    return time


def model_update(theta, g, i, *, eta, b):
    if i % b == 0:
        return theta - eta / b * g, 0
    return theta, g


class SimulatedDice:
    """Seeded randomness for simulations. A draw with the same name gives the same value."""

    def seeded(self, *name):
        return np.random.default_rng(list(repr(name).encode()))

    def coin(self, token):
        return int(self.seeded("coin", token).integers(2**64, dtype=np.uint64))

    def pick(self, token, below):
        return int(self.seeded("pick", token).integers(below))

    def choose(self, slot, ranges):
        return tuple(self.seeded("choose", slot).integers(ranges).tolist())

    def dummies(self, slot, count):
        noise = [self.seeded("dummy", slot, k).normal(size=2) for k in range(count)]
        return tuple(map(Report.from_simulation, noise))


if __name__ == "__main__":
    dice, start, m, K, eta, b = SimulatedDice(), np.zeros(2), 200, 3, 0.4, 4
    clients = {f"{j:04}": (range(1, m + 1), 0.5) for j in range(1000)}
    data = {j: dice.seeded("data", j).normal((3.0, 4.0)) for j in clients}

    def request(j, theta):  # A_ldp: a gradient, clipped to norm 1, plus noise
        gradient, noise = theta - data[j], dice.seeded("noise", j).normal(size=2)
        return Report.from_simulation(gradient / max(1.0, math.hypot(*gradient)) + noise)

    models, used = fixed_window(
        start, clients, dice, request, dice.dummies, slots=m, eta=eta, b=b, capacity=K
    )
    reports = sum(map(len, used))
    print(f"{m} slots of {K}: {reports} reports, {m * K - reports} dummies.")
    left = math.dist(models[-1], (3, 4))
    print(f"Distance to the optimum (3, 4): 5.00 before, {left:.2f} after.")

    form, update = ReportChecks(2, None, simulated=True), ModelUpdate(eta, minibatch=b)
    server = Server.start(Rules(m, K, Filling.DUMMIES, 0, m, form, update), start)
    participants = {j: Participant(p, FixedWindow(R)) for j, (R, p) in clients.items()}
    machines = rehearse(server, participants, randomness=dice, train=request)
    if [shown.model.tobytes() for shown in machines.releases] != [t.tobytes() for t in models]:
        raise SystemExit("The state machines disagree.")
    print("The state machines agree, bit for bit.")
