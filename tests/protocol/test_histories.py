"""Histories of a server and its clients under every misfortune: the invariants hold in each.

``make test`` runs 500 seeds, ``make soak`` 10,000. A seed that fails is printed, and
``CHECKINS_SEED=1234 pytest tests/protocol/test_histories.py`` plays that history again.
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from checkins.protocol.participant import COIN_RANGE
from checkins.protocol.server import Phase
from tests.protocol.world import PROTOCOLS, World, any_world

ACTS = 400
BATCH = 50
SEEDS = int(os.environ.get("CHECKINS_SEEDS", "500"))
ONE_SEED = os.environ.get("CHECKINS_SEED")
FIRSTS = [int(ONE_SEED)] if ONE_SEED else list(range(0, SEEDS, BATCH))
LENGTH = 1 if ONE_SEED else BATCH


@pytest.mark.parametrize("first", FIRSTS)
def test_the_invariants_hold_in_every_history(first: int) -> None:
    for seed in range(first, min(first + LENGTH, max(SEEDS, first + 1))):
        dice = random.Random(seed)
        try:
            any_world(dice.randrange, faults=True).run(ACTS)
        except BaseException as failure:
            failure.add_note(f"this was seed {seed}: CHECKINS_SEED={seed} plays it again")
            raise


@pytest.mark.parametrize("kind", PROTOCOLS)
def test_without_misfortunes_everyone_who_is_chosen_contributes(kind: str) -> None:
    for seed in range(100):
        world = any_world(random.Random(seed).randrange, faults=False, kind=kind)
        world.run_smoothly()
        open_slots = range(world.rules.warm_up + 1, world.rules.affordable + 1)
        drawn = [slot for slot in world.witness.draws.values() if slot in open_slots]
        most = world.rules.capacity or len(drawn)
        used = sum(min(drawn.count(slot), most) for slot in set(drawn))
        assert len(world.witness.used) == used


def test_the_same_seed_is_the_same_history() -> None:
    ends = []
    for _ in range(2):
        world = any_world(random.Random(7).randrange, faults=True)
        world.run(ACTS)
        ends.append((world.server.learner.model.tobytes(), world.witness.draws, world.noises))
    assert ends[0] == ends[1]


def test_histories_are_varied_enough_to_mean_something() -> None:
    """Seeds 0 to 199 together: every outcome, every protocol's end, and many contributions."""
    outcomes, contributions = set(), 0
    for seed in range(200):
        world = any_world(random.Random(seed).randrange, faults=True)
        world.run(ACTS)
        outcomes |= {participant.outcome for participant in world.memory.values()}
        contributions += len(world.witness.used)
    assert len(outcomes - {None}) == 6
    assert contributions > 100


class Histories(RuleBasedStateMachine):
    """The same world with hypothesis as fate, which looks for the shortest failing history."""

    world: World

    def below(self, most: int) -> int:
        return self.random.randrange(most) if most > 1 else 0

    @initialize(random=st.randoms(use_true_random=False), kind=st.sampled_from(PROTOCOLS))
    def begin(self, random: random.Random, kind: str) -> None:
        self.random = random
        self.world = any_world(self.below, faults=True, kind=kind)

    @rule()
    def the_clock_goes_on(self) -> None:
        self.world.tick()

    @precondition(lambda self: self.world.network)
    @rule(index=st.integers(0, COIN_RANGE))
    def a_message_arrives(self, index: int) -> None:
        self.world.deliver(index % len(self.world.network))

    @precondition(lambda self: self.world.network)
    @rule(index=st.integers(0, COIN_RANGE))
    def a_message_is_lost(self, index: int) -> None:
        self.world.network.pop(index % len(self.world.network))

    @precondition(lambda self: self.world.network)
    @rule(index=st.integers(0, COIN_RANGE))
    def a_message_is_repeated(self, index: int) -> None:
        self.world.network.append(self.world.network[index % len(self.world.network)])

    @rule()
    def a_device_ends_its_training(self) -> None:
        self.world.finish_training()

    @rule(index=st.integers(0, COIN_RANGE))
    def a_client_tries_again(self, index: int) -> None:
        self.world.retry(self._someone(index))

    @rule(index=st.integers(0, COIN_RANGE))
    def a_client_restarts(self, index: int) -> None:
        self.world.crash_client(self._someone(index))

    @rule()
    def the_server_restarts(self) -> None:
        self.world.crash_server()

    @rule()
    def somebody_cheats(self) -> None:
        self.world.attack()

    @invariant()
    def no_slot_is_closed_that_the_budget_does_not_allow(self) -> None:
        if hasattr(self, "world"):
            assert self.world.server.closed <= self.world.rules.affordable

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.run(0)
            assert self.world.server.phase is Phase.DONE

    def _someone(self, index: int) -> str:
        everyone = sorted(self.world.participants)
        return everyone[index % len(everyone)]


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=SEEDS // 5, stateful_step_count=60, deadline=None)
