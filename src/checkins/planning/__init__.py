"""Plan a campaign for a population, a privacy budget, and the capabilities of devices and server.

``make_plan`` takes a ``Question``, searches designs, proves the epsilon of those it shows, and
returns a ``Plan``: a recommended campaign, a Pareto front of designs, and reasons.
"""

from checkins.planning.cost_model import CalibratedDesign
from checkins.planning.plan import Plan, make_plan
from checkins.planning.question import Constraints, Devices, Learning, Question, Server

__all__ = [
    "CalibratedDesign",
    "Constraints",
    "Devices",
    "Learning",
    "Plan",
    "Question",
    "Server",
    "make_plan",
]
