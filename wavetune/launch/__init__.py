"""Launchers: kernels as torch operators, live measurement, and the decorator for your own kernels."""

# Registers the live measurer of GEMM; loads neither torch nor triton.
from wavetune.launch import live as live
