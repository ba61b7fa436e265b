"""Build the server, the clients and the sampler of a campaign."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from checkins import validate
from checkins.accounting import NoiseAt
from checkins.campaign import Campaign
from checkins.errors import InvalidValue
from checkins.protocol.model_update import Model, ModelUpdate
from checkins.protocol.participant import Participant
from checkins.protocol.report import ReportForm
from checkins.protocol.rules import Rules, window_of
from checkins.protocol.server import Server
from checkins.randomizers import DeviceSampler, Grid


def sampler_of(campaign: Campaign, *, dimension: int) -> DeviceSampler:
    """Return the sampler of reports, dummies and server noise of a real campaign."""
    step = campaign.randomizer.grid
    if campaign.randomizer.categories is not None:
        step = 1.0  # a category is an integer
    if step is None:
        raise InvalidValue("grid", None, "reports of real clients are integers on a grid: give one")
    return DeviceSampler(campaign.mechanism(dimension), Grid(step), dimension)


def participant_of(campaign: Campaign) -> Participant:
    """Return a client with the campaign's participation and window."""
    return Participant(campaign.design.participation, window_of(campaign.design))


def server_of(
    campaign: Campaign, model: ArrayLike, *, affordable: int, velocity: ArrayLike | None = None
) -> Server:
    """Create a real server before the first slot of a run; it stops after ``affordable`` slots.

    ``affordable`` follows from the ledger of the campaign's population: earlier runs count
    (``checkins.ledger.spending_of``). A run that continues another one with momentum takes its
    ``velocity`` along with its model.
    """
    start = np.array(model, dtype=np.float64)
    rules = rules_of(campaign, dimension=start.size, affordable=affordable)
    return Server.start(rules, start.ravel(), velocity=_flat(velocity))


def rules_of(campaign: Campaign, *, dimension: int, affordable: int) -> Rules:
    """Return the rules of a real campaign whose budget affords ``affordable`` slots."""
    validate.count(dimension=dimension)
    sampler = sampler_of(campaign, dimension=dimension)
    form = ReportForm(
        dimension,
        most_units=sampler.most_units,
        simulated=False,
        step=sampler.grid.step,
        norm=sampler.bound(noise_at_server=campaign.noise_at is NoiseAt.SERVER),
    )
    return Rules.of(
        campaign.design, affordable=affordable, form=form, update=ModelUpdate.of(campaign)
    )


def rehearsing_server_of(
    campaign: Campaign, model: ArrayLike, *, velocity: ArrayLike | None = None
) -> Server:
    """Return a server for simulated reports: on the campaign's grid if it has one, else floats.

    It runs every slot, whether or not the budget affords it.
    """
    start = np.array(model, dtype=np.float64)
    validate.count(dimension=start.size)
    on_grid = campaign.randomizer.grid is not None
    most = sampler_of(campaign, dimension=start.size).most_units if on_grid else None
    rules = Rules.of(
        campaign.design,
        affordable=campaign.design.slots,
        form=ReportForm(start.size, most_units=most, simulated=True),
        update=ModelUpdate.of(campaign),
    )
    return Server.start(rules, start.ravel(), velocity=_flat(velocity))


def _flat(velocity: ArrayLike | None) -> Model | None:
    return None if velocity is None else np.array(velocity, dtype=np.float64).ravel()
