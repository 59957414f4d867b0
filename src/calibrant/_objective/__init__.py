"""What objectives are computed with: a checked batch, one number a row with its gradient, and the reduction.

``calibrant.functional`` and ``calibrant.losses`` both stand on it.
"""
