"""Campaigns: public parameters, campaign files, the seal (a hash), and epsilon after a slot."""

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
from checkins.campaign.spending import Spending, certify_runs
from checkins.campaign.task import DataFile, Features, Optimizer, StepSizes, Task
from checkins.campaign.toml import InvalidCampaign

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
