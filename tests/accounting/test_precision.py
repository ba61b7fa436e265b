"""A coarser precision takes less time and proves a larger bound, which is valid all the same."""

from __future__ import annotations

import pytest

from checkins.accounting import (
    Adjacency,
    Design,
    LocalRandomizer,
    Population,
    Precision,
    Protocol,
    certify,
    delta_at,
    epsilon_at,
)
from checkins.accounting.precision import Method, method_at
from tests.accounting.designs import at_client, at_server, local, roomy

DELTA = 1e-6
AT_SERVER, PURE = at_server(1.0, 50), local(1.0, 50, 0.5)
AVERAGED = at_client(2.0, 5, protocol=Protocol.AVERAGED, population=Population(100, 200))
ROOMY = roomy(0.1, 50, capacity=100, most=1000)


@pytest.mark.parametrize("design", [AT_SERVER, PURE], ids=["server", "pure"])
@pytest.mark.parametrize("campaigns", [1, 3])
def test_a_bound_at_any_precision_is_no_smaller_than_what_is_proved_too_small(
    design: Design, campaigns: int
) -> None:
    given = {"delta": DELTA, "adjacency": Adjacency.ADD_REMOVE, "campaigns": campaigns}
    certificate = certify(design, compare=False, **given)
    for precision in (Precision.DRAFT, Precision.FINEST):
        epsilon = epsilon_at(design, precision=precision, **given)
        assert certificate.epsilon_lower <= epsilon < 1.1 * certificate.epsilon
        assert delta_at(design, epsilon=epsilon, precision=precision, **given) <= DELTA


def test_a_client_that_hardly_ever_takes_part_spends_nothing() -> None:
    rare = Design(Protocol.FIXED, slots=5, participation=1e-7, randomizer=LocalRandomizer(1.0))
    given = {"delta": DELTA, "adjacency": Adjacency.REPLACE_ONE, "precision": Precision.DRAFT}
    assert delta_at(rare, epsilon=1e-9, **given) == 0.0


@pytest.mark.parametrize(
    ("design", "method"),
    [
        (AT_SERVER, Method.EXACT),
        (PURE, Method.EXACT),
        (AVERAGED, Method.NO_AMPLIFICATION),
        (ROOMY, Method.EXACT_POPULATION),
    ],
    ids=["server", "pure", "averaged", "roomy"],
)
def test_the_method_is_the_one_of_a_certificate(design: Design, method: Method) -> None:
    assert method_at(design, delta=DELTA) is method
    found = certify(design, delta=DELTA, adjacency=Adjacency.REPLACE_ONE, compare=False)
    assert found.method == str(method)
