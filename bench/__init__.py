"""Benchmarks that compare checkins with alternatives on the same machine, as ratios."""
