"""A campaign in words: what one slot does, and what is missing before clients can join."""

from __future__ import annotations

from checkins.accounting import NoiseAt, Protocol
from checkins.campaign import Campaign, RandomizerKind

NEEDED = {
    "[randomizer] clip": "the norm that updates are clipped to",
    "[randomizer] grid": "on devices, reports are whole numbers of it",
    "[randomizer] kind = gaussian, laplace or privunit": "a model cannot step by categories",
    "[task]": "what is learned",
    '[task] optimizer kind = "sgd"': "optax steps in simulations only",
    "[schedule]": "when slots are; a simulation needs none",
}


def one_slot(campaign: Campaign) -> str:
    """What happens in a slot, in two sentences."""
    design = campaign.design
    where = f"one of {design.slots:,} slots (time steps)"
    slot = "A slot"
    if design.window is not None:
        where = f"one of its next {design.window:,} slots (time steps), of {design.slots:,}"
        if design.window > 1:
            slot = f"{_warm_up(design.window - 1)}, a slot"
    chance = "" if design.participation == 1.0 else f", with probability {design.participation:g}"
    drawn = f"Each client draws {where}{chance}."
    if design.protocol is Protocol.AVERAGED:
        return (
            f"{drawn} {slot} averages all its reports ({_report(campaign)}) and releases a model."
        )
    picked = "takes all its check-ins"
    if design.capacity is not None:
        picked = f"chooses up to {design.capacity:,} of its check-ins uniformly"
    if campaign.noise_at is NoiseAt.SERVER:
        summed = f"sums their updates ({_clipped(campaign)}), adds {_gaussian(campaign)} to the sum"
    else:
        summed = f"sums their reports ({_report(campaign)}), fills up with dummies"
    if design.capacity == 1 and campaign.noise_at is not NoiseAt.SERVER:
        picked = "chooses one of its check-ins uniformly"
        summed = f"takes its report ({_report(campaign)}) or a dummy if there is none"
    return f"{drawn} {slot} {picked}, {summed} and releases a model."


def _warm_up(slots: int) -> str:
    return f"After a warm-up of {slots:,} slot{'' if slots == 1 else 's'} that releases nothing"


def _clipped(campaign: Campaign) -> str:
    chosen = campaign.randomizer
    norm = "L1 norm" if chosen.kind is RandomizerKind.LAPLACE else "norm"
    return f"clipped to {norm} {chosen.clip:g}" if chosen.clip is not None else "clipped"


def _gaussian(campaign: Campaign) -> str:
    deviation = (campaign.noise_multiplier or 0.0) * (campaign.randomizer.clip or 0.0)
    return f"Gaussian noise of standard deviation {deviation:g}"


def _report(campaign: Campaign) -> str:
    chosen = campaign.randomizer
    if chosen.kind is RandomizerKind.GAUSSIAN:
        return f"{_clipped(campaign)}, with {_gaussian(campaign)}"
    if chosen.kind is RandomizerKind.RANDOMIZED_RESPONSE:
        how = f"by randomized response among {chosen.categories:,}"
        return f"{campaign.local_epsilon:g}-DP {how}"
    how = "Laplace noise" if chosen.kind is RandomizerKind.LAPLACE else "PrivUnit"
    return f"{_clipped(campaign)}, {campaign.local_epsilon:g}-DP by {how}"


def missing_lines(campaign: Campaign) -> list[str]:
    """What must be added to the file, and what for."""
    return [f"{name}: {NEEDED[name]}" for name in campaign.missing]
