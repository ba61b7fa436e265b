"""The page of a result: one file that loads nothing, for people who were not there."""

from checkins.simulation.report.report import report_page, write_report

__all__ = ["report_page", "write_report"]
