"""Run a whole campaign in one process, from its file to a verified ledger, with real noise.

400 clients draw their slots with the randomness of the operating system. The state machines of the
protocol run the campaign, and the sampler of real devices makes every report and every dummy.

python examples/small_campaign.py [DIR]        DIR is out/small-campaign if it is not given
"""

from __future__ import annotations

import math
import secrets
import shutil
import sys
from pathlib import Path

import numpy as np

from checkins import ledger
from checkins.campaign import parse_campaign
from checkins.protocol.participant import COIN_RANGE, participant_of
from checkins.protocol.rehearsal import rehearse
from checkins.protocol.report import Report
from checkins.protocol.rules import sampler_of
from checkins.protocol.server import server_of

CAMPAIGN = """
schema = 1
name = "small"
population_id = "examples"
budget = { epsilon = 1.0, delta = 1e-6, adjacency = "add-remove" }
protocol = { kind = "fixed", slots = 40, participation = 1.0, capacity = 8 }
schedule = { start = 2030-01-01T00:00:00Z, slot_s = 1.0, choose_s = 0.3 }
task = { data = "synthetic", model = "logistic", optimizer = { kind = "sgd", rate = 0.5 } }

[randomizer]
kind = "gaussian"
noise_at = "client"
noise_multiplier = 1.0
clip = 1.0
grid = 1e-6
"""


class SystemDice:
    """Exact draws from the operating system, as real servers and real clients use them."""

    def __init__(self, sampler):
        self.sampler = sampler

    def coin(self, token):
        return secrets.randbelow(COIN_RANGE)

    def pick(self, token, below):
        return secrets.randbelow(below)

    def choose(self, slot, ranges):
        return tuple(map(secrets.randbelow, ranges))

    def dummies(self, slot, count):
        return tuple(Report.from_device(self.sampler.dummy()) for _ in range(count))

    def noise(self, slot):
        return Report.from_noise(self.sampler.noise())


def main(folder):
    campaign = parse_campaign(CAMPAIGN).campaign
    target = np.array([0.6, -0.3, 0.1])  # the optimum of every client
    sampler = sampler_of(campaign, dimension=target.size)
    with ledger.LedgerFile(folder) as file:
        affordable = ledger.spending_of(file.ledger, campaign).affordable_slots_in_run()
        played = rehearse(
            server_of(campaign, np.zeros(target.size), affordable=affordable),
            {f"client {number}": participant_of(campaign) for number in range(400)},
            randomness=SystemDice(sampler),
            train=lambda token, model: Report.from_device(sampler.privatize(model - target)),
        )
        file.append(file.ledger.opening(campaign, model=played.start.learner.model))
        for closing in played.closings:
            slot, total, model = closing.slot, closing.total, closing.model
            file.append(ledger.SlotClosed.of(slot=slot, total=total, model=model))
        price = ledger.certificate(file.ledger).as_dict()
        file.append(ledger.Closed(ledger.Reason(played.end.ending), price))
        path = file.path
    found = ledger.verify(ledger.lines(path)).certificate
    print(f"{campaign.name}: {campaign.seal}")
    print(f"  {played.end.closed} slots, model {np.round(played.end.learner.model, 2)}")
    epsilon = math.ceil(found.epsilon * 1e4) / 1e4
    print(f"  epsilon <= {epsilon:.4f} at delta = {found.delta:g} ({found.adjacency}, rounded up),")
    print(f"  by the method {found.method}, recomputed from the ledger")
    print(f"Look at it yourself: checkins verify {folder}")


if __name__ == "__main__":
    place = Path(sys.argv[1] if len(sys.argv) > 1 else "out/small-campaign")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    main(place)
