"""A wrong argument is reported in one line with the option, its value and what is allowed."""

from __future__ import annotations

import re

import pytest

from tests.support.program import refused

COUNT = "must be an integer from 1 to 1,000,000,000,000"
RANGE = "must be an integer or LO..HI, from 1 to 1,000,000,000,000"
UNIT = "must lie strictly between 0 and 1"

PURE = {
    "--protocol": "fixed",
    "--slots": "100",
    "--participation": "1",
    "--local-epsilon": "1",
    "--delta": "1e-6",
    "--adjacency": "add-remove",
}
NOISY = {
    "--protocol": "fixed",
    "--slots": "100",
    "--participation": "1",
    "--noise-multiplier": "1",
    "--noise-at": "server",
    "--delta": "1e-6",
    "--adjacency": "add-remove",
}
AVERAGED = PURE | {"--protocol": "averaged", "--adjacency": "replace-one", "--population": "1000"}
AVERAGED_TEXTS = {"protocol": "averaged", "adjacency": "replace-one", "population": "1000"}
SLIDING = PURE | {"--protocol": "sliding", "--window": "50"}


def line(options: dict[str, str], *, command: str = "account", **changes: str | None) -> list[str]:
    changed = options | {"--" + name.replace("_", "-"): text for name, text in changes.items()}
    return [command, *(word for pair in changed.items() if pair[1] is not None for word in pair)]


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e400", "2.5", "abc", "", "1e13", "٣x"])
@pytest.mark.parametrize("option", ["slots", "capacity", "campaigns"])
def test_a_count_is_an_integer_from_1(checkins, option: str, text: str) -> None:
    shown, most = text or "''", {"campaigns": "1,000,000\n"}.get(option, "1,000,000,000,000\n")
    expected = f"--{option} {shown}: must be an integer from 1 to {most}"
    refused(checkins(*line(PURE, **{option: text})), expected)


@pytest.mark.parametrize("text", ["0", "1", "-1e-6", "2", "nan", "inf", "1e400", "small", ""])
def test_delta_lies_between_0_and_1(checkins, text: str) -> None:
    refused(checkins(*line(PURE, delta=text)), f"--delta {text or chr(39) * 2}: {UNIT}")


@pytest.mark.parametrize("text", ["-0.1", "1.0001", "nan", "inf", "-inf", "1e400", "half"])
def test_participation_is_a_probability(checkins, text: str) -> None:
    refused(
        checkins(*line(PURE, participation=text)), f"--participation {text}: must lie in [0, 1]"
    )


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e400", "one"])
def test_noise_is_a_finite_number_above_0(checkins, text: str) -> None:
    expected = f"{text}: must be a finite number above 0"
    refused(checkins(*line(PURE, local_epsilon=text)), f"--local-epsilon {expected}")
    refused(checkins(*line(NOISY, noise_multiplier=text)), f"--noise-multiplier {expected}")


@pytest.mark.parametrize("option", ["delta", "participation", "local_epsilon"])
def test_a_number_that_would_become_0_is_refused_not_rounded(checkins, option: str) -> None:
    outcome = checkins(*line(PURE, **{option: "1e-400"}))
    refused(outcome, f"--{option.replace('_', '-')} 1e-400: ")


@pytest.mark.parametrize(
    ("options", "changes", "starts"),
    [
        (PURE, {"local_epsilon": "1e9"}, "--local-epsilon 1e9: must be at most "),
        (NOISY, {"noise_multiplier": "1e-30"}, "--noise-multiplier 1e-30: "),
        (NOISY, {"noise_multiplier": "1e300"}, "--noise-multiplier 1e300: "),
        (PURE, {"local_delta": "1"}, "--local-delta 1: "),
        (PURE, {"local_delta": "-1"}, "--local-delta -1: "),
        (PURE, {"protocol": "fixd"}, "--protocol fixd: must be fixed, averaged or sliding"),
        (PURE, {"adjacency": "both"}, "--adjacency both: must be "),
        (NOISY, {"noise_at": "home"}, "--noise-at home: must be client or server"),
        (
            PURE,
            {"population": "10..5"},
            "--population 10..5: the smallest number must not exceed the largest",
        ),
        (PURE, {"population": "0..5"}, f"--population 0..5: {RANGE}"),
        (PURE, {"population": "5.."}, f"--population 5..: {RANGE}"),
        (PURE, {"population": "nan"}, f"--population nan: {RANGE}"),
        (SLIDING, {"window": "101"}, "--window 101: must be at most slots = 100"),
        (SLIDING, {"window": "0"}, f"--window 0: {COUNT}"),
        (SLIDING, {"window": None}, "--window is missing; "),
        (PURE, {"window": "5"}, "--window 5: is for the sliding protocol only"),
        (PURE, {"arrivals": "5"}, "--arrivals 5: is for the sliding protocol only"),
        (SLIDING, {"arrivals": "0"}, f"--arrivals 0: {COUNT}"),
        (SLIDING, {"wake_times": "x"}, "--wake-times x: must be independent or any"),
        (AVERAGED, {"adjacency": "add-remove"}, "--adjacency add-remove: "),
        (AVERAGED, {"participation": "0.5"}, "--participation 0.5: "),
        (AVERAGED, {"population": None}, "--population is missing; "),
        (AVERAGED, {"capacity": "5"}, "--capacity 5: "),
        (AVERAGED, {"least_reports": "5"}, "--least-reports 5: is for averaged Gaussian"),
        (PURE, {"least_reports": "0"}, f"--least-reports 0: {COUNT}"),
    ],
)
def test_a_value_out_of_range_is_refused(checkins, options, changes, starts) -> None:
    refused(checkins(*line(options, **changes)), starts)


