"""Whatever is typed, the answer is JSON or one line, never a traceback."""

from __future__ import annotations

import contextlib
import io
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from checkins.cli.main import run

NUMBERS = ("0", "1", "2", "10", "100", "1e3", "0.5", "1e-6", "1e-300", "1e300", "-1", "nan", "inf")
WORDS = {
    "--protocol": ("fixed", "averaged", "sliding", "x"),
    "--slots": NUMBERS,
    "--capacity": (*NUMBERS, "all"),
    "--window": NUMBERS,
    "--population": (*NUMBERS, "1..10", "10..1", "..", "1..2..3"),
    "--least-reports": NUMBERS,
    "--arrivals": NUMBERS,
    "--wake-times": ("independent", "any", "x"),
    "--participation": NUMBERS,
    "--local-epsilon": NUMBERS,
    "--local-delta": NUMBERS,
    "--noise-multiplier": NUMBERS,
    "--noise-at": ("client", "server", "x"),
    "--campaigns": ("1", "2", "x"),
    "--delta": NUMBERS,
    "--adjacency": ("replace-one", "add-remove", "x"),
}
CALIBRATE = {
    "--epsilon": NUMBERS,
    "--solve": ("noise-multiplier", "local-epsilon", "participation", "slots", "capacity", "x"),
}
LIKELY = {
    "--protocol": "fixed",
    "--slots": "100",
    "--participation": "1",
    "--local-epsilon": "1",
    "--delta": "1e-6",
    "--adjacency": "add-remove",
}


def checked(arguments: list[str]) -> None:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(arguments)
    said = err.getvalue()
    assert "Traceback" not in said
    assert "internal error" not in said
    if code == 0:
        assert said == ""
        found = json.loads(out.getvalue(), parse_constant=lambda word: 1 / 0)
        assert found["epsilon"] is None or found["epsilon"] >= 0.0
    else:
        assert code in (1, 2)
        assert out.getvalue() == ""
        assert said.count("\n") == 1


@st.composite
def nearly_right(draw: st.DrawFn) -> list[str]:
    """A sensible question with a few options changed, added or left out."""
    words = dict(LIKELY)
    for option in draw(st.lists(st.sampled_from(sorted(WORDS)), max_size=4)):
        words[option] = draw(st.sampled_from(WORDS[option]))
    for option in draw(st.lists(st.sampled_from(sorted(words)), max_size=1)):
        del words[option]
    return [word for pair in words.items() for word in pair]


@given(arguments=nearly_right())
def test_account_answers_or_refuses(arguments: list[str]) -> None:
    checked(["account", *arguments, "--json"])


@settings(max_examples=30)
@given(
    arguments=nearly_right(),
    epsilon=st.sampled_from(CALIBRATE["--epsilon"]),
    solve=st.sampled_from(CALIBRATE["--solve"]),
)
def test_calibrate_answers_or_refuses(arguments: list[str], epsilon: str, solve: str) -> None:
    if f"--{solve}" in arguments:
        at = arguments.index(f"--{solve}")
        arguments = arguments[:at] + arguments[at + 2 :]
    checked(["calibrate", *arguments, "--epsilon", epsilon, "--solve", solve, "--json"])


PIECES = st.one_of(
    st.sampled_from(["account", "calibrate", "paper", "table1", "--json", *WORDS, *CALIBRATE]),
    st.sampled_from(NUMBERS),
    st.text(max_size=8),
)


@given(arguments=st.lists(PIECES, max_size=8))
def test_noise_is_refused(arguments: list[str]) -> None:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(arguments)
    assert code in (0, 1, 2)
    assert "Traceback" not in err.getvalue()
    assert "internal error" not in err.getvalue()
