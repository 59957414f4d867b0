"""The display of objects in notebooks, which shows the same text as ``print``."""

import html
from typing import Any

from torch import nn


def to_html(self: Any) -> str:
    """Return the text of an object as escaped HTML."""
    # the default text of a module lists its members over many lines
    text = f"{type(self).__name__}({self.extra_repr()})" if isinstance(self, nn.Module) else str(self)
    return f"<pre>{html.escape(text)}</pre>"
