"""What a person sees: tables and figures, and one self-contained report."""

from calibrant.report.model import Model, Subject, Table
from calibrant.report.render import Section, write_report
from calibrant.report.study_figures import study_pictures, write_study_figures
from calibrant.report.tables import Row, measure

__all__ = [
    "Model",
    "Row",
    "Section",
    "Subject",
    "Table",
    "measure",
    "study_pictures",
    "write_report",
    "write_study_figures",
]
