"""What a person sees: tables and figures, and one self-contained report."""

from calibrant.report.model import Model, Table
from calibrant.report.render import write_report
from calibrant.report.tables import Row, measure

__all__ = ["Model", "Row", "Table", "measure", "write_report"]
