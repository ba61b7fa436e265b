"""The planted bugs. Each has a description and the tests that must fail because of it."""

from __future__ import annotations

from tools.mutants import Change, Mutant

HISTORIES = "tests/protocol/test_histories.py::test_the_invariants_hold_in_every_history"
SLOT, PARTICIPANT = "tests/protocol/test_slot.py", "tests/protocol/test_participant.py"
DISTRIBUTIONS = "tests/protocol/test_distributions.py"
FACTORIES = "tests/protocol/test_factories.py"
CLOCK, CLOCK_JUMPS = "tests/service/test_time_source.py", "tests/service/test_clock_jumps.py"
ADAPTIVE = "tests/ledger/test_adaptive.py"
FILTERS = "tests/accounting/test_filters.py"
MODEL_UPDATE = "tests/protocol/test_model_update.py"
DEVICE = "tests/randomizers/test_device.py"
NORMS = "tests/randomizers/test_norms.py"
LOGS, BACKGROUND = "tests/service/test_logs.py", "tests/service/test_background_tasks.py"
READINESS, DATABASE = "tests/service/test_readiness.py", "tests/service/test_database.py"
GRID = "tests/randomizers/test_grid.py"
CORRELATED = "tests/protocol/test_correlated_noise.py"
BANDED = "tests/accounting/test_correlated_noise.py"
LOOP, SPACE = "tests/simulation/test_loop.py", "tests/planning/test_search_space.py"
PAST_SUMS = "tests/service/test_correlated_noise.py"

MEMORY = "tests/service/test_memory_limits.py"
CONNECTIONS = "tests/service/test_connection_limits.py"
CAMPAIGN_FILE = "tests/campaign/test_file.py"
POPULATION = "tests/service/test_population.py"
LOAD_SHEDDING = "tests/service/test_load_shedding.py"

ASSUMPTIONS = "tests/accounting/test_assumptions.py"
NAMED = "tests/accounting/test_named.py"
FOURIER = "tests/accounting/test_fourier_sum.py"
FULL_SLOTS = "tests/accounting/test_full_slots.py"
ADAPTIVE_UPDATES = "tests/accounting/test_adaptive_updates.py"
DEVICE_PROGRAM = "tests/package/test_device.py"
EXTRAS = "tests/package/test_extras.py"
LATTICE = "tests/accounting/test_lattice_sum.py"
CURIOUS, KINDS = (
    "tests/accounting/test_adversaries.py",
    "tests/accounting/test_heterogeneous_clients.py",
)

ALLOCATION, INTEROP = (
    "tests/accounting/test_random_allocation.py",
    "tests/accounting/test_interop.py",
)

ODOMETER = "tests/client/test_odometer.py"
OPERATORS = "tests/service/test_operators.py"
SIGNATURE = "tests/ledger/test_signature.py"
READER = "tests/service/test_read_page.py"
FLOWER_TRAINER = "tests/flower/test_trainer.py"
FLOWER_STRATEGY = "tests/flower/test_strategy.py"
FLOWER_GATE = "tests/flower/test_gate.py"

BROWSER, BROWSER_VECTORS = (
    "tests/browser_client/test_device.py",
    "tests/browser_client/test_vectors.py::test_the_browser_computes_what_python_does",
)
CLIENT_JS = "clients/js/client.js"

