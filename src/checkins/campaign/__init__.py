"""Campaigns: public parameters, campaign files, the seal (a hash), and epsilon after a slot.

The module ``spending``, which computes epsilon, is imported on first use: devices need no scipy.
"""

from typing import TYPE_CHECKING

from checkins.campaign.file import (
    CampaignFile,
    campaign_from_canonical,
    campaign_text,
    parse_campaign,
    read_campaign,
)
from checkins.campaign.model import Budget, Campaign, Schedule
from checkins.campaign.partial_runs import PartialRun
from checkins.campaign.randomizer_config import RandomizerConfig, RandomizerKind
from checkins.campaign.task import DataFile, Features, Optimizer, StepSizes, Task
from checkins.campaign.toml import InvalidCampaign
from checkins.optional_imports import exports_on_first_use

if TYPE_CHECKING:
    from checkins.campaign.spending import Spending, certify_runs

__all__ = [
    "Budget",
    "Campaign",
    "CampaignFile",
    "DataFile",
    "Features",
    "InvalidCampaign",
    "Optimizer",
    "PartialRun",
    "RandomizerConfig",
    "RandomizerKind",
    "Schedule",
    "Spending",
    "StepSizes",
    "Task",
    "campaign_from_canonical",
    "campaign_text",
    "certify_runs",
    "parse_campaign",
    "read_campaign",
]

if not TYPE_CHECKING:
    __getattr__ = exports_on_first_use(__name__, __all__, "spending")
