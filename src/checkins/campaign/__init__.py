"""What a campaign is: every public parameter, the file that says it, its seal, what it spends."""

from checkins.campaign.description import Budget, Campaign, Schedule
from checkins.campaign.file import CampaignFile, parse_campaign, read_campaign
from checkins.campaign.optimizer import Optimizer, StepSizes
from checkins.campaign.partial_runs import PartialRun
from checkins.campaign.randomizer_config import RandomizerConfig, RandomizerKind
from checkins.campaign.seal import campaign_from_canonical
from checkins.campaign.spending import Spending, price
from checkins.campaign.task import DataFile, Features, Task
from checkins.campaign.toml_source import InvalidCampaign
from checkins.campaign.writing import campaign_text

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
    "parse_campaign",
    "price",
    "read_campaign",
]
