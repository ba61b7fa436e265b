"""Run Section 4.2 of the paper, A_sldw, as a plain loop and with the library's state machines.

python examples/sliding_window.py
"""

from __future__ import annotations

import math

import numpy as np

from checkins.protocol.model_update import ModelUpdate
from checkins.protocol.participant import Participant
from checkins.protocol.rehearsal import rehearse
from checkins.protocol.report import Report, ReportChecks
from checkins.protocol.rules import Filling, Rules, SlidingWindow
from checkins.protocol.server import Server


def sliding_window(theta, wakes, dice, request, fill, *, slots, window, eta, capacity=1):
    """Client j draws a slot from the window that begins when it wakes. In the paper one client
    wakes in every time step, so there are as many slots as clients, and the capacity is 1."""
    time = {j: wakes[j] + dice.pick(j, window) for j in wakes}
    models, used = [], []
    for i in range(window, slots + 1):  # earlier and later check-ins are not used
        S = J = sorted(j for j in time if time[j] == i)
        if len(S) > capacity:  # sample J_i uniformly from S_i, without replacement
            J = [S.pop(k) for k in dice.choose(i, [len(S) - k for k in range(capacity)])]
        reports = [request(j, theta) for j in J]
        reports += fill(i, capacity - len(J))  # A_ldp(0) for each missing report
        theta = theta - eta * sum(report.values for report in reports)
        models.append(theta)
        used.append(J)
    return models, used


class SimulatedDice:
    """Seeded randomness for simulations. A draw with the same name gives the same value."""

    def seeded(self, *name):
        return np.random.default_rng(list(repr(name).encode()))

    def coin(self, token):
        return 0  # 0 means that the client takes part

    def pick(self, token, below):
        return int(self.seeded("pick", token).integers(below))

    def choose(self, slot, ranges):
        return tuple(self.seeded("choose", slot).integers(ranges).tolist())

    def dummies(self, slot, count):
        noise = [self.seeded("dummy", slot, k).normal(size=2) for k in range(count)]
        return tuple(map(Report.from_simulation, noise))


if __name__ == "__main__":
    dice, start, n, m, eta = SimulatedDice(), np.zeros(2), 500, 50, 0.05
    wakes = {f"{j:04}": j for j in range(1, n + 1)}
    data = {j: dice.seeded("data", j).normal((3.0, 4.0)) for j in wakes}

    def request(j, theta):  # A_ldp: a gradient, clipped to norm 1, plus noise
        gradient, noise = theta - data[j], dice.seeded("noise", j).normal(size=2)
        return Report.from_simulation(gradient / max(1.0, math.hypot(*gradient)) + noise)

    models, used = sliding_window(
        start, wakes, dice, request, dice.dummies, slots=n, window=m, eta=eta
    )
    print(f"{n} slots, window {m}: {len(models)} updates, {used.count([])} of them dummies")
    print(f"(on average at most {(n - m + 1) / math.e:.1f}, by Proposition 4.4).")
    left = math.dist(models[-1], (3, 4))
    print(f"Distance to the optimum (3, 4): 5.00 before, {left:.2f} after.")

    form, update = ReportChecks(2, None, simulated=True), ModelUpdate(eta)
    server = Server.start(Rules(n, 1, Filling.DUMMIES, m - 1, n, form, update), start)
    everyone = {j: Participant(1.0, SlidingWindow(m)) for j in wakes}
    machines = rehearse(server, everyone, randomness=dice, train=request, wake_slots=wakes)
    if [shown.model.tobytes() for shown in machines.releases] != [t.tobytes() for t in models]:
        raise SystemExit("The state machines disagree.")
    print("The state machines agree, bit for bit.")
