"""How objects show themselves in notebooks: by their text, as ``print`` writes it."""

import html
from typing import Any

from torch import nn


def to_html(self: Any) -> str:
    """Return the text of an object, escaped."""
    # a module's own text lists its members over many lines
    text = f"{type(self).__name__}({self.extra_repr()})" if isinstance(self, nn.Module) else str(self)
    return f"<pre>{html.escape(text)}</pre>"
