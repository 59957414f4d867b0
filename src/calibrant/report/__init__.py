"""Reports on models: tables and figures in one self-contained HTML or JSON file."""

from calibrant.report.model import Model
from calibrant.report.render import write_report

__all__ = ["Model", "write_report"]
