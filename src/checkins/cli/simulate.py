"""`checkins simulate`: what a campaign would learn and cost, before any device is touched."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from checkins.cli import options, screen
from checkins.cli.failures import INTERRUPTED, Refused, quoted
from checkins.cli.options import Given, Texts, text
from checkins.cli.simulate_study import study_of, whole

if TYPE_CHECKING:
    from checkins.simulation.result import SimulationResult, SweepResult
    from checkins.simulation.study import PreparedStudy

PATIENCE_S = 5.0

File = Annotated[str, typer.Argument(metavar="CAMPAIGN.TOML", show_default=False)]
Data = Annotated[
    Texts, text("--data", "FILE", "A CSV or Parquet file in place of the campaign's data.")
]
ClientColumn = Annotated[
    Texts, text("--client-column", "C", "Its column that says whose a row is.")
]
LabelColumn = Annotated[Texts, text("--label-column", "Y", "Its column of labels 0, 1, 2, ...")]
Holdout = Annotated[
    Texts, text("--holdout", "SHARE", "The share of its clients that is public, to test on.")
]
Seeds = Annotated[Texts, text("--seeds", "N", "How often, each from a seed of its own. Default 1.")]
Seed = Annotated[Texts, text("--seed", "S", "The first seed. Default 1.")]
Baselines = Annotated[
    Texts,
    text(
        "--baselines",
        "all|NAME,NAME",
        "Compare at the same epsilon and delta with non-private, poisson, shuffling,"
        " no-amplification.",
    ),
]
Sweep = Annotated[
    Texts,
    text("--sweep", "KEY=V,V", "Try several values of a key of the file, such as protocol.slots."),
]
Clients = Annotated[
    Texts, text("--clients", "N", "How many clients there are. Default: those of the data.")
]
Reuse = Annotated[
    bool,
    typer.Option("--reuse-clients", help="Let several clients hold the same rows of the data."),
]
Availability = Annotated[
    Texts,
    text(
        "--availability",
        "always|diurnal:P:LOW|arrivals:M",
        "Who is online at its slot: everyone; a share that falls to LOW and rises again every P"
        " slots; those who have enrolled, evenly over M slots. Default always.",
    ),
]
Dropout = Annotated[
    Texts, text("--dropout", "P", "Chance that a chosen client never reports. Default 0.")
]
Evaluations = Annotated[
    Texts, text("--evaluations", "N", "How often the model is measured on the way. Default 50.")
]
Workers = Annotated[
    Texts, text("--workers", "N", "Processes to run side by side. Default: one for each core.")
]
Ray = Annotated[bool, typer.Option("--ray", help="Run on a Ray cluster, or a local one.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with what --out DIR holds of the same simulation.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Save report.html, result.json and the models there.",
        show_default=False,
    ),
]


def simulate(
    context: typer.Context,
    file: File,
    data: Data = None,
    client_column: ClientColumn = None,
    label_column: LabelColumn = None,
    holdout: Holdout = None,
    seeds: Seeds = None,
    seed: Seed = None,
    baselines: Baselines = None,
    sweep: Sweep = None,
    clients: Clients = None,
    reuse_clients: Reuse = False,
    availability: Availability = None,
    dropout: Dropout = None,
    evaluations: Evaluations = None,
    workers: Workers = None,
    ray: Ray = False,
    resume: Resume = False,
    out: Out = None,
    json: options.Json = False,
) -> None:
    """Run a campaign on a virtual clock, with seeded randomness: nothing private comes of it.

    Ctrl-C stops after the slots under way and shows what there is; with --out, --resume goes on
    from there. Exit code 130 after Ctrl-C.
    """
    axes = sweep or []
    given = Given.of(context, several=("sweep",))
    if resume and out is None:
        raise Refused("--resume: needs --out DIR, where the simulation was kept")
    processes = whole(given, "workers", default=0)
    if ray:
        _check_ray()
    with screen.working("loading the data and pricing the campaign", quiet=json):
        prepared = study_of(given, file, axes, reuse=reuse_clients).prepared()
    keep = None if out is None else _kept(out, prepared, resume=resume)
    with _stopping_at_once():
        try:
            with _progress(prepared, quiet=json) as watch:
                outcomes = prepared.run(
                    processes=processes or _processes(prepared), ray=ray, cache=keep, watch=watch
                )
            with screen.working("working out the certificate", quiet=json):
                result = prepared.result(outcomes)
        finally:
            prepared.close()
        if result is not None:
            command = shlex.join(["checkins", *_arguments(context)])
            _shown(replace(result, command=command), prepared, out, outcomes, file=file, json=json)
    if not all(outcome is not None and outcome.complete for outcome in outcomes):
        again = " Go on with --resume." if out is not None else ""
        print(f"checkins: interrupted before the end.{again}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)


@contextmanager
def _stopping_at_once() -> Iterator[None]:
    """A Ctrl-C that nobody takes as a wish to stop soon: one line, and deaf to further ones.

    Where SIGINT was ignored when the program was started, as in a background job, it stays ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    since: list[float] = []

    def stop(*_: object) -> None:
        if not since:
            since.append(time.monotonic())
            raise KeyboardInterrupt
        if time.monotonic() - since[0] > PATIENCE_S:  # the way out hangs
            os._exit(INTERRUPTED)

    try:
        before = signal.signal(signal.SIGINT, stop)
    except ValueError:  # not the main thread, where no signal arrives
        yield
        return
    try:
        yield
    except KeyboardInterrupt:
        if not since:
            raise
        print("checkins: stopped at once; nothing of the slots under way was kept", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        if not since:  # the process ends
            signal.signal(signal.SIGINT, before)


def _arguments(context: typer.Context) -> list[str]:
    """What was typed, as far as it decides the result."""
    words = ["simulate"]
    for parameter in context.command.params:
        value = context.params[parameter.name or ""]
        if parameter.name in ("json", "out", "resume", "workers", "ray") or not value:
            continue
        if parameter.name == "file":
            words.append(str(value))
        elif isinstance(value, bool):
            words.append(parameter.opts[0])
        else:
            words += [word for each in value for word in (parameter.opts[0], str(each))]
    return words


def _check_ray() -> None:
    from checkins.errors import InvalidValue
    from checkins.simulation.workers import require_ray

    try:
        require_ray()
    except InvalidValue as error:
        raise Refused(f"--ray: {error.expected}") from error


def _processes(prepared: PreparedStudy) -> int:
    """One for each core; a GPU, and features that take long to compute, are for one process."""
    import jax

    shared = any(job.task.features is not None for job in prepared.jobs)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return 1 if shared or jax.default_backend() != "cpu" else max(1, cores or 1)


def _kept(out: Path, prepared: PreparedStudy, *, resume: bool) -> Path:
    """Where what was done is kept; a new simulation begins with an empty place."""
    keep = out / "kept"
    keys = {job.key for job in prepared.jobs}
    if resume and not any(path.name.split(".")[0] in keys for path in keep.glob("*.npz")):
        raise Refused(
            f"--resume: {quoted(out)} holds nothing of this simulation: it is found by the same"
            " file, data and options; without --resume it begins anew"
        )
    try:
        keep.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=keep):
            pass
        for path in () if resume else [*keep.glob("*.npz"), *keep.glob("*.part")]:
            path.unlink()
    except OSError as error:
        raise Refused(f"--out {quoted(out)}: cannot be written: {error.strerror}") from error
    return keep


@contextmanager
def _progress(prepared: PreparedStudy, *, quiet: bool) -> Iterator[Callable[..., None] | None]:
    """A bar for each job on standard error, for people at a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet or not sys.stderr.isatty() or console.is_dumb_terminal:
        yield None
        return
    from checkins.cli.simulate_words import progress_bars

    with progress_bars(prepared, console) as watch:
        yield watch


def _shown(
    result: SimulationResult | SweepResult,
    prepared: PreparedStudy,
    out: Path | None,
    outcomes: Any,
    *,
    file: str,
    json: bool,
) -> None:
    from checkins.cli import simulate_words

    try:
        saved = None if out is None else simulate_words.save(result, prepared, outcomes, out)
    finally:  # what was simulated is shown, whatever becomes of its files
        if json:
            screen.show_json(result.as_json())
        else:
            screen.show(*simulate_words.result_parts(result.as_json(), file=file))
    if saved is not None and not json:
        screen.show_plain(f"Saved: {saved}")
