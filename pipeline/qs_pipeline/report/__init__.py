"""The job `report`: what happened in the queues, from the server's history record, as tables, plots and a page."""

from .job import ReportSummary, report

__all__ = ["ReportSummary", "report"]
