"""Points to measurements: on a GPU, or replayed from a recording."""
