"""Calibrant: classifiers whose probabilities can be trusted."""
