"""What service and client exchange is declared once, and is what the service publishes."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.protocol import wire
from tools import api


@pytest.fixture(scope="module")
def published() -> dict[str, Any]:
    return api.document()


@pytest.mark.parametrize("shape", wire.SHAPES, ids=lambda shape: shape.__name__)
def test_a_shape_has_the_keys_that_the_service_publishes(
    shape: Any, published: dict[str, Any]
) -> None:
    schema = published["components"]["schemas"][shape.__name__]
    assert get_type_hints(shape).keys() == schema["properties"].keys()


def test_every_path_is_one_that_the_service_publishes(published: dict[str, Any]) -> None:
    paths = {value for name, value in vars(wire).items() if name.endswith("_PATH")}
    assert len(paths) == 12
    assert paths <= published["paths"].keys()


@given(moment=st.floats(0.0, 4e9))
def test_a_time_reads_back_to_the_microsecond(moment: float) -> None:
    assert wire.parse_time(wire.format_time(moment)) == pytest.approx(moment, abs=2e-6)


def test_a_time_without_an_offset_is_refused() -> None:
    with pytest.raises(ValueError, match="offset"):
        wire.parse_time("2030-01-01T00:00:00")
