"""Compare the paper's bound with the exact epsilon and its lower bound (delta = 1e-6)."""

from __future__ import annotations

from bench.measure import Section
from checkins.accounting import (
    Adjacency,
    Certificate,
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Protocol,
    certify,
)

PURE = ((1.0, 1000, 1.0), (1.0, 10_000, 0.1), (2.0, 1000, 1.0), (4.0, 1000, 1.0), (4.0, 10**5, 1.0))
SERVER = ((1.0, 10), (1.0, 100), (2.0, 1000))
SEEN = {  # published: exact add/remove, replace-one upper and lower bounds
    (1.0, 1000, 1.0): (0.1266, 0.1487, 0.1306),
    (1.0, 10_000, 0.1): (0.0029, 0.0035, 0.0031),
    (2.0, 1000, 1.0): (0.3233, 0.3971, 0.3720),
    (4.0, 1000, 1.0): (1.691, 1.853, 1.797),
    (4.0, 10**5, 1.0): (0.0847, 0.1182, 0.1171),
    (1.0, 10): (2.652, 3.466),
    (1.0, 100): (0.858, 0.954),
    (2.0, 1000): (0.0592, 0.0613),
}


def _price(design: Design, adjacency: Adjacency) -> Certificate:
    return certify(design, delta=1e-6, adjacency=adjacency)


def _by(certificate: Certificate, method: str) -> float:
    return next(one.epsilon for one in certificate.alternatives if one.method == method)


def table() -> Section:
    rows, holds = [], True
    for case in PURE:
        local_epsilon, slots, participation = case
        design = Design(
            Protocol.FIXED,
            slots=slots,
            participation=participation,
            randomizer=LocalRandomizer(local_epsilon),
        )
        add, replace = _price(design, Adjacency.ADD_REMOVE), _price(design, Adjacency.REPLACE_ONE)
        found = (add.epsilon, replace.epsilon, replace.epsilon_lower)
        holds = holds and all(_near(a, b) for a, b in zip(found, SEEN[case], strict=True))
        rows.append(
            [
                f"eps0 {local_epsilon:g}, p0 {participation:g}",
                f"{slots:,}",
                f"{_by(add, 'paper'):.4g}",
                f"{add.epsilon:.4g}",
                f"{replace.epsilon:.4g} / {replace.epsilon_lower:.4g}",
                f"{_by(add, 'poisson'):.4g}",
            ]
        )
    for server in SERVER:
        noise, slots = server
        gaussian = GaussianNoise(noise, NoiseAt.SERVER)
        design = Design(Protocol.FIXED, slots=slots, participation=1.0, randomizer=gaussian)
        add, replace = _price(design, Adjacency.ADD_REMOVE), _price(design, Adjacency.REPLACE_ONE)
        found = (add.epsilon, _by(add, "poisson"))
        holds = holds and all(_near(a, b) for a, b in zip(found, SEEN[server], strict=True))
        rows.append(
            [
                f"sigma {noise:g} at the server",
                f"{slots:,}",
                "-",
                f"{add.epsilon:.4g}",
                f"{replace.epsilon:.4g} / {replace.epsilon_lower:.4g}",
                f"{_by(add, 'poisson'):.4g}",
            ]
        )
    return Section(
        "The paper's bound and the exact epsilon (delta 1e-6)",
        "Equal to the published values up to their rounding and half a percent.",
        holds,
        ("randomizer", "slots", "paper", "exact add/remove", "replace-one / lower", "Poisson"),
        rows,
    )


def _near(found: float, seen: float) -> bool:
    digits = 0.5 * 10.0 ** -len(f"{seen:.4f}".split(".")[1].rstrip("0"))
    return abs(found - seen) <= digits + 0.005 * seen
