"""Calibrators made of calibrators: chains, and the pool that chooses itself."""
