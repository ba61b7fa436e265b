"""A campaign file is read whole or refused with its line and key."""

from __future__ import annotations

import re
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from checkins.accounting import (
    Adjacency,
    GaussianNoise,
    LaplaceReports,
    LocalRandomizer,
    NoiseAt,
    Population,
    RandomizedResponseReports,
)
from checkins.campaign import (
    Budget,
    DataFile,
    InvalidCampaign,
    Optimizer,
    Schedule,
    StepSizes,
    Task,
    parse_campaign,
    read_campaign,
    toml,
)
from checkins.campaign.file import Template, template_text
from checkins.campaign.toml import line_numbers

PATIENTS = Path(__file__).resolve().parents[2] / "examples" / "patients.toml"
TEXT = PATIENTS.read_text(encoding="utf-8")


def changed(old: str, new: str) -> str:
    """The example with the one line that starts with ``old`` replaced."""
    lines = TEXT.splitlines()
    (at,) = (i for i, line in enumerate(lines) if line.startswith(old))
    lines[at] = new
    return "\n".join(lines)


def refusal(text: str) -> str:
    with pytest.raises(InvalidCampaign) as caught:
        parse_campaign(text, path="c.toml")
    return str(caught.value)


def test_the_example_says_what_it_says() -> None:
    campaign = read_campaign(PATIENTS).campaign
    assert (campaign.name, campaign.population_id, campaign.repeats) == ("patients", "clinic", 1)
    assert campaign.budget == Budget(0.5, 1e-6, Adjacency.ADD_REMOVE)
    assert campaign.design.slots == 200
    assert campaign.design.capacity == 176
    assert campaign.design.population == Population(15_000, 20_000)
    assert campaign.design.randomizer == GaussianNoise(0.1, NoiseAt.CLIENT)
    assert campaign.task == Task("patients", "logistic", Optimizer(rate=5.0, divide_by=176))
    assert campaign.schedule == Schedule(datetime(2030, 1, 1, tzinfo=UTC), 1.0, 0.3)
    assert campaign.missing == ()


def test_all_check_ins_are_used_with_noise_at_the_server() -> None:
    text = changed("capacity", 'capacity = "all"')
    text = text.replace('noise_at = "client"', 'noise_at = "server"')
    text = text.replace("noise_multiplier = 0.1", "noise_multiplier = 1.0")
    assert parse_campaign(text).campaign.design.capacity is None


NAMED = {
    "laplace": LaplaceReports(2.0),
    "privunit": LocalRandomizer(2.0),
    "randomized-response": RandomizedResponseReports(2.0, categories=3),
}


@pytest.mark.parametrize("kind", NAMED)
def test_a_pure_randomizer_has_its_name_and_its_local_epsilon(kind: str) -> None:
    head = TEXT[: TEXT.index("[randomizer]")]
    text = f'{head}[randomizer]\nkind = "{kind}"\nlocal_epsilon = 2\n'
    if kind == "randomized-response":
        assert refusal(text).endswith("[randomizer] categories: is missing; it has no default")
        text += "categories = 3\n"
    campaign = parse_campaign(text).campaign
    assert campaign.design.randomizer == NAMED[kind]
    assert "[task]" in campaign.missing


def test_one_number_is_a_population_too() -> None:
    campaign = parse_campaign(changed("population =", "population = 500")).campaign
    assert campaign.design.population == Population(500, 500)


