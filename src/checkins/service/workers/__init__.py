"""Threads, background tasks and processes that keep slow work off the event loop."""
