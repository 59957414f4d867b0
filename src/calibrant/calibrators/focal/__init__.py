"""Temperatures and focal exponents, which keep the decision; mixtures of them."""
