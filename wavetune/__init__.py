"""Near-best GPU kernel configurations in microseconds."""
