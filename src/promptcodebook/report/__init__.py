"""A run as one self-contained HTML file."""

from promptcodebook.report.page import render_report, write_report

__all__ = ["render_report", "write_report"]
