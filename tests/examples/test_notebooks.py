"""The notebooks run without marimo's server, and their pages show what they print."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import notebooks

pytestmark = pytest.mark.slow

TRAINED = "for_researchers"
"""The notebook whose outputs contain trained models, which differ in digits between processors."""


@pytest.mark.parametrize("notebook", notebooks.NOTEBOOKS, ids=lambda path: path.stem)
def test_a_page_shows_the_text_the_code_and_the_outputs_of_its_notebook(notebook: Path) -> None:
    outputs = notebooks.run(notebook)
    kept = (notebooks.PAGES / f"{notebook.stem}.md").read_text(encoding="utf-8")
    assert notebooks.is_current(notebook), "run make docs"
    assert notebook.stem == TRAINED or notebooks.page(notebook, outputs) == kept, "run make docs"


def test_a_changed_notebook_is_noticed(tmp_path: Path) -> None:
    original = notebooks.NOTEBOOKS[0]
    changed = tmp_path / original.name
    changed.write_text(original.read_text(encoding="utf-8").replace("100", "101"))
    assert notebooks.is_current(original)
    assert not notebooks.is_current(changed)
