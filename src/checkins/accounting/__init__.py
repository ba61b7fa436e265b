"""What a run costs: from a description to a certificate, and back.

Describe a campaign as a ``Design``; ``certify`` returns the smallest epsilon that is provably true
of it, ``calibrate`` the parameter that meets a target, ``loss_distribution`` hands it to
dp_accounting. The mathematics is in the modules beside this file, one noun each.
"""

from checkins.accounting.accountant import (
    METHODS,
    certify,
    certify_heterogeneous,
    loss_distribution,
)
from checkins.accounting.calibration import Calibration, Parameter, calibrate
from checkins.accounting.certificate import Alternative, Certificate
from checkins.accounting.design import (
    Adjacency,
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Population,
    Protocol,
)

__all__ = [
    "METHODS",
    "Adjacency",
    "Alternative",
    "Calibration",
    "Certificate",
    "Design",
    "GaussianNoise",
    "LocalRandomizer",
    "NoiseAt",
    "Parameter",
    "Population",
    "Protocol",
    "calibrate",
    "certify",
    "certify_heterogeneous",
    "loss_distribution",
]
