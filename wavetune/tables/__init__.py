"""From a fitted model to the two tables of a model file."""
