"""The papers' claims, the records of the training runs, and the index of verdicts."""
