"""The whole way from measurements to a model file."""
