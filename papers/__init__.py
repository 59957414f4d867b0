"""What the papers claim, what was run of them, and the index of verdicts."""
