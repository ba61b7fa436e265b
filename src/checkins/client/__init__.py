"""The device SDK: take part in a campaign with data that stay on the device.

The user writes a ``Trainer``, which computes an update of the model, and ``Participant`` does
everything else. The state machine in ``checkins.protocol.participant`` makes every decision.
``participation.py`` turns its decisions into actions such as requests and sleeps, and
``drivers.py`` performs these actions.
"""

from checkins.client.actions import CampaignRefused, ServiceFailed
from checkins.client.odometer import PrivacyLoss
from checkins.client.participant import Participant, fetch_campaign
from checkins.client.trainer import RowsTrainer, Trainer
from checkins.client.view import CampaignView
from checkins.protocol.participant import Outcome

__all__ = [
    "CampaignRefused",
    "CampaignView",
    "Outcome",
    "Participant",
    "PrivacyLoss",
    "RowsTrainer",
    "ServiceFailed",
    "Trainer",
    "fetch_campaign",
]
