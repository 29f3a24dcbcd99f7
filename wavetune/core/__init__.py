"""Vocabulary shared by every layer: problems, configurations, architectures. Standard library only."""
