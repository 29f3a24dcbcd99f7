"""Triton kernel families and their torch references.

With `wavetune.launch` and the GPU files of `wavetune.measure`, the only code that needs triton and torch.
"""
