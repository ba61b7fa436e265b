"""Runs of campaigns: open a run, take messages of clients, close slots, build responses."""
