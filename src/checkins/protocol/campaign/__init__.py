"""What a campaign is: every public parameter, the file that says it, its seal, what it spends."""

from checkins.protocol.campaign.description import Budget, Campaign, Schedule
from checkins.protocol.campaign.file import CampaignFile, parse_campaign, read_campaign
from checkins.protocol.campaign.optimizer import Optimizer, StepSizes
from checkins.protocol.campaign.randomizer_choice import RandomizerChoice, RandomizerKind
from checkins.protocol.campaign.runs import RunSoFar
from checkins.protocol.campaign.seal import campaign_from_canonical
from checkins.protocol.campaign.spending import Spending, price
from checkins.protocol.campaign.task import DataFile, Features, Task
from checkins.protocol.campaign.toml_source import InvalidCampaign
from checkins.protocol.campaign.writing import campaign_text

__all__ = [
    "Budget",
    "Campaign",
    "CampaignFile",
    "DataFile",
    "Features",
    "InvalidCampaign",
    "Optimizer",
    "RandomizerChoice",
    "RandomizerKind",
    "RunSoFar",
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
