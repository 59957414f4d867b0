"""Predictions, pairs and multi-label predictions; functions that read and save them; and the leakage check."""
