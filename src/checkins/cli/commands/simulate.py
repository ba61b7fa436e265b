"""`checkins simulate`: train on simulated clients and show the campaign's certificate."""

from __future__ import annotations

import os
import shlex
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from click.exceptions import Exit

from checkins import validate
from checkins.cli import params, terminal
from checkins.cli.errors import INTERRUPTED, UsageError, describe_data_error, printable, warn
from checkins.cli.params import GivenOptions, option, options
from checkins.errors import InvalidCell, InvalidData, InvalidValue, WrongPopulation

if TYPE_CHECKING:
    from checkins.campaign import Campaign
    from checkins.simulation.result import SimulationResult, SweepResult
    from checkins.simulation.study import PreparedStudy, Study

PATIENCE_S = 5.0
"""A Ctrl-C that comes more than this many seconds after the first ends the process at once."""
MOST_SEEDS = 10_000
LARGEST_SEED = 10**18

OPTIONS = (
    params.CAMPAIGN_FILE,
    *options("""
    --data FILE  CSV or Parquet file to use in place of the campaign's data.
    --client-column C  Column of --data that names the client of each row. Required with --data.
    --label-column Y  Column of --data with the labels 0, 1, 2, ... Required with --data.
    --holdout SHARE  Share of the clients in --data whose rows are public test data, from 0 to
        1. Default 0.
    --seeds N  Number of simulations, each with its own seed. Default 1.
    --seed S  The first seed. Default 1.
    --baselines all|NAME,NAME  Training methods to compare with: non-private, and at the same
        epsilon and delta poisson, shuffling and no-amplification. Default: none.
    --sweep KEY=V,V  Simulate with each of these values of a key of the file, such as
        protocol.slots=10,20. Can be repeated; then all combinations are simulated.
    --clients N  Number of clients. Default: the number of clients in the data.
    --reuse-clients  Allow more clients than the data have; several then have the same rows.
    --availability always|diurnal:P:LOW|arrivals:M  Which clients are online at their slot.
        always: all clients. diurnal: a share of them that varies between 1 and LOW with a
        period of P slots. arrivals: clients that have enrolled; they enrol evenly over the
        first M slots. Default always.
    --dropout P  Probability that a chosen client never reports. Default 0.
    --evaluations N  Number of times that the model is evaluated during a run. Default 50.
    --workers N  Number of parallel processes. Default: the number of cores.
    --ray  Run on a Ray cluster. A local cluster is started if there is none.
    --resume  Continue an interrupted simulation that was saved in --out.
    --out DIR  Folder for report.html, result.json and the models. Default: nothing is saved.
    """),
    params.JSON,
)
OPTIONS_NOT_IN_THE_RESULT = ("json", "out", "resume", "workers", "ray")
"""Options that do not change the result. The saved command line omits them."""


@params.command(*OPTIONS, several=("sweep",))
def simulate(given: GivenOptions) -> None:
    """Simulate a campaign on a virtual clock.

    The randomness is drawn from a seed, so the simulated model is not private. Ctrl-C stops after
    the current slots and shows the results so far. With --out these results are saved, and --resume
    continues from them. Exit code 130 after Ctrl-C.
    """
    ray, resume = given.values["ray"], given.values["resume"]
    out, json = given.path("out"), given.json
    if resume and out is None:
        raise UsageError("--resume: needs --out DIR, where the simulation was saved")
    with given.naming_options():
        processes = given.integer("workers", default=0, most=MOST_SEEDS)
    if ray:
        _check_ray()
    with terminal.working("loading the data and computing the certificate", quiet=json):
        prepared = study_of(given).prepare()
    keep = None if out is None else _prepare_jobs_folder(out, prepared, resume=resume)
    with _stopping_at_once():
        try:
            from checkins.cli.views import simulation

            with simulation.progress_bars(prepared, quiet=json) as watch:
                outcomes = prepared.run(
                    processes=processes or _processes(prepared),
                    ray=ray,
                    cache=keep,
                    on_progress=watch,
                )
            with terminal.working("computing the certificate of the run", quiet=json):
                result = prepared.result(outcomes)
        finally:
            prepared.close()
        if result is not None:
            result = replace(result, command=shlex.join(["checkins", *_arguments(given)]))
            _show_result(result, prepared, outcomes, given)
    if not all(outcome is not None and outcome.complete for outcome in outcomes):
        resume_hint = " Continue with --resume." if out is not None else ""
        warn(f"interrupted before the end.{resume_hint}")
        raise Exit(INTERRUPTED)