def test_what_does_not_change_epsilon_may_be_left_out() -> None:
    text = TEXT[: TEXT.index("[task]")]
    for key in ("name", "population_id", "population =", "repeats"):
        text = "\n".join(line for line in text.splitlines() if not line.startswith(key))
    campaign = parse_campaign(text, path="runs/spring.toml").campaign
    assert (campaign.name, campaign.population_id, campaign.repeats) == ("spring", None, 1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema", "schema = 2", "c.toml:7: schema = 2: must be 1"),
        ("schema", "", "c.toml: schema: is missing; it has no default"),
        ("slots", "slots = 0", "c.toml:19: [protocol] slots = 0: must be an integer from 1 to"),
        ("slots", "slots = 1.5", "c.toml:19: [protocol] slots = 1.5: must be an integer"),
        ("slots", "slots = true", "c.toml:19: [protocol] slots = true: must be an integer"),
        ("slots", "", "c.toml:17: [protocol] slots: is missing; it has no default"),
        (
            "slots",
            "slot = 5",
            "c.toml:19: [protocol] slot = 5: is not a known key; did you mean slots",
        ),
        ("slots", "zzz = 5", "c.toml:19: [protocol] zzz = 5: is not a known key; known: "),
        ("[budget]", "[bugdet]", "c.toml:11: [bugdet]: is not a known key; did you mean budget?"),
        ('kind = "f', 'kind = "fixd"', 'c.toml:18: [protocol] kind = "fixd": must be fixed, '),
        ("delta", "delta = 1", "c.toml:13: [budget] delta = 1: must lie strictly between 0 and 1"),
        ("delta", "delta = nan", "c.toml:13: [budget] delta = nan: must lie strictly between"),
        ("delta", 'delta = "low"', 'c.toml:13: [budget] delta = "low": must be a number'),
        ("delta", "", "c.toml:11: [budget] delta: is missing; it has no default"),
        ("epsilon", "epsilon = inf", "c.toml:12: [budget] epsilon = inf: must be a finite number"),
        ("adjacency", "adjacency = 1", "c.toml:14: [budget] adjacency = 1: must be add-remove or"),
        (
            "population =",
            "population = [5, 1]",
            "c.toml:15: [budget] population = [5, 1]: the smallest number must",
        ),
        ("population =", "population = [5]", "c.toml:15: [budget] population = [5]: must be"),
        ("population =", 'population = "x"', 'c.toml:15: [budget] population = "x": must be'),
        ("participation", "participation = 2", "c.toml:20: [protocol] participation = 2: must lie"),
        ("participation", "", "c.toml:17: [protocol] participation: is missing"),
        (
            "capacity",
            'capacity = "all"',
            'c.toml:21: [protocol] capacity = "all": requires noise_at',
        ),
        (
            "capacity",
            "",
            "c.toml:17: [protocol] capacity: Gaussian noise at the client needs a capacity",
        ),
        ("repeats", "repeats = 0", "c.toml:22: [protocol] repeats = 0: must be an integer"),
        ("repeats", "window = 5", "c.toml:22: [protocol] window = 5: is for the sliding"),
        ("noise_at", "", "c.toml:24: [randomizer] noise_at: is missing; it has no default"),
        (
            "noise_mul",
            "",
            "c.toml:24: [randomizer] noise_multiplier: is missing; it has no default",
        ),
        ("clip", "", "c.toml:24: [randomizer] clip: is missing; it has no default"),
        ("clip", "clip = -1.0", "c.toml:28: [randomizer] clip = -1.0: must be a finite number"),
        ("clip", "local_epsilon = 1.0", "c.toml:28: [randomizer] local_epsilon = 1.0: is not used"),
        ("grid", "grid = 0.5", "c.toml:29: [randomizer] grid = 0.5: is too coarse"),
        ("grid", "grid = 1", "c.toml:29: [randomizer] grid = 1: is too coarse"),
        ("grid", "grid = 1e-10", "c.toml:29: [randomizer] grid = 1e-10: is too fine"),
        ("clip", "categories = 3", "c.toml:28: [randomizer] categories = 3: is not used with"),
        ("name", 'name = ""', 'c.toml:8: name = "": must be a text of 1 to 200'),
        ("name", "name = 1", "c.toml:8: name = 1: must be a text in quotes"),
        ("name", "name = ", "c.toml:8: is not TOML: a value is missing after ="),
        ("name", "name =  # later", "c.toml:8: is not TOML: a value is missing after ="),
        ("name", "schema = 1", "c.toml:8: is not TOML: this key appears twice"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_key(old: str, new: str, message: str) -> None:
    assert refusal(changed(old, new)).startswith(message)


OPTIMIZER = "c.toml:35: [task] optimizer."


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("data", "data = 3", "c.toml:32: [task] data = 3: must be a table, data = { ... }"),
        ("data", 'data = "mnist"', 'c.toml:32: [task] data = "mnist": must be patients, '),
        ("data", "", "c.toml:31: [task] data: is missing; it has no default"),
        ("data", "dta = 1", "c.toml:32: [task] dta = 1: is not a known key; did you mean data?"),
        ("data", 'data = { file = "x" }', "c.toml:32: [task] data.client_column: is missing"),
        ("data", "data = { fil = 1 }", "c.toml:32: [task] data.fil = 1: is not a known key"),
        (
            "data",
            'data = { file = "x", client_column = "c", label_column = "y", features = ["a"],'
            " ranges = { a = [1] } }",
            "c.toml:32: [task] data.ranges.a = [1]: must be [LOW, HIGH]",
        ),
        (
            "data",
            'data = { file = "x", client_column = "c", label_column = "y", features = ["a"],'
            " ranges = { b = [0, 1] } }",
            "c.toml:32: [task] data.ranges.b = [0, 1]: is not a known key; known: a",
        ),
        (
            "data",
            'data = { file = "x", client_column = "c", label_column = "y", features = ["a"],'
            " ranges = { a = [1, 0] } }",
            "c.toml:32: [task] data.ranges = ",
        ),
        ("data", "data = { features = [1] }", "c.toml:32: [task] data.features = [1]: must be a"),
        ("model", "model = 3", "c.toml:33: [task] model = 3: must be a text in quotes"),
        ("model", 'model = "x y"', 'c.toml:33: [task] model = "x y": must be logistic, '),
        ("local_steps", "local_steps = 0", "c.toml:34: [task] local_steps = 0: must be an int"),
        ("optimizer", "optimizer = 3", "c.toml:35: [task] optimizer = 3: must be a table, "),
        ("optimizer", "", "c.toml:31: [task] optimizer: is missing; it has no default"),
        ("optimizer", "optimizer = { rate = 1 }", f"{OPTIMIZER}kind: is missing"),
        ("optimizer", 'optimizer = { kind = "sgd" }', f"{OPTIMIZER}rate: is missing"),
        (
            "optimizer",
            'optimizer = { kind = "adam", rate = 1 }',
            f'{OPTIMIZER}kind = "adam": must be "sgd", or "optax:NAME" for a simulation',
        ),
        (
            "optimizer",
            'optimizer = { kind = "sgd", rate = 0 }',
            f"{OPTIMIZER}rate = 0: must be a finite number above 0",
        ),
        (
            "optimizer",
            'optimizer = { kind = "sgd", rate = 1, minibatch = 201 }',
            f"{OPTIMIZER}minibatch = 201: must be at most slots = 200",
        ),
        (
            "optimizer",
            'optimizer = { kind = "sgd", rate = 1, schedule = "fast" }',
            f'{OPTIMIZER}schedule = "fast": must be constant or inverse-sqrt',
        ),
        (
            "optimizer",
            'optimizer = { kind = "sgd", rate = 1, momentm = 1 }',
            f"{OPTIMIZER}momentm = 1: is not a known key; did you mean momentum?",
        ),
        (
            "optimizer",
            'optimizer = { kind = "sgd", rat = 1 }',
            f"{OPTIMIZER}rat = 1: is not a known key; did you mean rate?",
        ),
        (
            "optimizer",
            'optimizer.kind = "sgd"\noptimizer.rate = -1',
            "c.toml:36: [task] optimizer.rate = -1: must be a finite number above 0",
        ),
        ("start", "", "c.toml:37: [schedule] start: is missing; it has no default"),
        (
            "start",
            "start = 2030-01-01T00:00:00",
            "c.toml:38: [schedule] start = 2030-01-01T00:00:00: must state its UTC offset",
        ),
        ("start", "start = 2030-01-01", "c.toml:38: [schedule] start = 2030-01-01: must be a date"),
        ("start", "start = 00:00:00", "c.toml:38: [schedule] start = 00:00:00: must be a date and"),
        ("start", 'start = "now"', 'c.toml:38: [schedule] start = "now": must be a date and time'),
        ("slot_s", "slot_s = 0", "c.toml:39: [schedule] slot_s = 0: must be a finite number"),
        ("slot_s", "slot_s = 1e300", "c.toml:39: [schedule] slot_s = 1e300: makes the campaign"),
        ("slot_s", "slots_s = 1", "c.toml:39: [schedule] slots_s = 1: is not a known key; did you"),
        ("choose_s", "choose_s = 1", "c.toml:40: [schedule] choose_s = 1: must be below slot_s"),
        ("choose_s", "", "c.toml:37: [schedule] choose_s: is missing; it has no default"),
    ],
)
def test_a_mistake_in_the_task_or_the_schedule_too(old: str, new: str, message: str) -> None:
    at = TEXT.index("[task]")
    head, tail = TEXT[:at], TEXT[at:].splitlines()
    (line,) = (i for i, text in enumerate(tail) if text.startswith(old))
    tail[line] = new
    assert refusal(head + "\n".join(tail)).startswith(message)


