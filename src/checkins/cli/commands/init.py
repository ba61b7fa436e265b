"""`checkins init`: write a commented campaign file to start from."""

from __future__ import annotations

from typing import Annotated

import typer

from checkins.cli import params, terminal
from checkins.cli.params import Texts, text

TASKS = "patients|fashion-mnist|synthetic|file"
NAME = "campaign.toml"
PRINT = "-"

Task = Annotated[Texts, text("--task", TASKS, "What is learned. Default patients.")]
Out = Annotated[Texts, text("--out", "FILE", f"The file to write; - prints it. Default {NAME}.")]


def init(
    context: typer.Context,
    task: Task = None,
    out: Out = None,
    force: params.Force = False,
    json: params.Json = False,
) -> None:
    """Write a commented campaign file to start from.

    The file is valid and within its budget; choose the values marked (choose) before any client
    takes part. An existing file is not overwritten without --force.
    """
    given = params.GivenOptions.of(context)
    from checkins.campaign import parse_campaign
    from checkins.campaign.templates import Template, template_text

    with given.naming_options():
        template = params.choice("task", given.texts.get("task", "patients"), Template)
    content = template_text(template)
    place = given.texts.get("out", NAME)
    if place != PRINT:
        terminal.write_new(place, content, force=force)
    if json:
        terminal.show_json(
            {
                "task": str(template),
                "path": None if place == PRINT else place,
                "seal": parse_campaign(content).campaign.seal,
                "text": content,
            }
        )
    elif place == PRINT:
        print(content, end="")
    else:
        terminal.show_plain(f"Wrote {place}. Choose the values marked (choose), then:")
        terminal.show_plain(f"  checkins check {place}")
