"""`checkins init`: a commented campaign file to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from checkins.cli import options, screen
from checkins.cli.failures import Refused, quoted

TASKS = "patients|fashion-mnist|synthetic|file"
NAME = "campaign.toml"
PRINT = "-"

Task = Annotated[
    options.Texts, options.text("--task", TASKS, "What is learned. Without it: patients.")
]
Out = Annotated[
    options.Texts,
    options.text("--out", "FILE", f"Where to write it; - prints it. Without it: {NAME}."),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite a file that exists.")]


def init(
    context: typer.Context,
    task: Task = None,
    out: Out = None,
    force: Force = False,
    json: options.Json = False,
) -> None:
    """Write a commented campaign file to start from.

    It keeps its budget as it stands; the values marked (choose) are yours to choose before anyone
    takes part. An existing file is never overwritten without --force.
    """
    given = options.Given.of(context)
    from checkins.campaign import parse_campaign
    from checkins.campaign.templates import Template, template_text
    from checkins.cli import values

    with given.in_own_words():
        template = values.one_of("task", given.texts.get("task", "patients"), Template)
    text = template_text(template)
    place = given.texts.get("out", NAME)
    if place != PRINT:
        write_new(place, text, force=force)
    if json:
        screen.show_json(
            {
                "task": str(template),
                "path": None if place == PRINT else place,
                "seal": parse_campaign(text).campaign.seal,
                "text": text,
            }
        )
    elif place == PRINT:
        print(text, end="")
    else:
        screen.show_plain(f"Wrote {place}. Choose the values marked (choose), then:")
        screen.show_plain(f"  checkins check {place}")


def write_new(place: str, text: str, *, force: bool) -> None:
    try:
        if Path(place).is_dir():
            raise Refused(f"--out {place}: is a folder; name a file in it")
        with Path(place).open("w" if force else "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        raise Refused(f"--out {place}: exists already; --force overwrites it") from None
    except ValueError:
        raise Refused(f"--out {quoted(place)}: is not the name of a file") from None
