"""The interactive page of a run: `report.html`, one file that needs no network and no server."""

from bucketlab.report.html.page import REPORT, render, write_report

__all__ = ["REPORT", "render", "write_report"]
