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
from checkins.cli.params import GivenOptions, dashed_name, options
from checkins.cli.terminal import EXIT_INTERRUPTED, UsageError, describe_data_error, printable, warn
from checkins.errors import InvalidCell, InvalidData, InvalidValue, WrongPopulation

if TYPE_CHECKING:
    from checkins.campaign import Campaign
    from checkins.simulation.result import SimulationResult, SweepResult
    from checkins.simulation.study import PreparedStudy, Study

FORCED_EXIT_AFTER_S = 5.0
"""Seconds after the first Ctrl-C during which a further Ctrl-C is ignored. Later, a Ctrl-C ends
the process at once."""
MAX_SEEDS = 10_000
LARGEST_SEED = 10**18

OPTIONS = (
    params.CAMPAIGN_FILE_ARGUMENT,
    *options("""
    --data FILE  CSV or Parquet file to use in place of the data set of the campaign file.
    --client-column C  Column of --data that names the client of each row. Required with --data.
    --label-column Y  Column of --data with the labels 0, 1, 2, ... Required with --data.
    --holdout SHARE  Share of the clients in --data that do not train; their rows are public test
        data. From 0 to 1. Default 0.
    --seeds N  Number of simulations, each with its own seed. Default 1.
    --seed S  The first seed; the next simulations use S+1, S+2, ... Default 1.
    --baselines all|NAME,NAME  Training methods to compare with: non-private, poisson, shuffling
        and no-amplification. The last three have the epsilon and delta of the campaign. Default:
        none.
    --sweep KEY=V,V  Simulate the campaign with each of these values of a key of its file, such
        as protocol.slots=10,20. Can be repeated; then all combinations are simulated.
    --clients N  Number of clients. Default: the number of clients in the data.
    --reuse-clients  Allow more clients than the data have. Several clients then have the same rows.
    --availability always|diurnal:P:LOW|arrivals:M  Which clients are online at their slot.
        always: all clients. diurnal: a share of the clients that varies between 1 and LOW with
        a period of P slots. arrivals: the clients that have enrolled by then; clients enrol
        evenly over the first M slots. Default always.
    --dropout P  Probability that a chosen client never reports. Default 0.
    --evaluations N  Number of times that the model is evaluated during a run. Default 50.
    --workers N  Number of parallel processes. Default: the number of cores.
    --ray  Run on a Ray cluster. A local cluster is started if there is none.
    --resume  Continue an interrupted simulation that was saved in --out.
    --out DIR  Folder for report.html, result.json and the models. Default: nothing is saved.
    """),
    params.JSON_OPTION,
)
OPTIONS_WITHOUT_EFFECT_ON_RESULT = ("json", "out", "resume", "workers", "ray")
"""Options that do not change the result. The command line in the saved result omits them."""


@params.command(*OPTIONS, repeatable=("sweep",))
def simulate(given: GivenOptions) -> None:
    """Simulate a campaign on this computer, without real devices.

    The randomness is drawn from a seed, so the simulated model is not private. Ctrl-C stops after
    the current slots and shows the results so far. With --out these results are saved, and --resume
    continues from them. The exit code after Ctrl-C is 130.
    """
    ray, resume = given.values["ray"], given.values["resume"]
    out, json = given.path("out"), given.json
    if resume and out is None:
        raise UsageError("--resume: needs --out DIR, where the simulation was saved")
    with given.errors_as_option_errors():
        processes = given.integer("workers", default=0, most=MAX_SEEDS)
    if ray:
        _check_ray()
    with terminal.spinner("loading the data and computing the certificate", quiet=json):
        prepared = study_of(given).prepare()
    jobs_folder = None if out is None else _prepare_jobs_folder(out, prepared, resume=resume)
    with _exit_on_interrupt():
        try:
            from checkins.cli.views import simulation

            with simulation.progress_bars(prepared, quiet=json) as watch:
                outcomes = prepared.run(
                    processes=processes or _default_processes(prepared),
                    ray=ray,
                    cache=jobs_folder,
                    on_progress=watch,
                )
            with terminal.spinner("computing the certificate of the run", quiet=json):
                result = prepared.result(outcomes)
        finally:
            prepared.close()
        if result is not None:
            result = replace(result, command=shlex.join(["checkins", *_command_line(given)]))
            _show_result(result, prepared, outcomes, given)
    if not all(outcome is not None and outcome.complete for outcome in outcomes):
        hint = "; continue with --resume" if out is not None else ""
        warn(f"the simulation was interrupted before its end{hint}")
        raise Exit(EXIT_INTERRUPTED)


