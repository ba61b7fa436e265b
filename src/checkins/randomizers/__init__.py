"""Randomizers, which make a report private: descriptions, and samplers for each environment.

The samplers of the compiled simulation are in ``checkins.randomizers.compiled``. Only that module
needs jax, so importing this package does not import jax.
"""

from checkins.accounting.privunit_cap import Cap
from checkins.randomizers.clipping import clip_l1, clip_l2
from checkins.randomizers.device import DeviceReport, DeviceSampler, NormBound
from checkins.randomizers.grid import Grid, NoDeviceSampler, variation
from checkins.randomizers.randomizer import (
    Gaussian,
    Laplace,
    PrivUnit,
    RandomizedResponse,
    Randomizer,
)
from checkins.randomizers.simulated import Simulated, simulate_dummies, simulate_reports

__all__ = [
    "Cap",
    "DeviceReport",
    "DeviceSampler",
    "Gaussian",
    "Grid",
    "Laplace",
    "NoDeviceSampler",
    "NormBound",
    "PrivUnit",
    "RandomizedResponse",
    "Randomizer",
    "Simulated",
    "clip_l1",
    "clip_l2",
    "simulate_dummies",
    "simulate_reports",
    "variation",
]