@pytest.mark.parametrize(
    ("options", "changes", "starts"),
    [
        (PURE, {"noise_multiplier": "1"}, "--local-epsilon 1: cannot be combined with"),
        (PURE, {"noise_at": "server"}, "--noise-at server: needs --noise-multiplier"),
        (NOISY, {"local_delta": "1e-9"}, "--local-delta 1e-9: needs --local-epsilon"),
        (NOISY, {"noise_at": None}, "--noise-at is missing; it must be client or server"),
        (NOISY, {"noise_at": "client"}, "--capacity is missing; "),
        (NOISY, {"noise_at": "client", "capacity": "all"}, "--capacity all: needs --noise-at"),
        (PURE, {"capacity": "all"}, "--capacity all: needs --noise-at"),
        (PURE, {"local_epsilon": None}, "--local-epsilon or --noise-multiplier is missing"),
    ],
)
def test_contradictions_are_refused(checkins, options, changes, starts) -> None:
    refused(checkins(*line(options, **changes)), starts)


@pytest.mark.parametrize("option", ["protocol", "slots", "participation", "delta", "adjacency"])
def test_nothing_that_privacy_depends_on_has_a_default(checkins, option: str) -> None:
    refused(checkins(*line(PURE, **{option: None})), f"--{option} is missing; it must ")


def test_an_option_given_twice_is_refused(checkins) -> None:
    outcome = checkins(*line(PURE), "--slots", "1000")
    refused(outcome, "--slots: was given more than once: 100 and 1000")


@pytest.mark.parametrize(
    ("words", "starts"),
    [
        ("acount", "No such command 'acount'"),
        ("account --slot 5 --foo", "No such option"),
        ("account --slots", "Option '--slots' requires an argument"),
        ("calibrate file.toml", "Got unexpected extra argument"),
        ("paper table2", "No such command 'table2'"),
        ("account --json=yes", "Option '--json' does not take a value"),
    ],
)
def test_an_error_of_the_parser_is_one_line(checkins, words: str, starts: str) -> None:
    refused(checkins(words), starts)


@pytest.mark.parametrize("text", ["1\n2", "x" * 5000, "\x1b[31m", "9" * 5000, "\udcff"])
def test_a_strange_value_stays_on_one_short_line(checkins, text: str) -> None:
    outcome = checkins(*line(PURE, slots=text))
    refused(outcome, "--slots ")
    assert len(outcome.err) < 200
    assert outcome.err.rstrip("\n").isprintable()


@pytest.mark.parametrize(
    ("changes", "starts"),
    [
        ({"solve": None}, "--solve is missing; it must be one of noise-multiplier, "),
        ({"solve": "delta"}, "--solve delta: must be "),
        ({"epsilon": None}, "--epsilon is missing; it must be a finite number above 0"),
        ({"epsilon": "0"}, "--epsilon 0: must be a finite number above 0"),
        ({"epsilon": "nan"}, "--epsilon nan: must be a finite number above 0"),
        ({"slots": "100"}, "--slots 100: must not be given, because --solve slots computes it"),
        ({"delta": "7"}, f"--delta 7: {UNIT}"),
        ({"protocol": "sliding", "window": "5"}, "--solve slots: "),
        (
            {**AVERAGED_TEXTS, "slots": "10", "solve": "capacity"},
            "--solve capacity: averaged updates use every report",
        ),
        ({"solve": "noise-multiplier", "slots": "10"}, "--local-epsilon 1: cannot be combined "),
    ],
)
def test_calibrate_refuses_what_it_cannot_solve(checkins, changes, starts) -> None:
    options = {**PURE, "--epsilon": "0.1", "--solve": "slots"}
    del options["--slots"]
    refused(checkins(*line(options, command="calibrate", **changes)), starts)


@pytest.mark.parametrize(
    ("words", "starts"),
    [
        ("paper table1 --clients 0", f"--clients 0: {COUNT}"),
        ("paper table1 --clients 10", "--slots 1000: must be at most clients"),
        ("paper table1 --delta nan", f"--delta nan: {UNIT}"),
        ("paper table1 --local-epsilon -1", "--local-epsilon -1: must be a finite number above 0"),
        ("paper figure2 --delta 2", f"--delta 2: {UNIT}"),
        ("paper theorems --clients 1e11", "--clients 1e11: must be an integer from 1 to 10,"),
        ("paper theorems --participation 2", "--participation 2: must lie in [0, 1]"),
    ],
)
def test_paper_refuses_what_no_theorem_covers(checkins, words: str, starts: str) -> None:
    refused(checkins(words), starts)


def test_a_folder_that_cannot_be_written_is_named(checkins, tmp_path) -> None:
    taken = tmp_path / "file"
    taken.write_text("")
    refused(checkins("paper", "table1", "--out", str(taken)), f"--out {str(taken)[:50]}")


def test_an_error_is_about_one_option_only(checkins) -> None:
    outcome = checkins(*line(PURE, slots="0", delta="2"))
    assert len(re.findall("--", outcome.err)) == 1
