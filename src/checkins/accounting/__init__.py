"""The privacy accountant: the epsilon of a campaign, or the parameters that meet a target.

Describe a campaign as a ``Design``. ``certify`` returns the smallest epsilon that is proved for it.
``calibrate`` finds the value of one parameter that meets a target. ``delta_at`` and ``epsilon_at``
are faster and less precise, for callers that try many designs. ``loss_distribution`` returns
dp_accounting's privacy loss distribution, and the module ``interop`` exchanges other objects with
that library. The package ``exact`` holds the exact accountant, and ``paper`` holds the bounds as
the paper states them.

Except for the description of a campaign, everything needs scipy and is imported on first use:
devices read descriptions, but compute no epsilon.
"""

from typing import TYPE_CHECKING

from checkins.accounting.design import (
    Adjacency,
    Design,
    GaussianNoise,
    LaplaceReports,
    LocalRandomizer,
    NoiseAt,
    Population,
    PrivUnitReports,
    Protocol,
    RandomizedResponseReports,
    WakeTimes,
)
from checkins.accounting.noise_strategy import NoiseStrategy
from checkins.optional_imports import exports_on_first_use

if TYPE_CHECKING:
    from checkins.accounting.accountant import (
        METHODS,
        certify,
        certify_heterogeneous,
        loss_distribution,
    )
    from checkins.accounting.calibration import Calibration, Parameter, calibrate
    from checkins.accounting.certificate import Alternative, Certificate
    from checkins.accounting.precision import Precision, delta_at, epsilon_at
    from checkins.accounting.random_allocation import (
        RandomAllocation,
        StepDraw,
        certify_random_allocation,
    )

__all__ = [
    "METHODS",
    "Adjacency",
    "Alternative",
    "Calibration",
    "Certificate",
    "Design",
    "GaussianNoise",
    "LaplaceReports",
    "LocalRandomizer",
    "NoiseAt",
    "NoiseStrategy",
    "Parameter",
    "Population",
    "Precision",
    "PrivUnitReports",
    "Protocol",
    "RandomAllocation",
    "RandomizedResponseReports",
    "StepDraw",
    "WakeTimes",
    "calibrate",
    "certify",
    "certify_heterogeneous",
    "certify_random_allocation",
    "delta_at",
    "epsilon_at",
    "loss_distribution",
]

if not TYPE_CHECKING:
    __getattr__ = exports_on_first_use(
        __name__,
        __all__,
        *("accountant", "calibration", "certificate", "precision", "random_allocation"),
    )
