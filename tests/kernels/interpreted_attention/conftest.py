"""These tests run in Triton's interpreter, in a process that `tests/interpreter/test_interpreted.py` starts."""

import os

if os.environ.get("TRITON_INTERPRET") != "1":
    # Triton decides at import whether kernels are interpreted, so one process cannot do both.
    collect_ignore_glob = ["test_*.py"]