def study_of(given: GivenOptions) -> Study:
    """Return the study (campaigns, scenario and seeds to simulate) that the options describe."""
    from checkins.campaign import DataFile, read_campaign
    from checkins.simulation.population import parse_availability
    from checkins.simulation.study import ScenarioOptions, Study
    from checkins.simulation.sweep import Axis, setting_combinations, setting_label, with_setting

    file = given.values["file"]
    campaign_file = read_campaign(file)
    notes: list[str] = []
    campaign, folder = campaign_file.campaign, str(Path(file).parent)
    if "data" in given:
        campaign, notes = _with_data_option(given, campaign)
        folder = "."
    else:
        for name in ("client_column", "label_column", "holdout"):
            if name in given:
                raise given.invalid(name, "needs --data FILE")
    with given.errors_as_option_errors():
        first_seed = given.integer("seed", default=1, most=LARGEST_SEED)
        count = given.integer("seeds", default=1, most=MAX_SEEDS)
        scenario = ScenarioOptions(
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
            scenario,
            tuple(range(first_seed, first_seed + count)),
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
                raise campaign_file.refusal(error) from error
            path = data.file if isinstance(error, InvalidCell) else error.value
            raise UsageError(f"{printable(path)}: {describe_data_error(error)}") from error
        except WrongPopulation as error:
            raise (given if error.name in given.values else campaign_file).refusal(error) from error
        except InvalidValue as error:
            if setting:
                problem = f"{error.name.replace('_', ' ')} {error.expected}"
                raise UsageError(f"--sweep {setting_label(setting)}: {problem}") from error
            raise (given if error.name in given.texts else campaign_file).refusal(error) from error
    return study


def _with_data_option(given: GivenOptions, campaign: Campaign) -> tuple[Campaign, list[str]]:
    """Return the campaign with the data of ``--data``, and notes for the result."""
    from checkins.tasks.data import table

    if campaign.task is None:
        raise UsageError("--data: cannot be used, because the campaign file has no [task]")
    client_column = given.required(
        "client_column", "must be the column that names the client of a row"
    )
    label_column = given.required("label_column", "must be the column of labels")
    path = given.texts["data"]
    try:
        data, has_computed_ranges = table.describe_for_simulation(
            path,
            client_column=client_column,
            label_column=label_column,
            campaign_data=campaign.task.data,
            holdout=given.number("holdout", validate.probability, default=0.0),
        )
    except InvalidData as error:
        raise given.invalid("data", describe_data_error(error)) from error
    except InvalidValue as error:
        raise given.refusal(error) from error
    notes = []
    if has_computed_ranges:
        notes.append(
            "the ranges of the features were computed from the data, which the certificate does not"
            " cover; a real campaign declares public ranges in [task.data]"
        )
    return replace(campaign, task=replace(campaign.task, data=data, features=None)), notes


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
def _exit_on_interrupt() -> Iterator[None]:
    """Print one line and exit at the first Ctrl-C, unless an inner block handles it.

    Any other Ctrl-C is ignored for ``FORCED_EXIT_AFTER_S`` seconds. After that time, a Ctrl-C ends
    the process at once. If SIGINT was ignored at the start of the program, as in a background job,
    it stays ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    interrupt_times: list[float] = []

    def stop(*_: object) -> None:
        if not interrupt_times:
            interrupt_times.append(time.monotonic())
            raise KeyboardInterrupt
        if (
            time.monotonic() - interrupt_times[0] > FORCED_EXIT_AFTER_S
        ):  # the program hangs while it cleans up
            os._exit(EXIT_INTERRUPTED)

    try:
        previous_handler = signal.signal(signal.SIGINT, stop)
    except ValueError:  # only the main thread can handle signals
        yield
        return
    try:
        yield
    except KeyboardInterrupt:
        if not interrupt_times:
            raise
        warn("stopped; the results of the current slots are lost")
        raise Exit(EXIT_INTERRUPTED) from None
    finally:
        if not interrupt_times:  # after a Ctrl-C the process ends, so this handler stays
            signal.signal(signal.SIGINT, previous_handler)


def _command_line(given: GivenOptions) -> list[str]:
    """Return the command line without the options that do not change the result."""
    arguments = ["simulate"]
    for name, value in given.values.items():
        if name in OPTIONS_WITHOUT_EFFECT_ON_RESULT or not value:
            continue
        if name == "file":
            arguments.append(str(value))
        elif isinstance(value, bool):
            arguments.append(dashed_name(name))
        else:
            arguments += [text for each in value for text in (dashed_name(name), str(each))]
    return arguments


def _check_ray() -> None:
    from checkins.simulation.workers import require_ray

    try:
        require_ray()
    except InvalidValue as error:
        raise UsageError(f"--ray: {error.expected}") from error


def _default_processes(prepared: PreparedStudy) -> int:
    """Return the number of cores. Return 1 for a GPU, or if the jobs share computed features."""
    import jax

    shared = any(job.task.features is not None for job in prepared.jobs)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return 1 if shared or jax.default_backend() != "cpu" else max(1, cores or 1)


def _prepare_jobs_folder(out: Path, prepared: PreparedStudy, *, resume: bool) -> Path:
    """Return the folder of saved jobs, one job per campaign, method and seed.

    Without ``resume``, delete the jobs in it. With it, raise if the folder has none of these jobs.
    """
    jobs_folder = out / "saved-jobs"
    keys = {job.key for job in prepared.jobs}
    if resume and not any(path.name.split(".")[0] in keys for path in jobs_folder.glob("*.npz")):
        raise UsageError(
            f"--resume: {printable(out)} has no saved results of this simulation; use the same"
            " file, data and options, or start again without --resume"
        )
    try:
        jobs_folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=jobs_folder):
            pass
        for path in () if resume else [*jobs_folder.glob("*.npz"), *jobs_folder.glob("*.part")]:
            path.unlink()
    except OSError as error:
        raise UsageError(f"--out {printable(out)}: cannot be written: {error.strerror}") from error
    return jobs_folder


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