def study_of(given: GivenOptions) -> Study:
    """Return the study that the options describe."""
    from checkins.campaign import DataFile, read_campaign
    from checkins.simulation.population import parse_availability
    from checkins.simulation.study import ScenarioOptions, Study
    from checkins.simulation.sweep import Axis, setting_combinations, setting_label, with_setting

    file = given.values["file"]
    found = read_campaign(file)
    notes: list[str] = []
    campaign, folder = found.campaign, str(Path(file).parent)
    if "data" in given:
        campaign, notes = _with_data_option(given, campaign)
        folder = "."
    else:
        for name in ("client_column", "label_column", "holdout"):
            if name in given:
                raise given.invalid(name, "needs --data FILE")
    with given.naming_options():
        first = given.integer("seed", default=1, most=LARGEST_SEED)
        count = given.integer("seeds", default=1, most=MOST_SEEDS)
        world = ScenarioOptions(
            given.integer("clients", default=0) or None,
            given.values["reuse_clients"],
            parse_availability(given.texts.get("availability", "always")),
            given.number("dropout", validate.probability, default=0.0),
        )
        campaigns = [
            (setting, with_setting(campaign, setting))
            for setting in setting_combinations(map(Axis.parse, given.values["sweep"] or ()))
        ]
        study = Study(
            tuple(campaigns),
            folder,
            world,
            tuple(range(first, first + count)),
            _baselines(given),
            given.integer("evaluations", default=50, least=0),
            tuple(notes),
        )
    for setting, each in campaigns:
        try:
            study.check(each)
        except InvalidData as error:
            data = None if each.task is None else each.task.data
            if not isinstance(data, DataFile):
                raise found.refusal(error) from error
            path = data.file if isinstance(error, InvalidCell) else error.value
            raise UsageError(f"{printable(path)}: {describe_data_error(error)}") from error
        except WrongPopulation as error:
            raise (given if error.name in given.values else found).refusal(error) from error
        except InvalidValue as error:
            if setting:
                refused = f"{error.name.replace('_', ' ')} {error.expected}"
                raise UsageError(f"--sweep {setting_label(setting)}: {refused}") from error
            raise (given if error.name in given.texts else found).refusal(error) from error
    return study


def _with_data_option(given: GivenOptions, campaign: Campaign) -> tuple[Campaign, list[str]]:
    """Return the campaign with the data of ``--data``, and notes about these data."""
    from checkins.tasks.data import table

    if campaign.task is None:
        raise UsageError("--data: cannot be used, because the campaign has no [task]")
    client = given.required("client_column", "the column that names the client of a row")
    label = given.required("label_column", "the column of labels")
    path = given.texts["data"]
    try:
        source, ranges_from_data = table.describe_for_simulation(
            path,
            client_column=client,
            label_column=label,
            campaign_data=campaign.task.data,
            holdout=given.number("holdout", validate.probability, default=0.0),
        )
    except InvalidData as error:
        raise given.invalid("data", describe_data_error(error)) from error
    except InvalidValue as error:
        raise given.refusal(error) from error
    notes = []
    if ranges_from_data:
        notes.append(
            "the ranges of the features were computed from the data; the certificate does not cover"
            " this step; a real campaign declares public ranges in [task.data]"
        )
    return replace(campaign, task=replace(campaign.task, data=source, features=None)), notes


