"""Fits in one thread: on a busy machine the threads of small fits mostly wait for each other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from threadpoolctl import threadpool_limits


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Limit OpenMP and BLAS to one thread."""
    with threadpool_limits(1):
        yield
