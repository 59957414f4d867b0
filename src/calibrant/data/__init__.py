"""Predictions and their companions: the record, pairs, several labels, top-k, splits, file formats, the leakage guard."""
