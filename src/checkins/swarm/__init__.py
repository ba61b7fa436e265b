"""Thousands of devices in one process, for load tests. This is not part of the device SDK."""

from checkins.swarm.swarm import Swarm, Tally, next_run, raise_open_files

__all__ = ["Swarm", "Tally", "next_run", "raise_open_files"]
