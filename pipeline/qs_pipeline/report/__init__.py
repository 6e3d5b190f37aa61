"""The job `report`: tables, plots and a page from the server's history."""

from .job import ReportSummary, report

__all__ = ["ReportSummary", "report"]
