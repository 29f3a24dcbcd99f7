"""How a kernel cuts a problem into CTAs and loop trips. Standard library only."""
