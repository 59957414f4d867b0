"""Affine maps of logits or log-probabilities, with ridges; a kernel correction; a shift of the classes' frequencies."""