def _baselines(given: GivenOptions) -> tuple[Any, ...]:
    from checkins.simulation.baselines import Baseline

    if "baselines" not in given:
        return ()
    names = [name.strip() for name in given.texts["baselines"].split(",")]
    if names == ["all"]:
        return tuple(Baseline)
    unknown = [name for name in names if name not in list(Baseline)]
    if unknown:
        raise given.invalid("baselines", f"must be all, or some of {', '.join(Baseline)}")
    return tuple(dict.fromkeys(Baseline(name) for name in names))


@contextmanager
def _stopping_at_once() -> Iterator[None]:
    """Print one line and exit at the first Ctrl-C that no inner block handles.

    Further ones are ignored for ``PATIENCE_S`` seconds. After that, one ends the process at once.

    If SIGINT was ignored at the start of the program, as in a background job, it stays ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    since: list[float] = []

    def stop(*_: object) -> None:
        if not since:
            since.append(time.monotonic())
            raise KeyboardInterrupt
        if time.monotonic() - since[0] > PATIENCE_S:  # the program hangs while it ends
            os._exit(INTERRUPTED)

    try:
        before = signal.signal(signal.SIGINT, stop)
    except ValueError:  # only the main thread can handle signals
        yield
        return
    try:
        yield
    except KeyboardInterrupt:
        if not since:
            raise
        warn("stopped; the current slots were not saved")
        raise Exit(INTERRUPTED) from None
    finally:
        if not since:  # after a Ctrl-C the process ends, so this handler stays
            signal.signal(signal.SIGINT, before)


def _arguments(given: GivenOptions) -> list[str]:
    """Return the command line without the options that do not change the result."""
    arguments = ["simulate"]
    for name, value in given.values.items():
        if name in OPTIONS_NOT_IN_THE_RESULT or not value:
            continue
        if name == "file":
            arguments.append(str(value))
        elif isinstance(value, bool):
            arguments.append(option(name))
        else:
            arguments += [text for each in value for text in (option(name), str(each))]
    return arguments


def _check_ray() -> None:
    from checkins.simulation.workers import require_ray

    try:
        require_ray()
    except InvalidValue as error:
        raise UsageError(f"--ray: {error.expected}") from error


def _processes(prepared: PreparedStudy) -> int:
    """Return one process per core. Return 1 for a GPU, or if jobs share features."""
    import jax

    shared = any(job.task.features is not None for job in prepared.jobs)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return 1 if shared or jax.default_backend() != "cpu" else max(1, cores or 1)


def _prepare_jobs_folder(out: Path, prepared: PreparedStudy, *, resume: bool) -> Path:
    """Return the folder of saved jobs. Without ``--resume``, delete the jobs in it."""
    keep = out / "kept"
    keys = {job.key for job in prepared.jobs}
    if resume and not any(path.name.split(".")[0] in keys for path in keep.glob("*.npz")):
        raise UsageError(
            f"--resume: {printable(out)} has no results of this simulation; use the same file, data"
            " and options, or start again without --resume"
        )
    try:
        keep.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=keep):
            pass
        for path in () if resume else [*keep.glob("*.npz"), *keep.glob("*.part")]:
            path.unlink()
    except OSError as error:
        raise UsageError(f"--out {printable(out)}: cannot be written: {error.strerror}") from error
    return keep


def _show_result(
    result: SimulationResult | SweepResult,
    prepared: PreparedStudy,
    outcomes: Any,
    given: GivenOptions,
) -> None:
    out, file, json = given.path("out"), given.values["file"], given.json
    from checkins.cli.views import simulation

    try:
        saved = None if out is None else simulation.save(result, prepared, outcomes, out)
    finally:  # the result is shown even if its files cannot be written
        if json:
            terminal.show_json(result.as_json())
        else:
            terminal.show(*simulation.result_parts(result.as_json(), file=file))
    if saved is not None and not json:
        terminal.show_plain(f"Saved: {saved}")
