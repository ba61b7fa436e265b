"""The program ``checkins``, also ``python -m checkins``: the command line, if it is installed."""

from __future__ import annotations

import sys

from checkins.optional_imports import missing_package


def main() -> None:
    """Run the command of ``sys.argv`` and exit. This is the entry point of the script."""
    try:
        from checkins.cli.main import main as run_command
    except ModuleNotFoundError as error:
        missing = missing_package("the command line", error)
        if missing is None:
            raise
        is_device = sys.argv[1:2] == ["join"]
        advice = "; a device needs only python -m checkins.client" if is_device else ""
        print(f"checkins: {missing}{advice}", file=sys.stderr)
        sys.exit(2)
    run_command()


if __name__ == "__main__":
    main()