MUTANTS = (
    Mutant(
        "browser-modulo-bias",
        "a browser takes the remainder of a random number, so some slots are more likely",
        (Change(CLIENT_JS, "if (result < count) return result;", "return result % count;"),),
        (f"{BROWSER_VECTORS}[draws]",),
    ),
    Mutant(
        "browser-sign-of-noise",
        "the noise of a browser has the sign of the next coordinate",
        (Change(CLIENT_JS, "(7 - (i & 7))", "(i & 7)"),),
        (f"{BROWSER_VECTORS}[noise]",),
    ),
    Mutant(
        "browser-unclipped",
        "a browser decides in floats whether an update is within the clip",
        (
            Change(
                CLIENT_JS,
                "    if (fits()) return units;\n  }\n  for",
                "    return units;\n  }\n  for",
            ),
        ),
        (f"{BROWSER_VECTORS}[clipping]",),
    ),
    Mutant(
        "browser-unknown-keys",
        "a browser joins a campaign with a key that it does not know",
        (
            Change(
                CLIENT_JS,
                "if (kind === undefined) throw new CampaignRefused",
                "if (kind === undefined) continue; else if (false) throw new CampaignRefused",
            ),
        ),
        (f"{BROWSER_VECTORS}[campaigns]",),
    ),
    Mutant(
        "browser-redraw-after-reload",
        "a browser that is reloaded draws its slot again",
        (Change(CLIENT_JS, "hasDrawn = this.saved.phase !== undefined", "hasDrawn = false"),),
        (f"{BROWSER}::test_a_crash_at_any_step_never_draws_again_and_never_changes_a_report",),
    ),
    Mutant(
        "browser-noise-again",
        "a browser draws new noise for every attempt to send its report",
        (
            Change(
                CLIENT_JS,
                "const report = fromBase64(String(this.saved.report));",
                "const report = reportToBytes(makeReport(new Float64Array(this.view.dimension),"
                " this.view.campaign.randomizer, this.platform.source));",
            ),
        ),
        (f"{BROWSER}::test_a_retry_sends_the_same_bytes_with_noise_drawn_once",),
    ),
    Mutant(
        "browser-report-not-durable",
        "a browser sends its report before the report is stored",
        (Change(CLIENT_JS, "await this.save(); // durable before it is sent", "// "),),
        (f"{BROWSER}::test_a_draw_is_durable_before_the_check_in_and_charged_before_it_is_saved",),
    ),
    Mutant(
        "browser-clock-stands-still",
        "a browser does not notice that its monotonic clock stopped while the computer slept",
        (Change(CLIENT_JS, "- lag) > 1 &&", "- lag) > 1e9 &&"),),
        (f"{BROWSER}::test_a_monotonic_clock_that_stands_still_in_sleep_is_noticed",),
    ),
    Mutant(
        "browser-two-tabs",
        "two tabs of one browser take part in the same run",
        (
            Change(
                CLIENT_JS,
                "{ signal: waiting.signal }, () =>",
                '{ signal: waiting.signal, mode: "shared" }, () =>',
            ),
        ),
        (f"{BROWSER}::test_the_store_survives_a_reload_and_a_second_tab_is_refused",),
    ),
    Mutant(
        "attack-beyond-population",
        "an audit fills slots with more clients than the certificate assumes",
        (Change("audit/canaries.py", "named_canaries[:1] if uses_population else ", ""),),
        ("tests/audit/test_audit.py::test_the_exact_epsilon_of_an_attack_is_below_the_certified",),
    ),
    Mutant(
        "unchecked-dimension",
        "a model of another dimension than the certificate of PrivUnit is trained",
        (
            Change(
                "campaign/randomizer_config.py",
                "        self.check_dimension(dimension)\n",
                "",
            ),
        ),
        ("tests/campaign/test_model.py::test_the_dimension_of_a_campaign_is_that_of_the_model",),
    ),
    Mutant(
        "name-without-dimension",
        "a campaign without a dimension has the certificate of PrivUnit in a dimension",
        (
            Change(
                "campaign/randomizer_config.py",
                "        return LocalRandomizer(noise.local_epsilon, noise.local_delta)\n",
                "        return noise\n",
            ),
        ),
        ("tests/campaign/test_model.py::test_privunit_has_a_name_only_with_its_dimension",),
    ),
    Mutant(
        "redraw-after-crash",
        "a client that crashes after its draw was durable draws again",
        (
            Change(
                "protocol/participant.py",
                "        Phase.DRAWN: (Phase.PLEDGED, Phase.DONE),\n        Phase.TRAINING",
                "        Phase.DRAWN: Phase.NEW,\n        Phase.TRAINING",
            ),
            Change(
                "protocol/participant.py",
                "        return _wait_for_slot(participant, event)\n    resumed",
                "        return replace(participant, phase=Phase.NEW, slot=None), ()\n    resumed",
            ),
        ),
        (HISTORIES,),
    ),
    Mutant(
        "biased-choice",
        "the server chooses the first check-ins of its list, not random ones",
        (Change("protocol/slot.py", "waiting.pop(draw)", "waiting.pop(0 * draw)"),),
        (f"{DISTRIBUTIONS}::test_every_set_of_clients_is_chosen_by_equally_many_draws",),
    ),
    Mutant(
        "too-few-reports",
        "the server releases a slot with fewer reports than it declared",
        (
            Change(
                "protocol/slot.py",
                "and contributors < slot.rules.least_reports",
                "and contributors < min(slot.rules.least_reports, 1)",
            ),
        ),
        (f"{SLOT}::test_invariant_15_an_averaged_slot_with_too_few_reports_is_skipped",),
    ),
    Mutant(
        "full-slots-for-free",
        "the probability of a full slot is not charged to delta for a named randomizer",
        (
            Change(
                "accounting/exact/campaign_divergence.py",
                "remaining = math.nextafter(delta - self.probability, 0.0)",
                "remaining = delta",
            ),
        ),
        (
            "tests/accounting/test_named_with_population.py"
            "::test_the_probability_of_a_full_slot_is_charged_to_delta",
        ),
    ),
    Mutant(
        "one-window-for-two-wake-times",
        "a client whose wake time depends on its data is certified as if it had one window",
        (
            Change(
                "accounting/exact/campaign_divergence.py",
                "    if design.has_unrelated_windows(adjacency):\n        return _div",
                "    if design.has_unrelated_windows(adjacency) and design.slots < 0:\n"
                "        return _div",
            ),
        ),
        (
            "tests/accounting/test_wake_times.py"
            "::test_without_the_assumption_epsilon_is_larger_and_the_certificate_says_less",
        ),
    ),
    Mutant(
        "ledger-of-too-few-reports",
        "a ledger accepts the sum of a slot with fewer reports than the campaign declares",
        (
            Change(
                "ledger/chain.py",
                "least_reports = run.campaign.design.least_reports or 1",
                "least_reports = 1",
            ),
        ),
        (
            "tests/ledger/test_chain.py"
            "::test_invariant_15_a_ledger_refuses_the_total_of_a_slot_with_too_few_reports",
        ),
    ),
    Mutant(
        "dummy-left-out",
        "no dummy report, and so no noise, replaces a missing report",
        (Change("protocol/slot.py", "[*client_reports, *event.dummies, *", "[*client_reports, *"),),
        (HISTORIES,),
    ),
    Mutant(
        "late-report-moves",
        "a late report counts in the next slot",
        (
            Change(
                "protocol/server.py",
                "if slot is not None and slot.number == event.slot:",
                "if slot is not None and event.slot <= slot.number:",
            ),
            Change(
                "protocol/slot.py", "if event.receipt not in slot.chosen_receipts:", "if False:"
            ),
            Change(
                "protocol/slot.py",
                "    client_reports = [\n        slot.reports[receipt] for receipt in"
                " slot.chosen_receipts if receipt in slot.reports\n    ]\n",
                "    client_reports = list(slot.reports.values())\n",
            ),
            Change(
                "protocol/slot.py",
                "(self.rules.capacity or 0) - self.report_count - self.partial_sum.dummy_count",
                "max((self.rules.capacity or 0) - self.report_count"
                " - self.partial_sum.dummy_count, 0)",
            ),
        ),
        (HISTORIES,),
    ),
    Mutant(
        "noise-redrawn-on-retry",
        "a client that restarts draws new noise, although it has already sent its report",
        (
            Change(
                "protocol/participant.py",
                "        Phase.PRIVATIZED: Phase.REPORTING,\n    },\n)\ndef _restart",
                "        Phase.PRIVATIZED: Phase.ACCEPTED,\n    },\n)\ndef _restart",
            ),
            Change(
                "protocol/participant.py",
                "    resumed_phase = Phase.ACCEPTED if participant.phase is Phase.TRAINING"
                " else Phase.REPORTING\n"
                "    return _send_again(replace(participant, phase=resumed_phase)",
                "    resumed_phase = Phase.ACCEPTED\n"
                "    return _send_again(replace(participant, phase=resumed_phase, report=None)",
            ),
        ),
        (HISTORIES,),
    ),
    Mutant(
        "count-leaked",
        "a slot of the fixed protocol reveals its number of reports",
        (
            Change(
                "protocol/slot.py",
                "contributors=contributors if slot.rules.is_averaged else None",
                "contributors=contributors",
            ),
        ),
        (HISTORIES,),
    ),
    Mutant(
        "coin-skipped",
        "a client takes part even if its participation coin says no",
        (
            Change(
                "protocol/participant.py",
                "takes_part = event.coin < coin_threshold(participant.participation)",
                "takes_part = participant.participation > 0",
            ),
        ),
        (f"{PARTICIPANT}::test_a_coin_is_heads_below_the_participation",),
    ),
    Mutant(
        "coin-rounded-up",
        "the participation probability is rounded up",
        (
            Change(
                "protocol/participant.py",
                "math.floor(Fraction(participation) * COIN_RANGE)",
                "math.ceil(Fraction(participation) * COIN_RANGE)",
            ),
        ),
        (f"{PARTICIPANT}::test_a_client_never_takes_part_more_often_than_it_should",),
    ),
    Mutant(
        "window-off-by-one",
        "a sliding window begins one slot too late",
        (
            Change(
                "protocol/rules.py",
                "return first_open_slot + pick",
                "return first_open_slot + pick + 1",
            ),
        ),
        (f"{DISTRIBUTIONS}::test_every_slot_of_a_window_is_drawn_by_exactly_one_pick",),
    ),
    Mutant(
        "fixed-window-off-by-one",
        "the last slot is never drawn",
        (Change("protocol/rules.py", "range(1, slots + 1)", "range(1, max(slots, 2))"),),
        (f"{DISTRIBUTIONS}::test_every_slot_of_a_window_is_drawn_by_exactly_one_pick",),
    ),
    Mutant(
        "accumulator-not-reset",
        "a minibatch also contains the sum of the previous one",
        (
            Change(
                "protocol/model_update.py",
                "self._project(new_model)), None, slots, velocity,",
                "self._project(new_model)), read_only(gradient), slots, velocity,",
            ),
        ),
        (f"{MODEL_UPDATE}::test_the_accumulator_starts_anew_after_each_step",),
    ),
    Mutant(
        "model-before-choice",
        "a client whose outcome is not known yet gets the model",
        (
            Change(
                "service/runs/cached_responses.py",
                'if outcome == "chosen" and live_run',
                'if outcome != "dismissed" and live_run',
            ),
        ),
        ("tests/service/test_routes.py::test_one_request_checks_in_waits_and_gets_the_model",),
    ),
    Mutant(
        "told-before-committed",
        "clients are invited before the choice is durable",
        (
            Change(
                "protocol/slot.py",
                "return choosing, (RecordChoice(choosing.chosen_receipts),)",
                "return choosing, (*map(Invite, chosen), RecordChoice(choosing.chosen_receipts))",
            ),
        ),
        (HISTORIES,),
    ),
    Mutant(
        "double-contribution",
        "a client that has already checked in may check in again",
        (Change("protocol/slot.py", "    if event.has_participated:\n", "    if False:\n"),),
        (HISTORIES,),
    ),
    Mutant(
        "acknowledged-before-durable",
        "a check-in is acknowledged before it is recorded",
        (
            Change(
                "protocol/slot.py",
                "effects = (RecordCheckIn(event.token, event.receipt),"
                " Acknowledge(event.token, event.receipt))",
                "effects = (Acknowledge(event.token, event.receipt),"
                " RecordCheckIn(event.token, event.receipt))",
            ),
        ),
        (HISTORIES,),
    ),
    Mutant(
        "shown-before-committed",
        "a model is released before its slot is durable",
        (
            Change(
                "protocol/server.py",
                "    return closing, (record,)",
                "    return closing, (Release(slot.number, learner.model), record)",
            ),
        ),
        (HISTORIES,),
    ),
    Mutant(
        "closed-slot-remembers",
        "a closed slot still stores its clients",
        (
            Change(
                "protocol/slot.py",
                "        Phase.CLOSED,\n",
                "        Phase.CLOSED,\n        receipts_by_token=slot.receipts_by_token,\n",
            ),
        ),
        (HISTORIES,),
    ),
    Mutant(
        "full-disk-raises",
        "an error in writing a log line interrupts the request",
        (
            Change(
                "service/logs.py",
                "except Exception:  # the service goes on",
                "except KeyError:  # is",
            ),
        ),
        (f"{LOGS}::test_a_full_disk_raises_nothing_and_is_counted",),
    ),
    Mutant(
        "dead-task-forgotten",
        "a background task that dies is not restarted",
        (
            Change(
                "service/workers/background_tasks.py",
                "        loop.call_later(supervised.pause_s, self._start_task, key)\n",
                "",
            ),
        ),
        (f"{BACKGROUND}::test_a_task_that_dies_is_due_again_at_once",),
    ),
    Mutant(
        "late-slots-are-ready",
        "a coordinator that fails to close slots reports that it is ready",
        (
            Change(
                "service/routes/readiness.py",
                "elif late_runs := [",
                "elif late_runs := [] and [",
            ),
        ),
        (f"{READINESS}::test_each_reason_is_enough",),
    ),
    Mutant(
        "reader-holds-writers",
        "a checkpoint waits for readers of the store and blocks writers meanwhile",
        (
            Change(
                "service/store/database.py",
                "PRAGMA busy_timeout = {CHECKPOINT_READERS_TIMEOUT_MS}",
                "PRAGMA busy_timeout = {1000 * WRITE_LOCK_TIMEOUT_S}",
            ),
        ),
        (f"{DATABASE}::test_writers_do_not_wait_for_a_checkpoint_that_waits_for_a_reader",),
    ),
    Mutant(
        "log-never-emptied",
        "SQLite's write-ahead log keeps rows that closed slots have erased",
        (Change("service/store/database.py", "checkpoint(TRUNCATE)", "checkpoint(PASSIVE)"),),
        (
            "tests/service/test_migration.py"
            "::test_invariant_8_after_a_checkpoint_no_byte_of_a_closed_slot_is_in_the_files",
        ),
    ),
    Mutant(
        "silent-store-holds-the-process",
        "threads that wait for an unresponsive store keep the process alive",
        (Change("service/workers/background_tasks.py", "daemon=True", "daemon=False"),),
        (f"{BACKGROUND}::test_what_has_not_begun_is_dropped_when_threads_leave",),
    ),
    Mutant(
        "start-ends-with-a-crash",
        "a PostgreSQL crash during startup stops the coordinator",
        (
            Change(
                "service/store/database.py",
                "                if self.is_sqlite or not is_unavailable(error):\n",
                "                if True:\n",
            ),
        ),
        (f"{DATABASE}::test_what_a_start_does_is_done_again_after_a_crash",),
    ),
    Mutant(
        "budget-ignored",
        "a campaign continues after its budget is exhausted",
        (
            Change(
                "protocol/server.py",
                "closed < server.rules.affordable else",
                "closed < server.rules.slots else",
            ),
        ),
        (HISTORIES,),
    ),
    Mutant(
        "clock-believed",
        "slots close by the wall clock, even after it was changed",
        (
            Change(
                "service/store/time_source.py",
                "return self._steady() + self._offset",
                "return self.calendar()",
            ),
        ),
        (f"{CLOCK}::test_a_calendar_that_jumps_holds_until_it_agrees_again",),
    ),
    Mutant(
        "hold-ignored",
        "slots are closed while the clock is not trusted",
        (Change("service/runs/slot_transitions.py", " or database.clock.is_holding or ", " or "),),
        (f"{CLOCK_JUMPS}::test_a_clock_that_was_set_closes_nothing_and_spends_nothing",),
    ),
    Mutant(
        "restart-confirms-clock",
        "a restarted coordinator trusts a clock that jumped before the restart",
        (Change("service/runs/clock_jumps.py", "is not None and not trust_calendar:", "is None:"),),
        (f"{CLOCK_JUMPS}::test_a_restart_does_not_confirm_a_clock_that_jumped",),
    ),
    Mutant(
        "healthy-store-restored",
        "--restore ends the runs of a store that was never rolled back",
        (Change("service/startup.py", "guard.check_restorable(store)", "pass"),),
        (
            "tests/service/test_rollback_detection.py"
            "::test_a_healthy_store_is_not_restored_and_its_campaign_runs_on",
        ),
    ),
    Mutant(
        "warm-up-too-short",
        "the sliding protocol releases a model one slot too early",
        (Change("protocol/rules.py", "return slot > self.warm_up", "return slot >= self.warm_up"),),
        (HISTORIES,),
    ),
    Mutant(
        "second-report-taken",
        "a second, different report replaces the first",
        (
            Change(
                "protocol/slot.py",
                "if earlier is not None and earlier != event.report:",
                "if False:",
            ),
        ),
        (f"{SLOT}::test_a_report_that_is_sent_again_counts_once",),
    ),
    Mutant(
        "malformed-report-taken",
        "reports are not validated before they are summed",
        (Change("protocol/slot.py", "    slot.rules.report_checks.check(event.report)\n", ""),),
        (f"{SLOT}::test_a_malformed_report_is_refused",),
    ),
    Mutant(
        "long-report-taken",
        "a report of any norm is accepted",
        (
            Change(
                "protocol/report.py",
                "if self.norm is not None and not self.norm.holds(report.values):",
                "if False:",
            ),
        ),
        (f"{SLOT}::test_a_report_that_is_too_long_is_refused_and_a_dummy_is_not",),
    ),
    Mutant(
        "clip-not-enforced",
        "with noise at the server, the norm limit of reports still allows for device noise",
        (
            Change(
                "randomizers/device.py",
                "        if noise_at_server:\n",
                "        if False:\n",
            ),
        ),
        (f"{FACTORIES}::test_without_noise_of_its_own_a_report_is_no_longer_than_the_clip",),
    ),
    Mutant(
        "honest-report-refused",
        "the norm limit ignores the tail of the noise, so honest reports are refused",
        (
            Change(
                "randomizers/device.py",
                "noise = math.sqrt(d + 2.0 * math.sqrt(d * t) + 2.0 * t)",
                "noise = math.sqrt(d)",
            ),
        ),
        (NORMS,),
    ),
    Mutant(
        "reports-read-at-once",
        "closing a slot loads all of its reports into memory",
        (
            Change(
                "service/store/participants.py",
                "            .limit(batch_size)\n",
                "            .limit(10**9)\n",
            ),
        ),
        (f"{MEMORY}::test_a_slot_that_uses_everyone_closes_in_bounded_memory[sqlite]",),
    ),
    Mutant(
        "batch-skipped",
        "closing a slot uses only the first batch of reports",
        (
            Change(
                "service/store/participants.py",
                "        last_receipt = rows[-1].receipt\n",
                "        last_receipt = chr(0x10FFFF)\n",
            ),
        ),
        (f"{MEMORY}::test_sums_of_batches_are_exact[sqlite-everyone]",),
    ),
    Mutant(
        "answered-before-the-commit",
        "clients get their response while the transaction is not durable yet",
        (
            Change(
                "service/runs/group_commit.py",
                "while not (await asyncio.wait({commit}, timeout=self.timeout_s))[0]:\n"
                "                        self.refuse_waiting()\n"
                "                    answers = commit.result()\n",
                "answers = [None] * len(batch)\n",
            ),
        ),
        ("tests/service/test_group_commit.py::test_nobody_is_answered_before_the_commit_is_over",),
    ),
    Mutant(
        "refused-after-the-token",
        "a check-in is refused for load after its token is spent",
        (
            Change(
                "service/runs/client_requests.py",
                "    if _has_room(live_run, runner, slot):\n        receipt = await",
                "    receipt = await live_run.check_ins.submit(message)\n"
                "    if _has_room(live_run, runner, slot):\n        receipt = await",
            ),
            Change(
                "service/runs/client_requests.py",
                "        receipt = await _receipt_of_retry(live_run, runner, message)\n",
                '        raise Problem("busy")\n',
            ),
        ),
        (f"{LOAD_SHEDDING}::test_whoever_is_accepted_by_a_slow_coordinator_is_in_time",),
    ),
    Mutant(
        "refused-retry",
        "a client that was accepted is refused when it asks again and the slot has no room",
        (
            Change(
                "service/runs/client_requests.py",
                "    receipt = await live_run.retries.submit(message)\n",
                "    receipt = None\n",
            ),
        ),
        (f"{LOAD_SHEDDING}::test_whoever_is_accepted_by_a_slow_coordinator_is_in_time",),
    ),
    Mutant(
        "no-time-for-reports",
        "check-ins are accepted without regard to the time that their reports take",
        (
            Change(
                "service/runs/load_shedding.py",
                "if self.device_s + self._service_s(reports) <= remaining_s:",
                "if remaining_s > 0.0:",
            ),
        ),
        (f"{LOAD_SHEDDING}::test_whoever_is_accepted_by_a_slow_coordinator_is_in_time",),
    ),
    Mutant(
        "no-time-for-devices",
        "the time that devices need after the choice is not left to them",
        (
            Change(
                "service/runs/load_shedding.py",
                "        self.device_s = min(device_s, (1.0 - SAVING) * self._reports_s)\n",
                "",
            ),
        ),
        (f"{LOAD_SHEDDING}::test_the_time_of_devices_is_left_to_them_and_stragglers_do_not_count",),
    ),
    Mutant(
        "refused-report-is-overload",
        "a report that is refused counts as one that the coordinator had no time to save",
        (
            Change(
                "service/runs/client_requests.py",
                "        load.report_was_refused(slot, receipt, now=now())\n",
                "",
            ),
        ),
        (
            f"{LOAD_SHEDDING}"
            "::test_a_report_that_is_refused_does_not_keep_out_the_clients_of_later_slots",
        ),
    ),
    Mutant(
        "slow-clients-keep-out-others",
        "clients that report late make the coordinator refuse all but one check-in of each slot",
        (
            Change(
                "service/runs/load_shedding.py",
                "min(device_s, (1.0 - SAVING) * self._reports_s)",
                "device_s",
            ),
        ),
        (f"{LOAD_SHEDDING}::test_slow_clients_that_come_first_do_not_keep_out_all_others",),
    ),
    Mutant(
        "room-for-strangers",
        "the body of an uninvited report is read while other clients wait",
        (
            Change(
                "service/runs/client_requests.py",
                "await runner.read_store(participants.is_chosen, live_run.spec.id, slot, receipt)",
                "True",
            ),
        ),
        (f"{MEMORY}::test_room_is_for_reports_of_those_who_were_chosen[stranger]",),
    ),
    Mutant(
        "population-ignored",
        "more clients can enrol than the campaign declares",
        (
            Change(
                "service/runs/intake.py",
                "                if clients >= spec.most_enrolled:\n",
                "                if False:\n",
            ),
        ),
        (f"{POPULATION}::test_a_retry_is_counted_once_and_answered_when_the_run_is_full[sqlite]",),
    ),
    Mutant(
        "allow-list-too-long",
        "an allow-list may have more keys than the declared population",
        (Change("service/runs/opening.py", "allow_list_size > population.most:", "False:"),),
        (f"{POPULATION}::test_an_allow_list_longer_than_the_population_is_refused_at_the_start",),
    ),
    Mutant(
        "connections-unshared",
        "one address can use all connections of a coordinator",
        (Change("service/settings.py", "per_address: int = 1000", "per_address: int = 0"),),
        (
            f"{CONNECTIONS}"
            "::test_one_address_takes_no_more_than_its_share_of_all_connections_by_default",
        ),
    ),
    Mutant(
        "hostile-file-parsed",
        "a hostile campaign file is parsed for minutes",
        (
            Change(
                "campaign/toml.py",
                "        if limit_error is not None:\n",
                "        if False:\n",
            ),
        ),
        (f"{CAMPAIGN_FILE}::test_a_text_beyond_the_limits_is_refused_before_it_is_parsed",),
    ),
    Mutant(
        "device-remembers",
        "a finished device keeps its report and its slot on its disk",
        (Change("protocol/participant.py", "return done, (RecordEnd(),)", "return done, ()"),),
        (HISTORIES,),
    ),
    Mutant(
        "earlier-campaigns-forgotten",
        "a server ignores the epsilon of earlier campaigns on its population",
        (
            Change(
                "ledger/verification.py",
                "return Spending(campaign, earlier_of(ledger), ledger.filter)",
                "return Spending(campaign, (), ledger.filter)",
            ),
        ),
        (f"{FACTORIES}::test_what_earlier_campaigns_of_the_population_spent_is_gone",),
    ),
    Mutant(
        "kinds-unmixed",
        "the composition assumes that a client is of the same kind in all campaigns",
        (
            Change(
                "accounting/composition.py",
                "        return envelope(pairs).repeat(campaigns, rounding)\n",
                "        return pairs[-1].repeat(campaigns, rounding)\n",
            ),
        ),
        (f"{KINDS}::test_a_client_may_be_of_one_kind_and_then_of_another",),
    ),
    Mutant(
        "kept-step-for-one-epoch",
        "an example that keeps its step is accounted for in one epoch only",
        (
            Change(
                "accounting/random_allocation.py",
                "shrunk = self.noise_multiplier / math.sqrt(self.participations)",
                "shrunk = self.noise_multiplier",
            ),
        ),
        (f"{ALLOCATION}::test_a_step_that_is_kept_has_the_ratio_of_all_its_epochs",),
    ),
    Mutant(
        "parts-rounded-up",
        "k of m steps are accounted for as campaigns of more slots than there are steps",
        (
            Change(
                "accounting/random_allocation.py",
                "*[self._campaign(slots, self.noise_multiplier)] * (shorter",
                "*[self._campaign(slots + 1, self.noise_multiplier)] * (shorter",
            ),
        ),
        (f"{ALLOCATION}::test_every_step_is_in_one_campaign_and_every_participation_too",),
    ),
    Mutant(
        "lower-end-of-any-steps",
        "a lower bound of the campaigns is claimed for a draw that they only dominate",
        (
            Change(
                "accounting/random_allocation.py",
                "epsilon_lower=found.epsilon_lower if is_exact else 0.0",
                "epsilon_lower=found.epsilon_lower",
            ),
        ),
        (f"{ALLOCATION}::test_a_lower_bound_is_stated_only_if_it_is_known",),
    ),
    Mutant(
        "convolution-noise-magnified",
        "tiny errors at very small losses are multiplied by a huge factor",
        (
            Change(
                "accounting/interop.py",
                "_raise_smallest(np.maximum(losses, -_MAX_LOSS), masses)",
                "(np.maximum(losses, -_MAX_LOSS), masses)",
            ),
        ),
        (f"{INTEROP}::test_the_noise_of_a_convolution_is_not_magnified",),
    ),
    Mutant(
        "optimistic-estimate-read",
        "an optimistic loss distribution of another library is taken for an upper bound",
        (
            Change(
                "accounting/interop.py",
                "if not pmf._pessimistic_estimate:",
                "if pmf is None:",
            ),
        ),
        (f"{INTEROP}::test_sparse_distributions_are_read_and_optimistic_ones_refused",),
    ),
    Mutant(
        "curious-for-free",
        "curious clients do not increase epsilon",
        (
            Change(
                "accounting/adversaries.py",
                "_displacement_bound(design, curious) + probability_of_more)\n",
                "probability_of_more)\n",
            ),
        ),
        (f"{CURIOUS}::test_a_client_that_displaces_a_curious_one_shows",),
    ),
    Mutant(
        "lower-end-of-everything",
        "a lower bound of some randomizer is claimed for the campaign's own randomizer",
        (
            Change(
                "accounting/accountant.py",
                "    if is_unnamed:\n        return OF_SOME_RANDOMIZER_AMONG_OTHERS",
                "    if False:\n        return OF_SOME_RANDOMIZER_AMONG_OTHERS",
            ),
        ),
        (f"{ASSUMPTIONS}::test_a_lower_end_names_the_mechanism_it_is_about",),
    ),
    Mutant(
        "named-without-displacing",
        "the bound of a named randomizer leaves out that a client may displace another one",
        (
            Change(
                "accounting/exact/named.py",
                "    return Envelope(join_ratio, "
                "DilutedRatio(displace_ratio, choice_probability))\n",
                "    return join_ratio\n",
            ),
        ),
        (f"{NAMED}::test_the_known_values_are_reproduced[case0]",),
    ),
    Mutant(
        "named-without-capacity",
        "the dummies of a named randomizer are used although the capacity is not declared",
        (
            Change(
                "accounting/design.py",
                "        uses_name = self.capacity is not None and self.protocol",
                "        uses_name = self.protocol",
            ),
        ),
        (f"{NAMED}::test_without_a_capacity_the_name_is_not_used",),
    ),
    Mutant(
        "copies-grouped-down",
        "a group of numbers of copies is represented by its largest number",
        (
            Change(
                "accounting/exact/named.py",
                "    counts = (copy_counts.first + 1 + starts).tolist()\n",
                "    counts = (copy_counts.first + 2 + starts).tolist()\n",
            ),
        ),
        (f"{NAMED}::test_the_mean_of_random_copies_is_the_sum_over_all_copies",),
    ),
    Mutant(
        "lattice-capped-mean-lost",
        "the mean that is lost above an evenly spaced grid is not charged",
        (
            Change(
                "accounting/exact/lattice_sum.py",
                "        excess = self.excess + other.excess + self.step * lost\n",
                "        excess = self.excess + other.excess\n",
            ),
        ),
        (f"{LATTICE}::test_every_step_preserves_the_mean",),
    ),
    Mutant(
        "lattice-low-mass-lowered",
        "mass below an evenly spaced grid is moved to the smallest possible value only",
        (
            Change(
                "accounting/exact/lattice_sum.py",
                "    floor_mass = distances / gap if gap else 0.0\n",
                "    floor_mass = mass if gap else 0.0\n",
            ),
        ),
        (f"{LATTICE}::test_every_step_preserves_the_mean",),
    ),
    Mutant(
        "local-delta-free",
        "the local delta of reports is not charged",
        (
            Change(
                "accounting/bounds.py",
                "        return curve(epsilon) + factor * total_charge\n",
                "        return curve(epsilon)\n",
            ),
        ),
        (f"{NAMED}::test_a_local_delta_is_charged_once_and_not_in_every_slot",),
    ),
    Mutant(
        "curious-clients-count-as-dummies",
        "against curious clients, the dummies of a named randomizer are still used",
        (
            Change(
                "accounting/adversaries.py",
                "unnamed = LocalRandomizer(randomizer.local_epsilon)",
                "unnamed = randomizer",
            ),
        ),
        (f"{NAMED}::test_curious_clients_leave_only_the_local_epsilon",),
    ),
    Mutant(
        "filter-never-used",
        "campaigns opened after earlier releases are composed as if they were fixed beforehand",
        (
            Change(
                "campaign/spending.py",
                "    return any(run.campaign != runs[0].campaign for run in runs)\n",
                "    return False\n",
            ),
        ),
        (
            f"{ADAPTIVE}::test_another_campaign_is_charged_by_the_filter_and_the_certificate_says_so",
        ),
    ),
    Mutant(
        "unused-repeats-free",
        "when another campaign is opened, only the repeats that have run are charged",
        (
            Change(
                "campaign/spending.py",
                "    if run_count >= possible_runs:\n",
                "    if True:\n",
            ),
        ),
        (f"{ADAPTIVE}::test_repeats_that_were_left_when_another_campaign_came_are_charged",),
    ),
    Mutant(
        "resumed-repeats-free",
        "a campaign that is resumed after another is charged only for the repeats that have run",
        (
            Change(
                "campaign/spending.py",
                "        possible_runs = campaign.repeats - begun_runs[campaign]\n",
                "        possible_runs = 0 if begun_runs[campaign] else campaign.repeats\n",
            ),
        ),
        (f"{ADAPTIVE}::test_repeats_that_were_left_when_a_campaign_was_resumed_are_charged",),
    ),
    Mutant(
        "lower-end-of-unreleased",
        "a lower bound counts slots and repeats that were charged but never released",
        (
            Change(
                "ledger/verification.py",
                "stopped=slots > run.slots_closed",
                "stopped=False",
            ),
        ),
        (f"{ADAPTIVE}::test_a_lower_end_is_about_what_was_released",),
    ),
    Mutant(
        "filter-chosen-late",
        "the filter of a population can be changed after releases were seen",
        (
            Change(
                "ledger/chain.py",
                "        if run.filter != self.filter:\n",
                "        if False:\n",
            ),
        ),
        (f"{ADAPTIVE}::test_a_filter_cannot_be_chosen_after_a_release",),
    ),
    Mutant(
        "filter-charges-too-little",
        "a Gaussian filter evaluates the privacy curve of a block only at epsilon 0",
        (
            Change(
                "accounting/filters.py",
                "    if not bool((deltas <= gaussian).all()):\n        return False\n",
                "    return bool(deltas[0] <= gaussian[0])\n",
            ),
        ),
        (f"{FILTERS}::test_choosing_by_the_first_release_stays_within_the_filter",),
    ),
    Mutant(
        "slack-for-every-block",
        "every block of a filter uses the whole slack, so together they exceed delta",
        (
            Change(
                "accounting/filters.py",
                "delta / (number * (number + 1.0))",
                "delta / 2.0",
            ),
        ),
        (f"{FILTERS}::test_the_slacks_of_any_number_of_blocks_stay_within_their_share",),
    ),
    Mutant(
        "ledger-overspends",
        "a ledger accepts a slot that exceeds its budget",
        (
            Change(
                "ledger/file.py",
                "        if slot > affordable:\n",
                "        if slot > affordable + 1:\n",
            ),
        ),
        (f"{FACTORIES}::test_a_ledger_refuses_a_slot_that_its_budget_does_not_allow",),
    ),
    Mutant(
        "clip-after-noise",
        "a device clips after it has added the noise",
        (
            Change(
                "randomizers/device.py",
                "        units = self._clipped(update)\n"
                "        self._noise.add_to(units, _RANDOMNESS)\n"
                "        return DeviceReport(units, self.grid)",
                "        noise = self._noise.draw(self.dimension, _RANDOMNESS)\n"
                "        units = self._clipped(self._vector(update) + noise * self.grid.step)\n"
                "        return DeviceReport(units, self.grid)",
            ),
        ),
        (f"{DEVICE}::test_a_report_is_the_clipped_update_plus_the_noise",),
    ),
    Mutant(
        "clip-skipped",
        "a device does not clip an update that is slightly longer than the clip",
        (
            Change(
                "randomizers/grid.py",
                "            if total <= bound:\n                return units\n        for shrink",
                "            return units\n        for shrink",
            ),
        ),
        (f"{GRID}::test_a_bound_is_rounded_down_and_checked_on_whole_numbers",),
    ),
    Mutant(
        "dummy-without-noise",
        "a dummy report is zero without noise",
        (
            Change(
                "randomizers/device.py",
                "DeviceReport(self._noise.draw(self.dimension, _RANDOMNESS), self.grid)",
                "DeviceReport(np.zeros(self.dimension, dtype=np.int32), self.grid)",
            ),
        ),
        (f"{DEVICE}::test_a_dummy_is_the_report_of_zero",),
    ),
    Mutant(
        "progress-file-near-store",
        "the progress file is stored next to the store, so a backup restores both",
        (
            Change(
                "service/store/rollback_detection.py",
                'path = _state_folder() / f"{name}.progress"',
                "path = earlier_path",
            ),
        ),
        (
            "tests/service/test_server.py::test_every_store_has_a_progress_file_of_its_own_outside_of_it",
        ),
    ),
    Mutant(
        "another-ledger-accepted",
        "a device does not compare the ledger with the one it saw before",
        (
            Change(
                "client/service_client.py",
                "        if head != saved.head:",
                "        if head == '':",
            ),
        ),
        (
            "tests/client/test_participation.py"
            "::test_a_service_that_was_rolled_back_and_went_on_gets_no_check_in",
        ),
    ),
    Mutant(
        "report-to-another-ledger",
        "a device checks the ledger when it starts, but not before it reports",
        (
            Change(
                "client/participation.py",
                "        event = yield from self._check_rollback(slot)\n"
                "        if event is not None:\n"
                "            return event\n"
                '        yield self._log("reporting"',
                '        yield self._log("reporting"',
            ),
        ),
        (
            "tests/client/test_participation.py"
            "::test_a_service_that_was_rolled_back_meanwhile_gets_nothing_more",
        ),
    ),
    Mutant(
        "endless-answer",
        "a device reads a response of any size",
        (
            Change(
                "client/bounded_http.py",
                "    if size > max_bytes:",
                "    if size > max_bytes * 10**9:",
            ),
        ),
        (
            "tests/client/test_bounded_http.py"
            "::test_a_response_beyond_its_limits_counts_as_none[endless-blocking]",
        ),
    ),
    Mutant(
        "compressed-answer",
        "a device accepts a compressed response",
        (
            Change(
                "client/bounded_http.py",
                '    if (encoding or "identity").strip().lower() != "identity":',
                '    if (encoding or "identity").strip().lower() == "":',
            ),
        ),
        (
            "tests/client/test_bounded_http.py"
            "::test_a_response_beyond_its_limits_counts_as_none[bomb-in_a_swarm]",
        ),
    ),
    Mutant(
        "code-of-the-service",
        "a device imports any code that a campaign names as its model",
        (
            Change(
                "client/trainer.py",
                "if task.model not in list(BuiltInModel) and task.model != allow_model:",
                "if task.model not in list(BuiltInModel) and ':' not in task.model:",
            ),
        ),
        ("tests/client/test_trainer.py::test_no_code_is_imported_because_a_campaign_names_it",),
    ),
    Mutant(
        "half-the-noise",
        "a device draws noise of half the certified deviation",
        (
            Change(
                "randomizers/grid.py",
                "            return rounded_gaussian(scale)",
                "            return rounded_gaussian(max(scale / 2, Fraction(3)))",
            ),
        ),
        (f"{DEVICE}::test_noise_has_the_standard_deviation_described",),
    ),
    Mutant(
        "float-noise",
        "a device draws floating-point noise from a seeded generator and rounds it",
        (
            Change(
                "randomizers/device.py",
                "        self._noise.add_to(units, _RANDOMNESS)",
                "        spread = self._noise.draw(1000, _RANDOMNESS).std()\n"
                "        generator = np.random.default_rng(1)\n"
                "        units += np.rint("
                "generator.normal(0.0, spread, units.size)).astype(np.int32)",
            ),
        ),
        (f"{DEVICE}::test_a_report_is_the_clipped_update_plus_the_noise",),
    ),
    Mutant(
        "capped-mean-dropped",
        "an upper bound on a sum forgets the mean above the last grid point",
        (
            Change(
                "accounting/exact/fourier_sum.py",
                "capped += count * (excess + slot.excess)",
                "capped += count * slot.excess",
            ),
        ),
        (f"{FOURIER}::test_a_huge_ratio_above_the_grid_is_counted",),
    ),
    Mutant(
        "atoms-rounded-down",
        "atoms between two grid points are moved to the lower one in an upper bound",
        (
            Change(
                "accounting/exact/fourier_sum.py",
                "    share = places - left\n",
                "    share = 0.0 * places\n",
            ),
        ),
        (f"{FOURIER}::test_a_sum_is_never_below_the_exact_one",),
    ),
    Mutant(
        "rounding-of-a-test-ignored",
        "a lower bound takes the rounded ratios of a test for the true ones",
        (
            Change(
                "accounting/exact/fourier_sum.py",
                "gain = counted + rounded_off - errors",
                "gain = counted - errors",
            ),
        ),
        (f"{FOURIER}::test_a_test_between_two_data_is_one_that_exists",),
    ),
    Mutant(
        "wrapped-mass-counted",
        "a lower bound counts the mass that wraps around in a Fourier transform",
        (
            Change(
                "accounting/exact/fourier_sum.py",
                "return sums[self.positions], error, math.exp(min(0.0, float(log_wrapped)))",
                "return sums[self.positions], error, 0.0 * math.exp(min(0.0, float(log_wrapped)))",
            ),
        ),
        (f"{FOURIER}::test_mass_that_wraps_around_is_not_counted",),
    ),
    Mutant(
        "acceptance-without-the-client",
        "the probability that a test accepts leaves out the slot with the client's other data",
        (
            Change(
                "accounting/exact/fourier_sum.py",
                "scale * ((1.0 - self.participation) * a + self.participation * b)",
                "scale * (a + 0.0 * b)",
            ),
        ),
        (f"{FOURIER}::test_a_test_between_two_data_is_one_that_exists",),
    ),
    Mutant(
        "surely-chosen",
        "a lower bound chooses the client among K others with probability 1, and not K/(K+1)",
        (
            Change(
                "accounting/exact/gaussian.py",
                "return DilutedGaussian(ShiftedGaussian(2 * self.shift), self.choice_probability)",
                "return DilutedGaussian(ShiftedGaussian(2 * self.shift), 1.0)",
            ),
        ),
        (f"{FOURIER}::test_a_displacing_client_in_one_slot_has_the_delta_of_a_mixture",),
    ),
    Mutant(
        "adaptive-updates-without-participation",
        "the lower bound of a client among adaptive others leaves participation out of a threshold",
        (
            Change(
                "accounting/exact/adaptive_updates.py",
                "math.exp(epsilon), slots / participation * math.expm1(epsilon)",
                "math.exp(epsilon), slots * math.expm1(epsilon)",
            ),
        ),
        (f"{ADAPTIVE_UPDATES}::test_the_lower_bound_is_the_delta_of_the_best_choices",),
    ),
    Mutant(
        "steep-tangents",
        "tangents of a lower bound are steeper than the function that they bound",
        (
            Change(
                "accounting/exact/adaptive_updates.py",
                "index = np.searchsorted(self._ends(), x)\n        slopes = self.slopes[index]",
                "index = np.searchsorted(self._ends(), x)\n        slopes = np.minimum(1.0,"
                " 1.1 * self.slopes[index])",
            ),
        ),
        (
            f"{ADAPTIVE_UPDATES}::test_the_largest_tangent_is_below_its_function_and_above_the_positive_part",
        ),
    ),
    Mutant(
        "small-population-fills-slots",
        "a lower bound fills all slots with more clients than the declared population",
        (
            Change(
                "accounting/bounds.py",
                "    return has_gaussian_noise and design.displaces_clients and design.most_clients"
                " is not None\n",
                "    return has_gaussian_noise and design.most_clients == 0\n",
            ),
        ),
        (f"{FULL_SLOTS}::test_lower_bounds_do_not_use_more_clients_than_declared",),
    ),
    Mutant(
        "clients-of-one-window",
        "only the clients that wake in one window fill the slots of a client's window",
        (
            Change(
                "accounting/exact/campaign_divergence.py",
                "most_others.append(2 * design.arrivals - 1)",
                "most_others.append(design.arrivals - 1)",
            ),
        ),
        (f"{FULL_SLOTS}::test_clients_of_two_windows_can_fill_the_slots_of_one",),
    ),
    Mutant(
        "more-full-slots-not-charged",
        "the probability of more full slots than are counted is not added to delta",
        (
            Change(
                "accounting/exact/full_slots.py",
                "        return min(1.0, total + before)",
                "        return min(1.0, total + 0.0 * before)",
            ),
        ),
        (f"{FULL_SLOTS}::test_a_probability_of_more_full_slots_is_added_to_delta",),
    ),
    Mutant(
        "weighted-by-examples",
        "the update of a Flower app is multiplied by its number of examples, which is a metric",
        (
            Change(
                "flower/records.py",
                "        return np.where(is_trained, sent - returned, 0.0)\n",
                '        weight = float(reply.content.metric_records["metrics"]["num-examples"])\n'
                "        return weight * np.where(is_trained, sent - returned, 0.0)\n",
            ),
        ),
        (f"{FLOWER_TRAINER}::test_metrics_do_not_leave_the_device",),
    ),
    Mutant(
        "flower-app-called-twice",
        "a Flower app is called twice for one participation",
        (
            Change(
                "flower/trainer.py",
                "            reply = self.app(message, context)\n",
                "            self.app(message, context)\n"
                "            reply = self.app(message, context)\n",
            ),
        ),
        (
            f"{FLOWER_TRAINER}"
            "::test_after_a_crash_at_any_step_the_app_is_not_called_once_its_update_is_stored",
        ),
    ),
    Mutant(
        "context-after-crash",
        "a Flower app that is called again after a crash begins with what it kept before the crash",
        (
            Change(
                "flower/trainer.py",
                "        return self.before if run == self.run else self.after\n",
                "        return self.after\n",
            ),
        ),
        (
            f"{FLOWER_TRAINER}"
            "::test_an_app_that_is_called_again_for_a_run_begins_with_the_same_context",
        ),
    ),
    Mutant(
        "trained-counter",
        "a count of batches in the reply of a Flower app uses up the clipping norm",
        (
            Change(
                "flower/records.py",
                'np.full(one.shape, one.dtype.kind == "f")',
                "np.full(one.shape, True)",
            ),
        ),
        ("tests/flower/test_records.py::test_integers_are_counters_whose_update_is_zero",),
    ),
    Mutant(
        "silent-nan",
        "a Flower app that returns NaN does not fail",
        (
            Change(
                "flower/trainer.py",
                "        if not np.isfinite(update).all():\n",
                "        if False:\n",
            ),
        ),
        (f"{FLOWER_TRAINER}::test_an_app_that_fails_says_why",),
    ),
    Mutant(
        "failed-training-shows",
        "a device whose training fails sends nothing, so that its data decide whether it reports",
        (
            Change(
                "client/participation.py",
                "                return make_dummy(view)\n",
                "                raise\n",
            ),
        ),
        (
            "tests/client/test_participation.py"
            "::test_a_device_whose_training_fails_sends_a_dummy_and_raises_at_its_end",
        ),
    ),
    Mutant(
        "uncharged-draw",
        "a device draws its slot before its odometer is charged",
        (
            Change(
                "client/participation.py",
                "        yield from self._use_odometer(OdometerFile.charge)  # durable",
                "        if self._saved.phase is not None:"
                " yield from self._use_odometer(OdometerFile.charge)  # durable",
            ),
        ),
        (f"{ODOMETER}::test_no_crash_leaves_a_draw_that_is_not_charged",),
    ),
    Mutant(
        "free-second-ledger",
        "a second ledger of the same population costs a device nothing",
        (
            Change(
                "client/odometer.py", "is_same = old.head in same_ledger or ", "is_same = True or "
            ),
        ),
        (f"{ODOMETER}::test_other_ledgers_of_the_same_population_are_added",),
    ),
    Mutant(
        "forged-head",
        "the signature of a ledger's head is not verified",
        (
            Change(
                "ledger/signature.py",
                "        if not _is_signed(key, self.signature, statement):",
                "        if False:",
            ),
        ),
        (f"{SIGNATURE}::test_a_forged_head_is_refused",),
    ),
    Mutant(
        "any-key-signs",
        "a head that another key signed is accepted",
        (
            Change(
                "ledger/signature.py",
                "        if self.key != key:\n",
                "        key = self.key\n        if False:\n",
            ),
        ),
        (f"{SIGNATURE}::test_another_key_is_refused_even_if_its_signature_is_valid",),
    ),
    Mutant(
        "forged-rotation",
        "a key is replaced although the old key did not sign that",
        (Change("ledger/signature.py", " and not rotation.is_valid():", " and False:"),),
        (f"{SIGNATURE}::test_a_replacement_that_the_old_key_did_not_sign_is_refused",),
    ),
    Mutant(
        "unsigned-ledger",
        "verify --key accepts a ledger without looking at its signature",
        (
            Change(
                "cli/commands/check.py",
                "signed.check(trusted_key=key, population=population, place=place)\n",
                "pass\n",
            ),
        ),
        ("tests/cli/test_verify.py::test_a_saved_ledger_is_verified_with_a_pinned_key",),
    ),
    Mutant(
        "unchecked-checkpoint",
        "a signed earlier head is not compared with the line of the ledger",
        (Change("ledger/verification.py", "    if found != expected:\n", "    if False:\n"),),
        ("tests/cli/test_verify.py::test_a_saved_ledger_is_verified_with_a_pinned_key",),
    ),
    Mutant(
        "reads-of-two-moments",
        "a worker may combine a model with the ledger after the next slot",
        (
            Change(
                "service/store/database.py",
                'isolation_level="REPEATABLE READ"',
                'isolation_level="READ COMMITTED"',
            ),
        ),
        (
            "tests/service/test_workers.py::test_a_worker_that_reads_a_run_while_a_slot_closes"
            "_continues_from_its_model",
        ),
    ),
    Mutant(
        "noise-reused",
        "a coordinator draws noise once, and adds the same noise in every slot",
        (
            Change(
                "service/runs/slot_transitions.py",
                "    noise = Report.from_noise(sampler.noise()) if slot.needs_noise else None",
                "    kept = globals().setdefault('_KEPT', [])\n"
                "    if slot.needs_noise and not kept:\n"
                "        kept.append(Report.from_noise(sampler.noise()))\n"
                "    noise = kept[0] if slot.needs_noise else None",
            ),
        ),
        (
            f"{PAST_SUMS}"
            "::test_invariant_16_totals_contain_earlier_sums_and_noise_of_their_own[sqlite]",
        ),
    ),
    Mutant(
        "exact-sum-in-ledger",
        "the ledger has the exact sum of a slot, if noise is correlated across slots",
        (
            Change(
                "protocol/server.py",
                "RecordClosing(slot.number, slot.total, slot.contributors, learner.model)",
                "RecordClosing(\n        slot.number, exact_sums[0] if exact_sums else slot.total,"
                " slot.contributors, learner.model\n    )",
            ),
        ),
        (HISTORIES,),
    ),
    Mutant(
        "noise-on-the-grid-of-reports",
        "correlated noise is drawn on the grid of reports, and used as if on the release grid",
        (
            Change(
                "protocol/rules.py",
                "noise_grid = None if finer is None else Grid(finer)",
                "noise_grid = None if finer is None else Grid(step)",
            ),
        ),
        (f"{CORRELATED}::test_the_noise_of_a_campaign_has_its_deviation_on_the_release_grid",),
    ),
    Mutant(
        "sums-kept-after-the-end",
        "a server keeps exact sums after its last slot",
        (
            Change(
                "protocol/rules.py",
                "if self.strategy is None or slot > self.affordable:",
                "if self.strategy is None:",
            ),
        ),
        (HISTORIES,),
    ),
    Mutant(
        "sums-forgotten",
        "a server forgets the exact sums when a slot is over",
        (
            Change(
                "protocol/server.py",
                "after = replace(server, phase=phase, closed=closed, slot=None)",
                "after = replace(server, phase=phase, closed=closed, slot=None, exact_sums=())",
            ),
            Change(
                "protocol/server.py",
                "if len(server.exact_sums) != needed_sums:",
                "if len(server.exact_sums) > needed_sums:",
            ),
        ),
        (HISTORIES,),
    ),
    Mutant(
        "sums-not-stored",
        "a store forgets the exact sums of earlier slots, as a crash would",
        (
            Change(
                "service/store/past_sums.py",
                "    _save(connection, exact_sums, run, sums, NumberType.INT64, closed)",
                "    _save(connection, exact_sums, run, (), NumberType.INT64, closed)",
            ),
            Change(
                "protocol/server.py",
                "if len(server.exact_sums) != needed_sums:",
                "if len(server.exact_sums) > needed_sums:",
            ),
        ),
        (
            f"{PAST_SUMS}"
            "::test_invariant_16_totals_contain_earlier_sums_and_noise_of_their_own[sqlite]",
        ),
    ),
    Mutant(
        "bands-off-by-one",
        "a total has the coefficients of the slots one slot later",
        (
            Change(
                "protocol/model_update.py",
                "zip(strategy.numerators, sums, strict=False)",
                "zip(strategy.numerators[1:], sums, strict=False)",
            ),
        ),
        (
            f"{CORRELATED}"
            "::test_the_totals_are_those_of_the_sums_plus_the_noise_divided_by_the_matrix",
        ),
    ),
    Mutant(
        "a-band-too-few",
        "a noisy sum is computed without the oldest noisy sum that it depends on",
        (
            Change(
                "protocol/model_update.py",
                "(total, *learner.noisy_sums)[: self.strategy.bands - 1]",
                "(total, *learner.noisy_sums)[: self.strategy.bands - 2]",
            ),
        ),
        (HISTORIES,),
    ),
    Mutant(
        "lost-sums-tolerated",
        "a server closes a slot although it has lost the exact sums of earlier slots",
        (
            Change(
                "protocol/server.py",
                "if len(server.exact_sums) != needed_sums:",
                "if len(server.exact_sums) > needed_sums:",
            ),
        ),
        (f"{CORRELATED}::test_a_server_that_forgot_a_sum_does_not_close_a_slot",),
    ),
    Mutant(
        "sums-in-the-backup",
        "a backup has the exact sums of the store",
        (Change("service/backup.py", "    past_sums.erase_exact_sums(connection)", "    #"),),
        (
            f"{PAST_SUMS}"
            "::test_invariant_16_a_backup_has_no_exact_sum_and_is_priced_as_the_whole_run",
        ),
    ),
    Mutant(
        "secrets-beside-the-backup",
        "a backup copies the whole store to a named file before it deletes the secrets",
        (
            Change(
                "service/store/database.py",
                'unnamed = sqlite3.connect("", isolation_level=None)',
                'unnamed = sqlite3.connect(f"{copy}.whole", isolation_level=None)',
            ),
        ),
        ("tests/cli/test_backup.py::test_a_backup_that_is_killed_leaves_no_secret_in_a_file",),
    ),
    Mutant(
        "sums-in-the-log",
        "a coordinator logs the exact sum of a slot",
        (
            Change(
                "service/runs/slot_transitions.py",
                "        run, closed = spec.id, server.closed\n",
                "        run, closed = spec.id, server.closed\n"
                "        __import__('logging').getLogger('checkins').info(server.exact_sums)\n",
            ),
        ),
        (
            f"{PAST_SUMS}"
            "::test_invariant_16_nothing_about_exact_sums_is_logged_or_published[sqlite]",
        ),
    ),
    Mutant(
        "stopped-run-keeps-sums",
        "a run that is stopped leaves its exact sums in the store",
        (
            Change(
                "service/runs/slot_transitions.py",
                "        past_sums.erase_exact_sums(connection, spec.id)\n",
                "",
            ),
        ),
        (f"{PAST_SUMS}::test_invariant_16_a_run_that_is_stopped_leaves_no_exact_sum[sqlite]",),
    ),
    Mutant(
        "lost-sums-unnoticed",
        "a coordinator starts on a store that has lost the exact sums of an open run",
        (
            Change(
                "service/store/rollback_detection.py",
                "for run in database.read(run_state.runs_without_exact_sums)",
                "for run in ()",
            ),
        ),
        (
            f"{PAST_SUMS}"
            "::test_invariant_16_a_store_that_lost_its_exact_sums_is_not_continued[sqlite]",
        ),
    ),
    Mutant(
        "revoked-key-enrols",
        "the transaction that enrols a client does not look at revoked keys",
        (
            Change(
                "service/runs/intake.py",
                "                answers.append(invalid_credential())\n                continue\n",
                "                pass\n",
            ),
        ),
        (f"{OPERATORS}::test_a_key_that_was_added_enrols_and_one_that_was_revoked_does_not",),
    ),
    Mutant(
        "revocation-unspends",
        "a key that is added again may enrol once more in the same run",
        (
            Change(
                "service/store/operators.py",
                "        connection.execute(insert(allow_list), rows)\n",
                "        connection.execute(insert(allow_list), rows)\n"
                "        connection.execute(\n"
                "            delete(schema.enrolments).where("
                "schema.enrolments.c.credential.in_(part))\n"
                "        )\n",
            ),
        ),
        (f"{OPERATORS}::test_a_key_that_is_added_again_has_not_got_its_participation_back",),
    ),
    Mutant(
        "keys-beyond-population",
        "operators may add more keys than the declared population",
        (
            Change(
                "service/runs/operator_actions.py",
                "            require_populations(connection, size)\n",
                "            pass\n",
            ),
        ),
        (f"{OPERATORS}::test_no_more_keys_are_added_than_the_population_of_an_open_run",),
    ),
    Mutant(
        "revoked-token-works",
        "a token is valid for as long as the process has once seen it",
        (
            Change(
                "service/routes/requests.py",
                "        found = await runner.read_store(operators.operator_with, token)\n",
                "        known = runner.__dict__.setdefault('known_tokens', {})\n"
                "        found = known.get(token) or await runner.read_store(\n"
                "            operators.operator_with, token\n"
                "        )\n"
                "        known[token] = found\n",
            ),
        ),
        (f"{OPERATORS}::test_several_named_tokens_are_valid_at_a_time_and_each_can_be_revoked",),
    ),
    Mutant(
        "metrics-token-operates",
        "a token for metrics may do everything",
        (Change("service/routes/requests.py", " and not only_metrics:", " and False:"),),
        (f"{OPERATORS}::test_a_token_for_metrics_reads_only_the_metrics",),
    ),
    Mutant(
        "rewritten-log",
        "a changed line of the log of operators' actions is accepted",
        (
            Change(
                "ledger/operator_log.py", "        if line != expected:\n", "        if False:\n"
            ),
        ),
        (f"{OPERATORS}::test_a_log_that_was_changed_is_refused",),
    ),
    Mutant(
        "last-coefficient-left-out",
        "the accountant leaves out the last coefficient of correlated noise",
        (
            Change(
                "accounting/exact/campaign_divergence.py",
                "min(design.slots, randomizer.strategy.bands),",
                "max(1, min(design.slots, randomizer.strategy.bands) - 1),",
            ),
        ),
        (f"{BANDED}::test_all_coefficients_count",),
    ),
    Mutant(
        "window-cuts-updates-off",
        "with a declared number of clients, updates count as invisible after a window",
        (
            Change(
                "accounting/exact/campaign_divergence.py",
                "    if design.has_correlated_noise:\n"
                "        return replace(design, capacity=None)\n",
                "",
            ),
        ),
        (f"{BANDED}::test_updates_are_visible_after_a_window_even_if_no_slot_is_full",),
    ),
    Mutant(
        "distance-of-blocks-off-by-one",
        "blocks of slots with correlated noise count as if they were further apart",
        (
            Change(
                "accounting/exact/slot_blocks.py",
                "range(0, rows, period)",
                "range(0, rows, period + 1)",
            ),
            Change(
                "accounting/exact/slot_blocks.py",
                "places = np.arange(columns.shape[1]) % grouping.period",
                "places = np.arange(columns.shape[1])",
            ),
            Change(
                "accounting/exact/slot_blocks.py",
                "np.bincount(places, of_block, grouping.period)[places]",
                "np.bincount(places, of_block)[places]",
            ),
        ),
        (
            f"{BANDED}::test_the_variance_of_spaced_slots_covers_every_slot_of_every_class",
            f"{BANDED}::test_the_spread_of_blocks_is_that_of_columns_on_a_circle",
        ),
    ),
    Mutant(
        "independent-blocks-that-overlap",
        "blocks whose noise overlaps count as independent, without a larger variance",
        (
            Change(
                "accounting/exact/slot_blocks.py",
                "products = (columns * weights) @ columns.T",
                "products = columns @ columns.T",
            ),
        ),
        (f"{BANDED}::test_the_spread_of_blocks_is_that_of_columns_on_a_circle",),
    ),
    Mutant(
        "column-norm-above-one",
        "coefficients of correlated noise may have a norm above 1",
        (Change("accounting/noise_strategy.py", "squares > 4**self.bits", "squares < 0"),),
        (f"{BANDED}::test_a_norm_of_exactly_one_is_allowed",),
    ),
    Mutant(
        "increasing-coefficients",
        "coefficients of correlated noise may increase",
        (
            Change(
                "accounting/noise_strategy.py",
                "any(later > earlier for earlier, later in pairwise(self.numerators))",
                "False",
            ),
        ),
        (f"{BANDED}::test_coefficients_that_no_theorem_covers_are_refused",),
    ),
    Mutant(
        "blocks-with-a-capacity",
        "the bound by blocks is used with a capacity, for which it is not proved",
        (
            Change(
                "accounting/exact/correlated_noise.py",
                "only_single = self.capacity is not None",
                "only_single = False",
            ),
        ),
        (f"{BANDED}::test_a_capacity_allows_spacing_only_and_costs_more",),
    ),
    Mutant(
        "correlated-noise-priced-as-independent",
        "a campaign with correlated noise has the epsilon of independent noise",
        (
            Change(
                "accounting/exact/campaign_divergence.py",
                "isinstance(randomizer, GaussianNoise) and randomizer.strategy is not None:",
                "isinstance(randomizer, GaussianNoise) and randomizer.noise_multiplier < 0.0:",
            ),
        ),
        (f"{BANDED}::test_the_table_is_reproduced",),
    ),
    Mutant(
        "device-needs-scipy",
        "a device imports the accountant",
        (
            Change(
                "client/view.py",
                "from checkins.protocol import wire\n",
                "from checkins.accounting import certify\nfrom checkins.protocol import wire\n",
            ),
        ),
        (f"{DEVICE_PROGRAM}::test_a_device_takes_part_where_other_packages_cannot_be_imported",),
    ),
    Mutant(
        "missing-extra-unexplained",
        "a command whose extra is missing reports an internal error",
        (
            Change(
                "cli/main.py",
                'raise missing_package(f"checkins {arguments[0]}", error) or error from None',
                "raise",
            ),
        ),
        (f"{EXTRAS}::test_a_command_without_its_extra_says_which_to_install",),
    ),
    Mutant(
        "simulated-noise-of-the-run-before",
        "in a simulation, the noise of a run is correlated with that of the run before",
        (
            Change(
                "simulation/engine/training.py",
                "if spec.first == self.mechanism.warm_up:",
                "if spec.first == self.mechanism.warm_up and spec.run == 1:",
            ),
        ),
        (f"{LOOP}::test_the_compiled_loop_and_the_machines_agree_on_the_same_draws",),
    ),
    Mutant(
        "bands-for-many-runs",
        "the planner uses correlated noise for any number of runs",
        (
            Change(
                "planning/search_space.py",
                "candidate.repeats <= MAX_RUNS_WITH_BANDS",
                "candidate.repeats > 0",
            ),
        ),
        (f"{SPACE}::test_correlated_noise_is_searched_for_one_and_two_runs_only",),
    ),
    Mutant(
        "average-of-the-warm-up",
        "the average of the models counts slots of the warm-up, which release nothing",
        (
            Change(
                "simulation/engine/training.py",
                "slots, warm_up = self.mechanism.design.slots, self.mechanism.warm_up",
                "slots, warm_up = self.mechanism.design.slots, 0",
            ),
        ),
        (
            "tests/simulation/test_average.py"
            "::test_it_is_the_average_of_the_models_of_all_slots_that_release_one",
        ),
    ),
    Mutant(
        "hash-unread",
        "the reader of certificates accepts a ledger whose hashes do not fit its lines",
        (
            Change(
                "service/page/ledger-check.js",
                "value.hash === sha256OfText(hashed)",
                "HASH.test(value.hash)",
            ),
        ),
        (f"{READER}::test_one_hundred_tampered_ledgers_are_refused_at_the_line_that_python_names",),
    ),
    Mutant(
        "seal-unread",
        "the reader of certificates accepts another campaign under a seal",
        (Change("service/page/ledger-check.js", "entry.seal === seal,", "seal !== null,"),),
        (f"{READER}::test_a_false_ledger_with_consistent_hashes_is_refused",),
    ),
    Mutant(
        "flower-key-used-late",
        "a key is marked as used only at the end of its slot, so that a crash allows it twice",
        (
            Change(
                "flower/server_run.py",
                "            self._save_used_keys("
                "self._hash(key) for key in keys_by_receipt.values())\n",
                "            self.used_keys.update(map(self._hash, keys_by_receipt.values()))\n",
            ),
        ),
        (
            f"{FLOWER_STRATEGY}"
            "::test_a_process_that_is_killed_costs_its_slot_and_nobody_takes_part_twice",
        ),
    ),
    Mutant(
        "flower-keys-lost",
        "a run in Flower whose used keys are lost continues, so that everybody takes part again",
        (
            Change(
                "flower/server_run.py",
                '        raise InvalidValue("state", str(path), expected) from error\n',
                "        return set()\n",
            ),
        ),
        (f"{FLOWER_STRATEGY}::test_a_run_is_not_continued_without_its_used_keys",),
    ),
    Mutant(
        "flower-node-follows-the-clock",
        "a node whose clock is set back stays online for hours after its slot",
        (Change("flower/gate.py", " and self.monotonic() < last", ""),),
        (f"{FLOWER_GATE}::test_a_node_is_not_online_longer_if_the_clock_is_set_back",),
    ),
    Mutant(
        "flower-online-before",
        "a node that was online before its slot has checked in",
        (
            Change(
                "flower/nodes.py",
                "            if (node.node_id, node.last_activated_at) not in self.online_before\n",
                "",
            ),
        ),
        (f"{FLOWER_STRATEGY}::test_a_node_that_was_online_before_the_first_slot_is_not_asked",),
    ),
    Mutant(
        "flower-gate-draws-again",
        "the gate of a node draws another slot after a crash",
        (
            Change(
                "flower/gate.py",
                "        if self._saved.phase is not None:\n            machine = replace(",
                "        if False:\n            machine = replace(",
            ),
        ),
        (f"{FLOWER_GATE}::test_the_slot_is_drawn_once_and_saved_before_the_node_starts",),
    ),
    Mutant(
        "flower-gate-after-choice",
        "the gate of a node starts it in its slot after the choice",
        (
            Change(
                "flower/gate.py",
                "slot <= schedule.slots and self.clock.now() < schedule.chooses(slot)",
                "slot <= schedule.slots and self.clock.now() < schedule.ends(slot)",
            ),
            Change(
                "flower/gate.py",
                "            if self.clock.now() < schedule.chooses(slot):\n"
                "                return events.SlotBegan(slot)\n",
                "            return events.SlotBegan(slot)\n",
            ),
            Change(
                "flower/gate.py",
                "        while self.clock.now() < schedule.chooses(slot):\n",
                "        while self.clock.now() < schedule.ends(slot):\n",
            ),
        ),
        (f"{FLOWER_GATE}::test_a_gate_that_comes_back_after_the_choice_keeps_its_node_dark",),
    ),
    Mutant(
        "flower-metrics-in-report",
        "the mod of a Flower app leaves the metrics in the reply",
        (
            Change(
                "flower/report_mod.py",
                "update = update_of_reply(call_next(message, context), model, shapes)\n",
                "answer = call_next(message, context)\n"
                "            update = update_of_reply(answer, model, shapes)\n",
            ),
            Change(
                "flower/report_mod.py",
                "        return Message(content, reply_to=message)\n",
                '        content["metrics"] = answer.content["metrics"]\n'
                "        return Message(content, reply_to=message)\n",
            ),
        ),
        (f"{FLOWER_STRATEGY}::test_with_the_mod_a_reply_has_the_clipped_report_and_nothing_else",),
    ),
)
