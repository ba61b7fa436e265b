"""What ``make test`` leaves to ``make soak``: more examples, and the cases between the corners."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

SOAK = os.environ.get("CHECKINS_SOAK") == "1"

only_in_soak = pytest.mark.skipif(not SOAK, reason="make soak")
"""Mark of a case whose code other cases of the same test run through too."""

LEFT_TO_SOAK = {
    "tests/cli/test_simulate.py": (
        # the options of a task are each run by test_outcome.py and test_loop.py too
        "certificate_of_account[adam]",
        "certificate_of_account[mlp]",
        "certificate_of_account[local steps]",
        "certificate_of_account[projection and a falling rate]",
        "certificate_of_account[minibatch, momentum]",
        "certificate_of_account[privunit]",
        # two seeds, each in a process, are interrupted and resumed in any case
        "resume_ends_bit_identical[1]",
    ),
    "tests/examples/test_demo.py": ("leaves_nothing_running[2]",),
    "tests/audit/test_leak_mutants.py": (
        "is_contradicted[closed-slot-remembers]",
        "is_contradicted[clip-left-out]",
    ),
    "tests/service/test_histories.py": (
        "of_the_machines[averaged-postgresql]",
        "of_the_machines[client-postgresql]",
        "of_the_machines[everyone-postgresql]",
        "of_the_machines[one-postgresql]",
        "of_the_machines[poor-postgresql]",
        "of_the_machines[sliding-postgresql]",
    ),
    "tests/tasks/test_models.py": ("test_in_single_precision_they_agree_too",),
    "tests/simulation/test_outcome.py": ("bit_identical[privunit]", "bit_identical[adam, twice]"),
    "tests/simulation/test_baselines.py": ("by_dp_accounting_too[server, three times]",),
    "tests/simulation/test_loop.py": (
        "never_heard_of[2]",
        "on_the_same_draws[noise at the server, a capacity, projected]",
        "on_the_same_draws[dummies, minibatches of 3, c/\\u221ai]",
    ),
    "tests/simulation/test_training.py": ("mean_and_spread[averaged-randomizer3]",),
    "tests/audit/test_training_canary.py": (
        "is_scored[[('participation = 1.0', 'participation = 0.5')]]",
        "is_scored[[('noise_at = \"client\"', 'noise_at = \"server\"'), "
        "('capacity = 20', 'capacity = \"all\"')]]",
        "is_scored[[('rate = 0.5', 'rate = 0.5, momentum = 0.9, minibatch = 2')]]",
        "is_scored[[('repeats = 1', 'repeats = 2')]]",
    ),
    "tests/planning/test_odd_questions.py": (
        "than_a_usual_one[ten thousand runs]",
        "than_a_usual_one[crowded, replaced]",
        "than_a_usual_one[a delta near one, replaced]",
        "than_a_usual_one[a delta near one]",
        "than_a_usual_one[a tiny epsilon, replaced]",
        "than_a_usual_one[laplace, replaced, four times]",
        "than_a_usual_one[averaged thrice]",
        "than_a_usual_one[short stays]",
    ),
    "tests/planning/test_plan.py": (
        "never_has_a_worse_proxy[replace-one]",
        "where_one_is_replaced[repeated]",
    ),
    "tests/planning/test_noise.py": ("where_one_is_replaced[room]",),
    "tests/accounting/test_dominating_pair.py": ("is_binomial[0.3-1000000]",),
    "tests/accounting/test_binomial.py": ("far_in_the_tail[8.0-1000000000]",),
    "tests/accounting/test_accountant.py": ("that_the_certificate_does[what1-replace-one]",),
}
"""Ends of test ids, by file: cases beside which others of the same test run the same code."""


def examples(count: int, *, soak: int) -> settings:
    """So many examples where one takes a tenth of a second, and ``soak`` in ``make soak``."""
    return settings(max_examples=soak if SOAK else count)
