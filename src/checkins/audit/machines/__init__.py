"""Audit the real state machines of a coordinator and its devices, over thousands of runs.

The compiled engine is fast enough to measure an epsilon close to the certified one. This engine is
slower, and finds bugs in the implementation. Every run uses the state machines of
``checkins.protocol``, the device sampler and the coordinator's source of randomness, and injects
faults such as crashes and repeated messages.

    audit = prepare_audit(made_small(campaign))   # a smaller campaign and its certificate
    trials = audit.trials(2000)                   # scores with and without the canary
    bounds = lower_bounds(trials, deltas=[audit.claim.delta], confidence=0.9999)
"""

from checkins.audit.machines.machine_audit import MachineAudit, prepare_audit, run_trials
from checkins.audit.machines.small_campaigns import SmallCampaign, made_small

__all__ = ["MachineAudit", "SmallCampaign", "made_small", "prepare_audit", "run_trials"]
