"""From a model file to an answer in microseconds. Standard library only; never imports the measuring code."""
