"""Maps that go by features of a row: its groups, numeric columns, trees of them, its own logits."""
