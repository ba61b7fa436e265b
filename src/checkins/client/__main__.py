"""``python -m checkins.client``: take part in a campaign without the packages of the command line.

It does what `checkins join` does with a table of one person, and needs the extra ``client`` alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from checkins.client.joining import read_keys, spent_sentence, split_run_url
from checkins.client.participant import Participant, fetch_campaign
from checkins.client.trainer import Tensors, Trainer, trainer_of_file
from checkins.client.view import CampaignView
from checkins.errors import InvalidValue
from checkins.optional_imports import missing_package

EXIT_FAILURE, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code: 0 ended, 1 the service failed, 2 wrong usage."""
    options = parser().parse_args(arguments)
    try:
        _take_part(options)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except InvalidValue as error:
        return _print_error(str(error), EXIT_USAGE)
    except OSError as error:  # also ServiceFailed
        place = error.filename or "input or output"
        return _print_error(f"{place}: {error.strerror}", EXIT_FAILURE)
    except ModuleNotFoundError as error:
        missing = missing_package("this device", error)
        if missing is None:
            raise
        return _print_error(str(missing), EXIT_USAGE)
    return 0


def _take_part(options: argparse.Namespace) -> None:
    url, run = split_run_url(options.url)
    if run is not None and options.campaign not in (None, run):
        raise InvalidValue("campaign", options.campaign, f"the URL names another run, {run}")
    connection = {"ca": options.ca, "plain_http": options.plain_http}
    view = fetch_campaign(url, run or options.campaign, **connection)
    view.check(seal=options.seal)
    device = Participant(
        url=url,
        campaign=view.id,
        trainer=_NoTrainer() if options.withdraw else _trainer(view, options),
        state=options.state,
        key=read_keys(options.key_file)[0] if options.key_file else None,
        seal=options.seal,
        most_epsilon=options.most_epsilon,
        **connection,
    )
    if options.withdraw:
        done = "withdrawn" if device.withdraw() else "not withdrawn, because it does not take part"
        print(f"{view.id}: {done}.")
        return
    outcomes = device.follow() if options.follow else iter([(view.id, device.run())])
    for run_id, outcome in outcomes:
        print(f"{run_id}: {outcome}.", flush=True)
    print(spent_sentence(device.spent))


def _trainer(view: CampaignView, options: argparse.Namespace) -> Trainer:
    if view.campaign.task is None:
        raise InvalidValue("campaign", view.id, "has no [task], so a device has nothing to train")
    return trainer_of_file(
        view.campaign.task, options.data, client=options.client, allow_model=options.allow_model
    )


class _NoTrainer:
    """The trainer of a device that withdraws and so never trains."""

    def update(self, model: Tensors) -> Tensors:
        raise InvalidValue("withdraw", True, "does not train")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m checkins.client",
        description="Take part in a campaign as one device, as `checkins join` does.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("url", metavar="URL", help="address of the service, or of a run: URL/campaigns/ID")
    add("--state", metavar="DIR", required=True, help="folder for the state, always the same")
    purpose = parser.add_mutually_exclusive_group(required=True)
    purpose.add_argument("--data", metavar="FILE", help="CSV file with the rows of this person")
    purpose.add_argument("--withdraw", action="store_true", help="leave the campaign for good")
    add("--client", metavar="ID", help="the client in --data, if the file has several")
    add("--campaign", metavar="ID", help="id of the run, if the service has several")
    add("--key-file", metavar="FILE", type=Path, help="file with the enrolment key")
    add("--seal", metavar="SHA256", help="join only the campaign with this seal")
    add("--allow-model", metavar="MODULE:FUNCTION", help="code that the campaign may import")
    add("--most-epsilon", metavar="E", type=float, help="limit of all participations together")
    add("--ca", metavar="FILE", help="PEM file with the certificate authorities to trust")
    add("--plain-http", action="store_true", help="allow http:// to another machine")
    add("--follow", action="store_true", help="also take part in the later runs")
    return parser


def _print_error(problem: str, code: int) -> int:
    print(f"checkins: {' '.join(problem.split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
