"""Reports for people: tables and figures in one self-contained HTML, Markdown or JSON file."""

from calibrant.report.advice import MARGIN, Verdict
from calibrant.report.model import Claims, Model, Table
from calibrant.report.render import write_report
from calibrant.report.section import diagnose_streamed
from calibrant.report.tables import measure

__all__ = [
    "MARGIN",
    "Claims",
    "Model",
    "Table",
    "Verdict",
    "diagnose_streamed",
    "measure",
    "write_report",
]
