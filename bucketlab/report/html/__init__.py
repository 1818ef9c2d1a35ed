"""Interactive pages, of a run and of two against each other: one file each that needs no network and no server."""

from bucketlab.report.html.document import Page
from bucketlab.report.html.page import REPORT, render, write_report

__all__ = ["REPORT", "Page", "render", "write_report"]
