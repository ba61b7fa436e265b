"""A design from options: what is missing or contradicts itself is refused by name."""

from __future__ import annotations

import math

from checkins import validate
from checkins.accounting import Design, GaussianNoise, LocalRandomizer, NoiseAt, Protocol
from checkins.cli import values
from checkins.cli.failures import Refused
from checkins.cli.options import Given, option

WHOLE = f"must be an integer from 1 to {validate.MOST_SLOTS:,}"
POSITIVE = "must be a finite number above 0"


def design_from(given: Given) -> Design:
    """The design that the options describe."""
    protocol = values.one_of(
        "protocol", given.need("protocol", "must be fixed, averaged or sliding"), Protocol
    )
    slots = values.whole("slots", given.need("slots", WHOLE))
    participation = values.real(
        "participation", given.need("participation", "must lie in [0, 1]"), validate.probability
    )
    window, capacity, population = (
        given.texts.get(name) for name in ("window", "capacity", "population")
    )
    return Design(
        protocol,
        slots=slots,
        participation=participation,
        randomizer=_randomizer(given),
        capacity=None if capacity is None else _capacity(given, capacity),
        window=None if window is None else values.whole("window", window),
        population=None if population is None else values.population(population),
    )


def _randomizer(given: Given) -> LocalRandomizer | GaussianNoise:
    if "local_epsilon" in given and "noise_multiplier" in given:
        raise given.contradiction(
            "local_epsilon", "contradicts --noise-multiplier: give one of the two"
        )
    for name, partner in (("local_delta", "local_epsilon"), ("noise_at", "noise_multiplier")):
        if name in given and partner not in given:
            raise given.contradiction(name, f"goes with {option(partner)}, which is missing")
    if "local_epsilon" in given:
        local_delta = 0.0
        if "local_delta" in given:
            local_delta = values.real(
                "local_delta", given.texts["local_delta"], validate.probability
            )
        return LocalRandomizer(
            values.real("local_epsilon", given.texts["local_epsilon"], validate.positive),
            local_delta,
        )
    if "noise_multiplier" in given:
        return GaussianNoise(
            values.real("noise_multiplier", given.texts["noise_multiplier"], validate.positive),
            values.one_of("noise_at", given.need("noise_at", "must be client or server"), NoiseAt),
        )
    raise Refused(
        f"--local-epsilon or --noise-multiplier: one is missing; {POSITIVE} (it has no default)"
    )


def _capacity(given: Given, text: str) -> int | None:
    if text != values.ALL:
        return values.whole("capacity", text)
    if given.texts.get("noise_at") != NoiseAt.SERVER:
        raise given.contradiction("capacity", f"goes with --noise-at server only; {WHOLE}")
    return None


def allowed_start(given: Given, unknown: str) -> str:
    """A text for the option that is solved for: any that is allowed, it means nothing."""
    if unknown == "slots":
        return given.texts.get("window", "1")
    if unknown == "capacity" and given.texts.get("noise_at") == NoiseAt.CLIENT:
        noise = values.real(
            "noise_multiplier", given.need("noise_multiplier", POSITIVE), validate.positive
        )
        return str(min(max(1, math.ceil(1.0 / noise) ** 2), validate.MOST_SLOTS))
    if unknown == "noise_multiplier" and given.texts.get("noise_at") == NoiseAt.CLIENT:
        capacity = given.texts.get("capacity", "1")
        return "1" if capacity == values.ALL else str(values.whole("capacity", capacity) ** -0.5)
    return "1"
