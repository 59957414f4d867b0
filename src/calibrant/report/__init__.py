"""What a person sees: tables and figures, and one self-contained report."""

from calibrant.report.tables import Row, measure

__all__ = ["Row", "measure"]
