"""Populations with known truths, and how often each promise of the library is broken on samples of them."""
