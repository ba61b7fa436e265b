"""The HTML report of a simulation's result: one file, which loads no other files."""

from checkins.simulation.report.report import report_page, write_report

__all__ = ["report_page", "write_report"]
