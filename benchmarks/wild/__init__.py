"""Deployed classifiers, as package registries carry them, on real labelled data: their probabilities before and after."""
