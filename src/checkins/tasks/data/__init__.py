"""Data sets of tasks: one person's rows each, scaled by public constants."""
