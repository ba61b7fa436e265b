"""Thousands of devices in one process: a load tool, not part of the device SDK."""

from checkins.swarm.swarm import Swarm, Tally, next_run, raise_open_files

__all__ = ["Swarm", "Tally", "next_run", "raise_open_files"]
