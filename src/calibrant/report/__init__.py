"""Reports for people: tables and figures in one self-contained HTML or JSON file."""

from calibrant.report.advice import MARGIN, Verdict
from calibrant.report.model import Claims, Model, Table
from calibrant.report.render import write_report
from calibrant.report.tables import measure

__all__ = [
    "MARGIN",
    "Claims",
    "Model",
    "Table",
    "Verdict",
    "measure",
    "write_report",
]
