"""The parts losses are built from: the checked batch, per-row statistics with hand-written gradients, and the reduction.

``calibrant.functional`` and ``calibrant.losses`` both use them.
"""
