"""Runs of campaigns: opening, taking in what clients send, slots, state, responses."""
