"""A design with its noise and the proof that it keeps a target: one row of a plan."""

from __future__ import annotations

from dataclasses import dataclass

from checkins.accounting import NoiseAt, Protocol
from checkins.campaign import RandomizerKind
from checkins.planning.candidate import DesignCandidate
from checkins.planning.metrics import EFFECTIVE_NOISE, Figures, figures, theorem_risk
from checkins.planning.question import ALL, Question
from checkins.planning.target import Target


@dataclass(frozen=True, slots=True)
class PricedDesign:
    """A shape, the noise multiplier or local epsilon it runs at, and what that is worth.

    ``epsilon`` is a proven upper bound at the target's delta: the target's own, or a certificate's.
    """

    shape: DesignCandidate
    level: float
    epsilon: float
    target: Target
    figures: Figures
    question: Question

    @classmethod
    def of(
        cls, shape: DesignCandidate, level: float, target: Target, question: Question
    ) -> PricedDesign:
        """A design whose level was proven to keep the target."""
        worth = figures(shape, level, question)
        return cls(shape, level, target.epsilon, target, worth, question)

    @property
    def load(self) -> float:
        """Expected bytes that one client uploads, over all runs."""
        return self.figures.turnout.upload_bytes_per_client(self.shape)

    @property
    def axes(self) -> tuple[float, float, float, float]:
        """Proxy, epsilon, time and load: less is better."""
        return self.figures.proxy, self.epsilon, self.figures.duration_s, self.load

    @property
    def can_run(self) -> bool:
        """Whether devices can run it: PrivUnit has no exact sampler and can only be simulated."""
        return self.shape.randomizer is not RandomizerKind.PRIVUNIT

    @property
    def capacity(self) -> int | str | None:
        if self.shape.protocol is Protocol.AVERAGED:
            return None
        return ALL if self.shape.capacity is None else self.shape.capacity

    @property
    def label(self) -> str:
        """A few words for a legend.

        ``fixed, 200 slots, server``: what differs between the rows of a plan.
        """
        shape = self.shape
        words = [str(shape.protocol)]
        runs = f"{shape.repeats:,} x " if shape.repeats > 1 else ""
        words.append(f"{runs}{shape.slots:,} slot{'' if shape.slots == 1 else 's'}")
        if shape.window is not None:
            words.append(f"window {shape.window:,}")
        if shape.participation < 1.0:
            words.append(f"p {shape.participation:g}")
        words.append(str(shape.noise_at) if shape.is_gaussian else str(shape.randomizer))
        return ", ".join(words)

    def as_dict(self) -> dict[str, object]:
        shape, worth, seen = self.shape, self.figures, self.figures.turnout
        proved = theorem_risk(shape, self.level, self.question)
        return {
            "label": self.label,
            "protocol": str(shape.protocol),
            "slots": shape.slots,
            "participation": shape.participation,
            "capacity": self.capacity,
            "window": shape.window,
            "minibatch": shape.minibatch,
            "repeats": shape.repeats,
            "noise_at": str(shape.noise_at),
            "randomizer": str(shape.randomizer),
            "noise_multiplier": self.level if shape.is_gaussian else None,
            "local_epsilon": None if shape.is_gaussian else self.level,
            "epsilon": self.epsilon,
            "delta": self.target.delta,
            "adjacency": str(self.target.adjacency),
            "method": str(self.target.method(shape)),
            "rounding": "epsilon is rounded up",
            "proxy": worth.proxy,
            "proxy_kind": EFFECTIVE_NOISE,
            "theorem_risk": None if proved is None else proved.risk,
            "theorem": None if proved is None else proved.theorem,
            "noise_per_step": worth.noise_per_step,
            "steps": worth.steps,
            "clients_per_step": worth.clients_per_step,
            "dummies_share": seen.dummies_share,
            "duration_s": seen.duration_s,
            "slot_s": seen.slot_s,
            "upload_bytes_per_client": self.load,
            "share_of_clients_that_upload": seen.share_that_uploads(shape),
            "server_updates_per_s": seen.server_updates_per_s,
            "can_run_on_devices": self.can_run,
        }


def at_server(shape: DesignCandidate) -> bool:
    """Whether the noise is added once, to the sum of a slot."""
    return shape.is_gaussian and shape.noise_at is NoiseAt.SERVER
