"""Data sets of tasks. Rows are grouped by person and scaled by public constants."""
