"""A device with a trainer of its own takes part in a campaign.

    checkins serve examples/patients.toml --start +60        # somewhere, by somebody
    python examples/device.py http://127.0.0.1:8470 state-of-this-device

What a user writes is `Trainer.update`: from the model to an update, with numpy or anything else.
The participant draws its slot, sleeps until then, checks in, clips the update, adds the noise that
the campaign is sealed with, and reports at most once. Run it again after a crash: it goes on.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from checkins.campaign import Campaign
from checkins.client import Outcome, Participant, fetch_campaign

MOST_EPSILON = 8.0
"""The owner of this device takes part in no campaign that may spend more."""


class MyRows:
    """Logistic regression on the rows of one person: the gradient of the mean loss.

    The server steps against updates like gradients: model − rate × mean(updates).
    """

    def __init__(self, features: Any, labels: Any) -> None:
        self.features = np.asarray(features, dtype=np.float64)
        self.labels = np.asarray(labels, dtype=np.float64)

    def update(self, model: Mapping[str, Any]) -> Mapping[str, Any]:
        scores = self.features @ model["weights"] + model["bias"]
        residuals = 1.0 / (1.0 + np.exp(-scores)) - self.labels
        return {
            "weights": residuals @ self.features / len(self.labels),
            "bias": residuals.mean(),
        }


def acceptable(campaign: Campaign) -> None:
    """Shown the sealed parameters before anything is sent; raises to decline."""
    if campaign.budget.epsilon > MOST_EPSILON:
        raise SystemExit(f"epsilon {campaign.budget.epsilon:g} is more than I agree to")


def main(url: str, state: str) -> None:
    view = fetch_campaign(url)
    names = {name: list(shape) for name, shape in view.shapes.items()}
    print(f"{view.campaign.name}: {view.timetable.slots} slots, a model of {names}")

    # Here are this person's rows, scaled by public constants; they never leave the device.
    [features] = view.shapes["weights"]
    rows = np.linspace(-1.0, 1.0, 2 * features).reshape(2, features)
    trainer = MyRows(rows, [0, 1])

    device = Participant(
        url=url,
        campaign=view.id,
        trainer=trainer,
        state=state,  # always the same folder: it is how the device knows that it took part
        seal=view.seal,
        accept=acceptable,
        journal=lambda story: print("  ", story["event"]),
    )
    outcome = device.run()
    print(f"{outcome.name.lower()}: {outcome}")
    if outcome is Outcome.REPORTED:
        print("What left this device was clipped, and made private before it left.")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} URL STATE")
    main(*sys.argv[1:])
