"""Code that all other packages share: checks, configuration, numerics and Newton's method."""
