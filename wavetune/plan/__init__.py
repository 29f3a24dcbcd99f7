"""Which points to measure: the wave structure of each configuration, and realistic layers."""
