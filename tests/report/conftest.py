"""Fits in one thread: on a busy machine the threads of small fits mostly wait for each other."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from threadpoolctl import threadpool_limits

# The synthetic GPU and the hand-made models belong to the tests of other layers.
for _folder in ("runtime", "fit"):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / _folder))


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Limit OpenMP and BLAS to one thread."""
    with threadpool_limits(1):
        yield
