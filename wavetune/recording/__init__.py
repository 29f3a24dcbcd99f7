"""Counts what other people's programs compute, for `wavetune workload record`.

Nothing here imports another module of the package, and nothing imports it: the files are loaded by name into programs
that know nothing of wavetune, maybe with another Python. Standard library only, and torch where it is there already.
"""
