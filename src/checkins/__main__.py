"""``python -m checkins``: the command line."""

from checkins.cli.main import main

main()
