"""How objects show themselves in notebooks: their text, and below it the table that ``TABLES`` names."""

import html
from typing import Any

from torch import nn

# what each class shows: the attribute that holds its lines (none: it is them), and their columns
TABLES = {
    "Panel": ("", ("metric", "value", "low", "high", "null_high")),
    "Comparison": ("rows", ("metric", "a", "b", "difference", "low", "high", "p_value")),
    "Subgroups": ("rows", ("name", "n", "positives", "gap", "low", "high", "p_adjusted")),
    "Check": ("lines", ("name", "value", "low", "high", "n", "verdict", "more_rows")),
    "AutoCalibrator": ("evidence.trials", ("name", "gain", "error", "weight")),
    "MultiLabelCalibrator": ("labels_fitted", ("label", "positives", "pooled")),
}
_MOST = 20  # lines of a table; the rest is counted


def to_html(self: Any) -> str:
    """Return the text of an object and its table, escaped; what is not there yet, as before a fit, is left out."""
    path, columns = TABLES.get(type(self).__name__, ("", ()))
    found: Any = self
    for name in path.split(".") if path else ():
        found = getattr(found, name, None)
    # a module's own text lists its members over many lines
    words = f"{type(self).__name__}({self.extra_repr()})" if isinstance(self, nn.Module) else str(self)
    text = f"<pre>{html.escape(words)}</pre>" if path or not columns else ""  # else the table says the same
    if not columns or not found:
        return text
    cells = [[_cell_text(getattr(line, column)) for column in columns] for line in found[:_MOST]]
    head = "".join(f"<th>{column.replace('_', ' ')}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in line) + "</tr>" for line in cells)
    more = f"<p>and {len(found) - _MOST} more</p>" if len(found) > _MOST else ""
    return f"{text}<table><tr>{head}</tr>{body}</table>{more}"


def _cell_text(value: object) -> str:
    return "" if value is None else html.escape(f"{value:.4g}" if isinstance(value, float) else str(value))
