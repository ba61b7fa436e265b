"""What is promised: an (epsilon, delta) with its proof, its assumptions and its neighbours.

The object ``Certificate.as_dict()`` is what every command prints with ``--json``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from checkins.accounting.against_server import AgainstServer
from checkins.accounting.design import Adjacency
from checkins.formatting import finite

UNIT = "one client's whole contribution"
ROUNDING = "epsilon is rounded up, epsilon_lower down"
OF_DESIGN = "this design"
OF_SOME_RANDOMIZER = "some randomizer with this local epsilon"
"""What the lower end of an interval is true of. The dummies of named randomizers are closer to
every report than local epsilon asks: less may be true of them."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """What another method says of the same design.

    ``proves`` is False for methods that price another protocol, shown for comparison.
    """

    method: str
    epsilon: float
    note: str
    proves: bool

    def as_dict(self) -> dict[str, object]:
        return {
            "method": self.method,
            "epsilon": finite(self.epsilon),
            "note": self.note,
            "proves": self.proves,
        }


@dataclass(frozen=True, slots=True)
class Certificate:
    """The smallest epsilon proven, the largest proven too small, and how we know.

    ``epsilon_lower_of`` says what no epsilon below ``epsilon_lower`` is true of.
    """

    epsilon: float
    epsilon_lower: float
    delta: float
    adjacency: Adjacency
    method: str
    assumptions: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    campaigns: int = 1
    epsilon_lower_of: str = OF_DESIGN
    against_server: AgainstServer | None = None
    """What holds if the server is not trusted; None if it was not computed."""
    curious: int = 0
    """How many clients may disclose what they see."""
    variation: float = 0.0
    """Between what runs and a function of the design's releases, all of them; paid for in delta.
    The lower end of the interval is about the design."""
    seconds: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON; an epsilon that could not be bounded is null."""
        return {
            "epsilon": finite(self.epsilon),
            "epsilon_lower": finite(self.epsilon_lower),
            "epsilon_lower_of": self.epsilon_lower_of,
            "delta": self.delta,
            "adjacency": str(self.adjacency),
            "unit": UNIT,
            "method": self.method,
            "rounding": ROUNDING,
            "campaigns": self.campaigns,
            "curious": self.curious,
            "variation": self.variation,
            "against_server": None
            if self.against_server is None
            else self.against_server.as_dict(),
            "assumptions": list(self.assumptions),
            "alternatives": [alternative.as_dict() for alternative in self.alternatives],
            "seconds": round(self.seconds, 3),
            "versions": dict(self.versions),
        }
