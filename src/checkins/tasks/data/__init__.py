"""Data sets of tasks. Rows are grouped by client and scaled by public constants."""
