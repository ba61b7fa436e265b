"""The device for browsers and the Python device compute the same, bit for bit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tools import vectors

if TYPE_CHECKING:
    from tests.support.browser import Page

COMPARE = """async ([topic, vectors]) => {
  const { differences } = await import("/vectors.js");
  return differences(topic, vectors);
}"""
TOPICS = [topic.__name__ for topic in vectors.TOPICS]


def test_the_vectors_are_what_python_computes() -> None:
    assert vectors.stale() == []


@pytest.mark.parametrize("topic", TOPICS)
def test_the_browser_computes_what_python_does(page: Page, topic: str) -> None:
    found = json.loads((vectors.FOLDER / f"{topic}.json").read_text(encoding="utf-8"))
    assert len(found) >= 4
    assert page.evaluate(COMPARE, [topic, found]) == []


def test_a_vector_that_is_wrong_is_noticed(page: Page) -> None:
    wrong = json.loads((vectors.FOLDER / "noise.json").read_text(encoding="utf-8"))[:1]
    wrong[0]["first"][3] += 1
    assert len(page.evaluate(COMPARE, ["noise", wrong])) == 1


VERDICT = """async (body) => {
  const { parseView } = await import("/client.js");
  try {
    return [...Object.keys((await parseView(new TextEncoder().encode(body))).shapes)];
  } catch (error) {
    return error.constructor.name;
  }
}"""


@pytest.mark.parametrize(
    ("names", "verdict"),
    [
        (("weights", "bias"), ["weights", "bias"]),
        (("__proto__", "bias"), ["__proto__", "bias"]),
        (("2", "10"), ["2", "10"]),
        (("10", "2"), "CampaignRefused"),  # JavaScript would put "2" first
        (("bias", "bias"), "CampaignRefused"),
    ],
)
def test_tensors_keep_their_order_or_are_refused(
    page: Page, names: tuple[str, str], verdict: object
) -> None:
    views = json.loads((vectors.FOLDER / "views.json").read_text(encoding="utf-8"))
    view = json.loads(views[0]["body"])
    view["tensors"] = [{"name": name, "shape": [7]} for name in names]
    view["dimension"] = 7 * len(set(names))
    assert page.evaluate(VERDICT, json.dumps(view)) == verdict
