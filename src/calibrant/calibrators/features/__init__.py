"""Maps that go by features of a row: its groups and numeric columns."""
