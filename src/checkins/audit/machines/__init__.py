"""The audit by the real machines: what a coordinator and its devices run, many times over.

The compiled engine has the power to measure a certificate; this one has the bugs. Every run goes
through the machines of ``checkins.protocol``, the device sampler and the coordinator's dice, with
misfortunes in between, so whatever they do wrong shows in what the adversary sees.

    stage = stage_of(campaign)              # the campaign made small, and what that promises
    trials = stage.trials(2000)             # scores with and without the canary
    bounds = lower_bounds(trials, deltas=[stage.claim.delta], confidence=0.9999)
"""

from checkins.audit.machines.small import SmallCampaign, made_small
from checkins.audit.machines.stage import Stage, run_trials, stage_of

__all__ = ["SmallCampaign", "Stage", "made_small", "run_trials", "stage_of"]
