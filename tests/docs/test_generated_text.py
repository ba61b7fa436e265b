"""Markdown that a command prints stands on a page without a fence, and is kept current."""

from __future__ import annotations

from tools import generated

COMMAND = "python -c 'print(\"| a | b |\")'"


def page(body: str) -> str:
    return (
        f"before\n\n<!-- generated text: {COMMAND} -->\n{body}<!-- end of generated text -->\nafter"
    )


def test_it_is_filled_between_its_markers() -> None:
    result = generated.refill(page(""))
    assert result.text == page("\n| a | b |\n\n")
    assert result.stale == (COMMAND,)
    assert generated.refill(result.text) == generated.Result(result.text, (), ())


def test_a_changed_line_is_stale() -> None:
    assert generated.refill(page("\n| a | c |\n\n")).stale == (COMMAND,)


def test_a_marker_without_its_end_is_an_error() -> None:
    assert generated.refill(f"<!-- generated text: {COMMAND} -->\n| a | b |\n").failed


def test_a_fenced_block_on_the_same_page_is_filled_too() -> None:
    fenced = "<!-- generated: python -c 'print(1)' -->\n```text\n```\n\n"
    result = generated.refill(fenced + page(""))
    assert "```text\n1\n```" in result.text
    assert "| a | b |" in result.text
    assert result.failed == ()
