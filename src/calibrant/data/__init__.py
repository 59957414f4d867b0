"""Predictions, pairs and predictions of several labels; reading and saving them; and the check for leakage."""
