"""The front door: commands, tables for people, JSON for programs, plots."""
