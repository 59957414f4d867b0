"""Code that all other packages use: checks, configuration, numerics and Newton's method."""
