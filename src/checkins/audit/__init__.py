"""Empirical privacy auditing: measured lower bounds on epsilon, compared with certificates.

``audit_campaign`` runs every attack that fits a campaign and returns an ``Audit``. If you simulate
the protocol with your own code, put the scores into ``Trials`` and call ``lower_bounds``.
"""

from checkins.audit.audit import Attacks, Engine, Settings, audit_campaign
from checkins.audit.bounds import Direction, MeasuredBound, Trials, lower_bounds
from checkins.audit.report import AttackResult, Audit, CertificateCheck, Verdict

__all__ = [
    "AttackResult",
    "Attacks",
    "Audit",
    "CertificateCheck",
    "Direction",
    "Engine",
    "MeasuredBound",
    "Settings",
    "Trials",
    "Verdict",
    "audit_campaign",
    "lower_bounds",
]
