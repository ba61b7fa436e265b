"""Audit the real state machines of a coordinator and its devices, over thousands of runs.

The compiled engine has the power to measure a certificate; this engine finds bugs. Every run uses
the state machines of ``checkins.protocol``, the device sampler and the coordinator's randomness,
with injected faults, so their errors show in what the adversary observes.

    audit = prepare_audit(made_small(campaign))   # the small form and its certificate
    trials = audit.trials(2000)                   # scores with and without the canary
    bounds = lower_bounds(trials, deltas=[audit.claim.delta], confidence=0.9999)
"""

from checkins.audit.machines.machine_audit import MachineAudit, prepare_audit, run_trials
from checkins.audit.machines.small_campaigns import SmallCampaign, made_small

__all__ = ["MachineAudit", "SmallCampaign", "made_small", "prepare_audit", "run_trials"]
