"""Ten thousand items, each handled once."""
