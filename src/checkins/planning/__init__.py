"""Plan a campaign for a population, a privacy budget, and the capabilities of devices and server.

``make_plan`` takes a ``Question`` and searches designs. It returns a ``Plan`` with a recommended
campaign, a Pareto front of designs, and reasons. Every epsilon in the plan is proved.
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
