"""Networks of the studies. Each is built with what the data say (``classes``, ``inputs`` …) and its own options.

The last layer is called ``classifier`` in all of them, so that the trajectory can follow its norm.
"""

from calibrant.study.models.mlp import MLP

__all__ = ["MLP"]
