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
    # on a busy machine, the checkpoint of this bug may come when its reader has left
    "tests/tools/test_mutants.py": ("is_noticed[reader-holds-writers]",),
    "tests/audit/test_leak_mutants.py": (
        "is_contradicted[closed-slot-remembers]",
        "is_contradicted[clip-left-out]",
        "is_contradicted[dummies-of-one-category]",
        "is_not_contradicted[categories]",
        "is_not_contradicted[category-choice]",
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

ONE_IN_THREE = {
    "tests/accounting/test_accountant.py": (
        "test_a_loss_distribution_gives_the_epsilon_that_the_certificate_does",
    ),
    "tests/accounting/test_binomial.py": (
        "test_the_shortfall_keeps_its_round_off_far_in_the_tail",
    ),
    "tests/accounting/test_calibration.py": (
        "test_several_campaigns_meet_the_target_together",
        "test_gaussian_replacement_meets_the_target_and_spends_it",
    ),
    "tests/accounting/test_dominating_pair.py": ("test_repeated_randomized_response_is_binomial",),
    "tests/accounting/test_gaussian.py": (
        "test_every_noise_a_design_may_have_can_be_accounted_for",
        "test_the_bracket_closes_as_the_grid_is_refined",
    ),
    "tests/accounting/test_precision.py": ("test_the_method_is_the_one_of_a_certificate",),
    "tests/accounting/test_pure.py": ("test_a_million_slots_and_a_delta_of_1e_15_lose_no_digits",),
    "tests/audit/test_training_canary.py": ("test_every_kind_of_training_is_scored",),
    "tests/cli/test_account.py": (
        "test_every_kind_of_design_is_certified",
        "test_output_fits_80_columns",
        "test_what_is_solved_for_meets_the_target",
    ),
    "tests/cli/test_simulate.py": ("test_every_kind_of_campaign_has_the_certificate_of_account",),
    "tests/client/test_trainer.py": ("test_an_update_is_the_simulators",),
    "tests/planning/test_noise.py": (
        "test_a_level_meets_its_target_and_uses_most_of_it",
        "test_a_level_meets_its_target_where_one_is_replaced",
        "test_no_level_meets_an_epsilon_that_is_disproven",
    ),
    "tests/planning/test_odd_questions.py": (
        "test_an_odd_question_takes_no_more_evaluations_than_a_usual_one",
    ),
    "tests/planning/test_plan.py": (
        "test_an_independent_certificate_agrees_with_every_design_of_the_front",
    ),
    "tests/randomizers/test_compiled.py": (
        "test_no_input_leaves_above_its_norm_exactly",
        "test_reports_have_the_law_of_the_numpy_sampler",
    ),
    "tests/simulation/test_baselines.py": (
        "test_without_amplification_the_noise_is_that_of_a_public_slot",
    ),
    "tests/simulation/test_expectation.py": ("test_means_and_shares_are_those_of_many_runs",),
    "tests/simulation/test_loop.py": (
        "test_the_compiled_loop_and_the_machines_agree_on_the_same_draws",
    ),
    "tests/simulation/test_permutation.py": ("test_numpy_and_jax_compute_the_same_permutation",),
    "tests/simulation/test_report.py": (
        "test_a_sweep_is_drawn_against_numbers_and_as_a_list_of_words",
    ),
    "tests/simulation/test_training.py": ("test_updates_have_the_right_mean_and_spread",),
    "tests/simulation/test_updates.py": (
        "test_blocks_of_clients_add_up_to_the_slot",
        "test_the_linear_and_the_general_sum_are_equal",
    ),
}
"""Tests with many long cases: one case in three runs in ``make test``, all in ``make soak``."""


def examples(count: int, *, soak: int) -> settings:
    """So many examples where one takes a tenth of a second, and ``soak`` in ``make soak``."""
    return settings(max_examples=soak if SOAK else count)
