"""Thousands of devices in one process: a load tool, not part of the device SDK."""
