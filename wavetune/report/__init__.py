"""How good the answers are, in numbers and pictures."""
