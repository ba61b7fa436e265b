"""The device SDK: take part in a campaign with data that stay on the device.

A user writes a ``Trainer``; ``Participant`` does the rest. Every decision is made by the state
machine ``checkins.protocol.participant``. Read ``participation.py`` for the flow of one device,
``drivers.py`` for how its actions are performed.
"""

from checkins.client.errors import CampaignRefused, ServiceFailed
from checkins.client.participant import Participant, fetch_campaign
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
