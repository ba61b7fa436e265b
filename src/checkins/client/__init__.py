"""The device SDK: take part in a campaign with data that stay on the device.

A user writes a ``Trainer``; ``Participant`` does the rest, and decides nothing that
``checkins.protocol.participant`` does not.
"""

from checkins.client.campaigns import fetch_campaign
from checkins.client.errors import CampaignRefused, ServiceFailed
from checkins.client.participant import Participant
from checkins.client.trainer import RowsTrainer, Trainer
from checkins.client.view import CampaignView
from checkins.protocol.participant import Outcome

__all__ = [
    "CampaignRefused",
    "CampaignView",
    "Outcome",
    "Participant",
    "RowsTrainer",
    "ServiceFailed",
    "Trainer",
    "fetch_campaign",
]