@pytest.mark.parametrize("section", ["task", "schedule"])
def test_a_task_and_a_schedule_are_sections(section: str) -> None:
    text = TEXT[: TEXT.index("[task]")].replace("schema = 1", f"schema = 1\n{section} = 3")
    assert refusal(text) == f"c.toml:8: {section} = 3: must be a section, [{section}]"


def test_tables_of_a_task_may_be_sections_of_their_own() -> None:
    head = TEXT[: TEXT.index("[task]")]
    task = """
[task]
model = "mine.models:deep"
local_steps = 5

[task.optimizer]
kind = "sgd"
rate = 1
schedule = "inverse-sqrt"
diameter = 20
divide_by = 7

[task.data]
file = "x.csv"
client_column = "who"
label_column = "y"
features = ["a", "b c", "d.e"]

[task.data.ranges]
"d.e" = [-1, 1]
a = [0, 1.5]
'b c' = [2, 3]
"""
    expected = Task(
        DataFile("x.csv", "who", "y", ("a", "b c", "d.e"), ((0, 1.5), (2, 3), (-1, 1))),
        "mine.models:deep",
        Optimizer(1.0, schedule=StepSizes.INVERSE_SQRT, diameter=20.0, divide_by=7),
        5,
    )
    assert parse_campaign(head + task).campaign.task == expected
    wrong = task.replace("rate = 1", "rate = true")
    assert refusal(head + wrong).startswith("c.toml:38: [task] optimizer.rate = true: must be")
    wrong = task.replace("a = [0, 1.5]", 'a = "x"')
    assert refusal(head + wrong).startswith('c.toml:51: [task] data.ranges.a = "x": must be [LOW')
    wrong = task.replace("a = [0, 1.5]", "")
    assert refusal(head + wrong).startswith("c.toml:49: [task] data.ranges.a: is missing")


