"""Take part in a campaign with your own trainer.

    checkins serve examples/patients.toml --start +60        # on the server
    python examples/device.py http://127.0.0.1:8470 state-of-this-device

You write `Trainer.update`, which computes an update from the model, with numpy or another library.
The participant draws its slot, sleeps until the slot, checks in, clips the update, adds the noise
that the campaign declares, and reports at most once. After a crash, run the same command again.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from checkins.campaign import Campaign
from checkins.client import Outcome, Participant, fetch_campaign

MOST_EPSILON = 8.0
"""This device does not take part in a campaign with a larger budget."""


class MyRows:
    """The gradient of the mean loss of logistic regression on the rows of one person.

    The server treats updates as gradients. The next model is model − rate × mean(updates).
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
    """Raise to decline the campaign. It is called before anything is sent."""
    if campaign.budget.epsilon > MOST_EPSILON:
        raise SystemExit(f"epsilon {campaign.budget.epsilon:g} is more than I agree to")


def main(url: str, state: str) -> None:
    view = fetch_campaign(url)
    names = {name: list(shape) for name, shape in view.shapes.items()}
    print(f"{view.campaign.name}: {view.run_schedule.slots} slots, a model of {names}")

    # This person's rows, scaled by public constants. They never leave the device.
    [features] = view.shapes["weights"]
    rows = np.linspace(-1.0, 1.0, 2 * features).reshape(2, features)
    trainer = MyRows(rows, [0, 1])

    device = Participant(
        url=url,
        campaign=view.id,
        trainer=trainer,
        state=state,  # use the same folder each time: it records that the device took part
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
