"""What every family stands on: checks, configuration, numerics, Newton's method, paths and files."""
