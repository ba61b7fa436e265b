"""Attacks that must fail: what an adversary measures, held against what a certificate promises.

``audit_campaign`` plays every attack that fits a campaign and returns an ``Audit``. An engine of
one's own makes ``Trials`` and asks ``lower_bounds`` what they prove.
"""

from checkins.audit.auditing import Attacks, Engine, Settings, audit_campaign
from checkins.audit.bounds import Direction, MeasuredBound, lower_bounds
from checkins.audit.report import Audit
from checkins.audit.trials import Trials
from checkins.audit.verdict import Finding, Promise, Verdict

__all__ = [
    "Attacks",
    "Audit",
    "Direction",
    "Engine",
    "Finding",
    "MeasuredBound",
    "Promise",
    "Settings",
    "Trials",
    "Verdict",
    "audit_campaign",
    "lower_bounds",
]
