"""How to spend a budget: from a population, a budget and what devices can do to a campaign.

Ask a ``Question``; ``make_plan`` searches designs, proves what it shows, and returns a ``Plan``
with a recommended campaign, the designs beside it, and why.
"""

from checkins.planning.learning import Learning
from checkins.planning.plan import Plan, make_plan
from checkins.planning.priced import PricedDesign
from checkins.planning.question import Constraints, Devices, Question, Server

__all__ = [
    "Constraints",
    "Devices",
    "Learning",
    "Plan",
    "PricedDesign",
    "Question",
    "Server",
    "make_plan",
]
