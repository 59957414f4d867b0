"""Predictions and what lies beside them: the record, pairs, several labels, top-k, splits, file formats, the leakage guard."""
