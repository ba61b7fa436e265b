"""Runs of campaigns: opening, intake of messages, state machine, recovery, responses."""
