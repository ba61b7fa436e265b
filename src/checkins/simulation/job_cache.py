"""What is kept of a job: its outcome once it is done, a checkpoint until then."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from checkins.simulation.checkpoint import Checkpoint, arrays_of, write_arrays
from checkins.simulation.evaluation import Point
from checkins.simulation.outcome import Outcome


@dataclass(frozen=True, slots=True)
class JobCache:
    """The files of one job in a folder, found by its key."""

    folder: Path
    key: str

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.folder / f"{self.key}.checkpoint.npz")

    def outcome(self) -> Outcome | None:
        path = self.folder / f"{self.key}.npz"
        if not path.exists():
            return None
        with arrays_of(path) as arrays:
            about, model = json.loads(str(arrays["about"])), arrays["model"]
        curve = tuple(Point(point["slots"], point["metrics"]) for point in about.pop("curve"))
        contributors = tuple(about.pop("contributors"))
        return Outcome(**about, contributors=contributors, curve=curve, model=model)

    def write(self, outcome: Outcome) -> None:
        about = {
            name: getattr(outcome, name)
            for name in outcome.__dataclass_fields__
            if name not in ("model", "curve")
        }
        about["curve"] = [
            {"slots": point.slots, "metrics": point.metrics} for point in outcome.curve
        ]
        write_arrays(self.folder / f"{self.key}.npz", about, {"model": outcome.model})
        self.checkpoint.remove()