def test_averaged_updates_take_no_minibatch() -> None:
    text = TEXT.replace('kind = "fixed"', 'kind = "averaged"').replace("add-remove", "replace-one")
    text = text.replace("noise_multiplier = 0.1", "noise_multiplier = 1.0")
    text = "\n".join(line for line in text.splitlines() if not line.startswith("capacity"))
    parse_campaign(text)
    text = text.replace("minibatch = 1", "minibatch = 2")
    assert refusal(text).startswith("c.toml:34: [task] optimizer.minibatch = 2: must be 1")


def test_a_pure_randomizer_takes_no_noise() -> None:
    text = changed('kind = "g', 'kind = "laplace"')
    assert refusal(text).startswith('c.toml:26: [randomizer] noise_at = "client": is not used')


ODD = (
    *('""', '"x"', "true", "0", "-1", "1.5", "nan", "inf", "-0.0", "1e-320", "1e300", "9" * 400),
    *("[]", "[[]]", "[1, 2]", '["x"]', "{}", "{ a = 1 }", "1979-05-27", "1979-05-27T07:32:00"),
    *(f"[0, {'9' * 400}]", "[0, inf]", "[nan, 1.0]", "[1, 0]", "[1, 1]", "[1, true]"),
    *("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "07:32:00", '"\\u0000"'),
)


def refused(text: str) -> str:
    """What a text is refused with, or nothing; any other failure fails the test."""
    try:
        parse_campaign(text, path="c.toml")
    except InvalidCampaign as error:
        return str(error)
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("template", ["patients", "file", "synthetic"])
def test_no_value_of_any_key_is_more_than_refused(template: str) -> None:
    lines = template_text(Template(template)).splitlines()
    for number, line in enumerate(lines):
        key, equals, _ = line.partition(" = ")
        if not equals or line.startswith("#"):
            continue
        for value in ODD:
            text = "\n".join([*lines[:number], f"{key} = {value}", *lines[number + 1 :]])
            said = refused(text)
            assert said.startswith("c.toml") or not said
            assert len(said) < 300


@pytest.mark.parametrize(
    "key",
    [
        *("rate", "minibatch", "schedule", "diameter", "divide_by", "kind"),
        *("momentum", "nesterov", "arguments"),
    ],
)
def test_no_value_inside_a_table_is_more_than_refused(key: str) -> None:
    for value in ODD:
        given = {"kind": '"sgd"', "rate": "1"} | {key: value}
        table = ", ".join(f"{name} = {value}" for name, value in given.items())
        said = refused(changed("optimizer", f"optimizer = {{ {table} }}"))
        assert said.startswith(f"c.toml:35: [task] optimizer.{key} = ") or not said


def test_a_section_must_be_a_section() -> None:
    assert refusal("schema = 1\nbudget = 3").startswith("c.toml:2: budget = 3: must be a section")
    assert refusal("schema = 1").startswith("c.toml: [budget]: is missing")


def test_an_inline_section_is_a_section() -> None:
    assert refusal("schema = 1\nbudget = { epsilon = 1, detla = 1 }").startswith(
        "c.toml:2: [budget] detla = 1: is not a known key; did you mean delta?"
    )


@pytest.mark.parametrize("text", ["a = " + "[" * 5000, "a = " + "9" * 9000, "\0", "a = 1_", "[a"])
def test_what_is_not_toml_is_refused(text: str) -> None:
    assert refusal(text).startswith("c.toml")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("schema =", "c.toml:1: is not TOML: a value is missing after ="),
        ("schema = 1\nname = ", "c.toml:2: is not TOML: a value is missing after ="),
        ("schema = 1\nname", "c.toml:2: is not TOML: the file ends in the middle of a line"),
        ("schema = x", "c.toml:1: is not TOML: Invalid value"),
    ],
)
def test_a_file_that_breaks_off_says_so(text: str, reason: str) -> None:
    assert refusal(text) == reason


