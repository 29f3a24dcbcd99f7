"""Bound launches that are kept for the next call with the same addresses."""

from __future__ import annotations

from wavetune.kernels.call import Launch, forget_memory

MAX_LAUNCHES = 4096
"""Bound launches that one cache keeps, about 1 KB each; all are dropped when there are more."""


class LaunchCache:
    """A bounded dictionary of bound launches; any thread may use it.

    A launch is decided by addresses, strides, the configuration, the stream and the device, so the bound one serves
    again: weights stay where they are, and an allocator reuses the places of activations. It keeps no memory alive.

    Parameters
    ----------
    limit : int, default=4096
        Launches that are kept.
    """

    __slots__ = ("_launches", "_limit", "get")

    def __init__(self, limit: int = MAX_LAUNCHES) -> None:
        # Only single dictionary operations, which threads see whole; the worst race binds one launch twice.
        self._launches: dict[tuple[object, ...], Launch] = {}
        self._limit = limit
        self.get = self._launches.get
        """Return the launch kept under a key, or None: the dictionary's own method, since this is the hot path."""

    def __len__(self) -> int:
        return len(self._launches)

    def add(self, key: tuple[object, ...], launch: Launch) -> None:
        """Keep a launch, unless it would keep its tensors alive; the launch must have been run or be run later."""
        if not forget_memory(launch):
            return
        if len(self._launches) >= self._limit:
            self._launches.clear()
        self._launches[key] = launch

    def clear(self) -> None:
        """Drop every launch."""
        self._launches.clear()
