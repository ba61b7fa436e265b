"""A campaign file is read whole or refused with its line and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkins.accounting import Adjacency, GaussianNoise, LocalRandomizer, NoiseAt, Population
from checkins.protocol.campaign_file import InvalidCampaign, parse_campaign, read_campaign

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
    campaign = read_campaign(PATIENTS)
    assert (campaign.name, campaign.population_id, campaign.repeats) == ("patients", "clinic", 1)
    assert (campaign.epsilon, campaign.delta) == (0.5, 1e-6)
    assert campaign.adjacency is Adjacency.ADD_REMOVE
    assert campaign.design.slots == 200
    assert campaign.design.capacity == 176
    assert campaign.design.population == Population(15_000, 20_000)
    assert campaign.design.randomizer == GaussianNoise(0.1, NoiseAt.CLIENT)


def test_all_check_ins_are_used_with_noise_at_the_server() -> None:
    text = changed("capacity", 'capacity = "all"')
    text = text.replace('noise_at = "client"', 'noise_at = "server"')
    text = text.replace("noise_multiplier = 0.1", "noise_multiplier = 1.0")
    assert parse_campaign(text).design.capacity is None


@pytest.mark.parametrize("kind", ["laplace", "privunit", "randomized-response"])
def test_a_pure_randomizer_is_its_local_epsilon(kind: str) -> None:
    head = TEXT[: TEXT.index("[randomizer]")]
    text = f'{head}[randomizer]\nkind = "{kind}"\nlocal_epsilon = 2\n'
    assert parse_campaign(text).design.randomizer == LocalRandomizer(2.0)


def test_one_number_is_a_population_too() -> None:
    campaign = parse_campaign(changed("population =", "population = 500"))
    assert campaign.design.population == Population(500, 500)


def test_what_does_not_change_the_price_may_be_left_out() -> None:
    text = TEXT[: TEXT.index("[task]")]
    for key in ("name", "population_id", "population =", "repeats"):
        text = "\n".join(line for line in text.splitlines() if not line.startswith(key))
    campaign = parse_campaign(text, path="runs/spring.toml")
    assert (campaign.name, campaign.population_id, campaign.repeats) == ("spring", None, 1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema", "schema = 2", "c.toml:5: schema = 2: must be 1"),
        ("schema", "", "c.toml: schema: is missing; it has no default"),
        ("slots", "slots = 0", "c.toml:17: [protocol] slots = 0: must be a whole number from 1 to"),
        ("slots", "slots = 1.5", "c.toml:17: [protocol] slots = 1.5: must be a whole number"),
        ("slots", "slots = true", "c.toml:17: [protocol] slots = true: must be a whole number"),
        ("slots", "", "c.toml:15: [protocol] slots: is missing; it has no default"),
        (
            "slots",
            "slot = 5",
            "c.toml:17: [protocol] slot = 5: is not a known key; did you mean slots",
        ),
        ("slots", "zzz = 5", "c.toml:17: [protocol] zzz = 5: is not a known key; known: "),
        ("[budget]", "[bugdet]", "c.toml:9: [bugdet]: is not a known key; did you mean budget?"),
        ('kind = "f', 'kind = "fixd"', 'c.toml:16: [protocol] kind = "fixd": must be fixed, '),
        ("delta", "delta = 1", "c.toml:11: [budget] delta = 1: must lie strictly between 0 and 1"),
        ("delta", "delta = nan", "c.toml:11: [budget] delta = nan: must lie strictly between"),
        ("delta", 'delta = "low"', 'c.toml:11: [budget] delta = "low": must be a number'),
        ("delta", "", "c.toml:9: [budget] delta: is missing; it has no default"),
        ("epsilon", "epsilon = inf", "c.toml:10: [budget] epsilon = inf: must be a finite number"),
        ("adjacency", "adjacency = 1", "c.toml:12: [budget] adjacency = 1: must be add-remove or"),
        (
            "population =",
            "population = [5, 1]",
            "c.toml:13: [budget] population = [5, 1]: the first must",
        ),
        ("population =", "population = [5]", "c.toml:13: [budget] population = [5]: must be"),
        ("population =", 'population = "x"', 'c.toml:13: [budget] population = "x": must be'),
        ("participation", "participation = 2", "c.toml:18: [protocol] participation = 2: must lie"),
        ("participation", "", "c.toml:15: [protocol] participation: is missing"),
        ("capacity", 'capacity = "all"', 'c.toml:19: [protocol] capacity = "all": goes with'),
        ("capacity", "", "c.toml:15: [protocol] capacity: Gaussian noise at the client needs it"),
        ("repeats", "repeats = 0", "c.toml:20: [protocol] repeats = 0: must be a whole number"),
        ("repeats", "window = 5", "c.toml:20: [protocol] window = 5: goes with the sliding"),
        ("noise_at", "", "c.toml:22: [randomizer] noise_at: is missing; it has no default"),
        (
            "noise_mul",
            "",
            "c.toml:22: [randomizer] noise_multiplier: is missing; it has no default",
        ),
        ("clip", "", "c.toml:22: [randomizer] clip: is missing; it has no default"),
        ("clip", "clip = -1.0", "c.toml:26: [randomizer] clip = -1.0: must be a finite number"),
        ("clip", "local_epsilon = 1.0", "c.toml:26: [randomizer] local_epsilon = 1.0: does not go"),
        ("grid", "grid = 0.5", "c.toml:27: [randomizer] grid = 0.5: must be at most a third"),
        ("grid", "grid = 1", "c.toml:27: [randomizer] grid = 1: must be at most a third"),
        ("name", "name = 1", "c.toml:6: name = 1: must be a text in quotes"),
        ("name", "name = ", "c.toml:6: is not TOML: "),
        ("name", "schema = 1", "c.toml:7: is not TOML: Key"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_key(old: str, new: str, message: str) -> None:
    assert refusal(changed(old, new)).startswith(message)


def test_a_pure_randomizer_takes_no_noise() -> None:
    text = changed('kind = "g', 'kind = "laplace"')
    assert refusal(text).startswith('c.toml:24: [randomizer] noise_at = "client": goes with kind')


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


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b"name = '\xff'")
    (tmp_path / "huge.toml").write_bytes(b"#" * 300_000)
    for name in ("none.toml", "", "latin.toml", "huge.toml", "nul\0.toml"):
        with pytest.raises(InvalidCampaign, match=r"cannot be read|at most"):
            read_campaign(tmp_path / name)