DEEP = "a" + ".a" * 20
HOSTILE = {
    "dotted keys": "\n".join(f"{DEEP}.k{number} = 1" for number in range(4000)),
    "one dotted key": "a" + ".a" * 99_000 + " = 1",
    "quoted parts": "'a'" + ' . "a.=[{#"' * 15_000 + " = 1",
    "a dotted table": "[a" + ".a" * 99_000 + "]",
    "dotted keys in a table": f"a = {{ {DEEP} = 1 }}",
    "arrays in arrays": "a = " + "[" * 50_000 + "]" * 50_000,
    "tables in tables": "a = " + "{a=" * 30_000,
    "many keys": "\n".join(f"k{number} = 1" for number in range(20_001)),
    "many tables": "[a]\n" * 20_001,
    "many bytes": "#" * 200_001,
    "many characters": "é" * 100_001,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=list(HOSTILE))
def test_a_text_beyond_the_limits_is_refused_before_it_is_parsed(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parsing some of these takes minutes."""
    monkeypatch.setattr(toml.tomllib, "loads", lambda text: pytest.fail("it was parsed"))
    assert re.search(r"^c.toml(:\d+)?: (must have at most|is nested too deeply)", refusal(text))


@pytest.mark.parametrize(
    "harmless",
    [
        "# " + "a." * 300 + "[" * 300,
        "x = 'a.b.c.d.e.f.g.h.i.j.k = [[[[[[[[[[[[[[[[[['",
        'x = "' + r"\\\"a.b.c.d.e.f.g.h.i.j.k" + '"',
        'x = """\n' + "a.b.c.d.e.f.g.h.i.j\n" * 30 + r"\"" + '""""',
        "x = '''\n" + "[" * 30 + "'''''",
        "x = [" + "0.5, " * 50 + "]",
    ],
)
def test_strings_and_comments_may_hold_anything(harmless: str) -> None:
    assert toml.exceeded_limit(harmless) is None
    tomllib.loads(harmless)


def test_a_line_of_blanks_in_an_array_takes_no_time_to_number() -> None:
    """Numbering the lines took the cube of its length, hours for this one."""
    text = "x = [\n[" + " " * 100_000 + "\n1]]\n[protocol]\nslots = 1\n"
    assert line_numbers(text)[("protocol", "slots")] == 5


def test_a_byte_order_mark_is_no_part_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "patients.toml"
    path.write_text(TEXT, encoding="utf-8-sig")
    assert path.read_bytes().startswith(b"\xef\xbb\xbf")
    assert read_campaign(path).campaign == read_campaign(PATIENTS).campaign
    path.write_text("schema = 2", encoding="utf-8-sig")
    with pytest.raises(InvalidCampaign, match=r"patients.toml:1: schema = 2: must be 1"):
        read_campaign(path)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b"name = '\xff'")
    (tmp_path / "huge.toml").write_bytes(b"#" * 300_000)
    for name in ("none.toml", "", "latin.toml", "huge.toml", "nul\0.toml"):
        with pytest.raises(InvalidCampaign, match=r"cannot be read|at most"):
            read_campaign(tmp_path / name)
