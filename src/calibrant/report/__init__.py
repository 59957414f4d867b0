"""Reports for people: tables and figures in one self-contained HTML, Markdown or JSON file."""

from calibrant.report.labels import LabelReport, write_label_report
from calibrant.report.model import Model, Subject, Table
from calibrant.report.render import write_report
from calibrant.report.section import Section
from calibrant.report.streamed import diagnose_streamed
from calibrant.report.study_figures import study_pictures, write_study_figures
from calibrant.report.tables import Row, measure
from calibrant.report.verdict import MARGIN, Verdict

__all__ = [
    "MARGIN",
    "LabelReport",
    "Model",
    "Row",
    "Section",
    "Subject",
    "Table",
    "Verdict",
    "diagnose_streamed",
    "measure",
    "study_pictures",
    "write_label_report",
    "write_report",
    "write_study_figures",
]
