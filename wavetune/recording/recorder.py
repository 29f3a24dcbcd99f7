"""Counts the matrix products and attentions that torch runs, in whatever process this is loaded.

Loaded by file name into programs that know nothing of this package, maybe with another Python: it imports the standard
library only, and torch where that is there already. What it writes are JSON lines, a problem with its count each.

A dispatch mode sees every operation of the threads in which it is active, also below compositions such as ``linear``.
It does not see what a CUDA graph replays, nor what happens inside operators of other libraries and higher-order ones
such as flex attention. Of compiled functions it sees the calls of libraries, which is where their products are, but not
the products of kernels that the compiler wrote itself (``max-autotune``).
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any

FLUSH_SECONDS = 0.5
"""A process that is killed loses what it counted since the last write."""

MAX_KEYS = 100_000
"""Different problems that are counted in memory; then a new file begins."""

_WRITER_NAME = "wavetune-record"


class Counts:
    """Counts of this process, written to a folder again and again.

    Parameters
    ----------
    folder : str
        Where to write. Files are replaced whole, so that a reader never sees half of one.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._is_written = True
        self._writer: threading.Thread | None = None
        self._part = 0
        self._name = self._process_name()
        os.register_at_fork(after_in_child=self._begin_child)
        atexit.register(self.flush)
        self._flush_at_exit()

    def _begin_child(self) -> None:
        # The lock may be held by a thread that the child does not have.
        self._lock = threading.Lock()
        self._counts = {}
        self._is_written = True
        self._writer = None
        self._part = 0
        self._name = self._process_name()

    @staticmethod
    def _process_name() -> str:
        # Process numbers come again.
        return f"{os.getpid()}-{time.time_ns()}"

    def add(self, problem: dict[str, Any]) -> None:
        """Count a call."""
        key = json.dumps(problem)
        with self._lock:
            self._counts[key] = self._counts.get(key, 0) + 1
            self._is_written = False
            if self._writer is None:
                self._writer = threading.Thread(target=self._write_now_and_then, daemon=True, name=_WRITER_NAME)
                self._writer.start()
            if len(self._counts) >= MAX_KEYS:
                self._write()
                self._counts = {}
                self._part += 1

    def fail(self, text: str) -> None:
        """Leave a note that something was not counted."""
        path = os.path.join(self._folder, f"{os.getpid()}.failed")
        with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def flush(self) -> None:
        """Write what was counted."""
        with self._lock:
            if not self._is_written:
                self._write()

    def _write(self) -> None:
        path = os.path.join(self._folder, f"{self._name}-{self._part}.jsonl")
        source = f"torch, process {os.getpid()}"
        lines = (
            json.dumps({**json.loads(key), "count": count, "sources": {source: count}}) + "\n"
            for key, count in self._counts.items()
        )
        try:
            with open(f"{path}.part", "w", encoding="utf-8") as file:
                file.writelines(lines)
            os.replace(f"{path}.part", path)
        except OSError as error:
            # The program is not ours to stop.
            self.fail(f"counts cannot be written: {error}")
            return
        self._is_written = True

    def _write_now_and_then(self) -> None:
        writer = self._writer
        while self._writer is writer:
            time.sleep(FLUSH_SECONDS)
            self.flush()

    def _flush_at_exit(self) -> None:
        """Write before ``os._exit`` too: that is how multiprocessing ends its processes."""
        leave = os._exit

        def flush_and_leave(status: int) -> Any:
            try:
                self.flush()
            finally:
                leave(status)

        os._exit = flush_and_leave


def install(folder: str, products: Any) -> None:
    """Count the operations of this thread, and of threads started from now on. Call it when torch is loaded.

    Parameters
    ----------
    folder : str
        Where to write.
    products : module
        `wavetune.recording.products`, however it was loaded.
    """
    counts = Counts(folder)
    _enter_mode(products, counts)
    start = threading.Thread.start

    def start_recorded(thread: threading.Thread) -> None:
        run = thread.run

        def run_recorded() -> None:
            _enter_mode(products, counts)
            run()

        if thread.name != _WRITER_NAME:
            thread.run = run_recorded  # type: ignore[method-assign]
        start(thread)

    threading.Thread.start = start_recorded  # type: ignore[method-assign, assignment]


def _enter_mode(products: Any, counts: Counts) -> None:
    recording_mode(products, counts.add, counts.fail).__enter__()


def recording_mode(
    products: Any, add: Callable[[dict[str, Any]], None], fail: Callable[[str], None] | None = None
) -> Any:
    """Return a dispatch mode, a context manager, that counts what runs in it.

    Parameters
    ----------
    products : module
        `wavetune.recording.products`, however it was loaded.
    add : callable
        Called with every problem.
    fail : callable, optional
        Called with what went wrong where an operation could not be described; without it, that is an error.
    """
    import torch
    from torch.utils import _python_dispatch

    plain = (torch.Tensor, torch.nn.Parameter)
    mode: Any = _python_dispatch.TorchDispatchMode

    class RecordingMode(mode):  # type: ignore[misc]
        # Without this, flex attention and its like refuse to run.
        supports_higher_order_operators = True

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            """Let functions be compiled as ever; without this, ``fullgraph=True`` fails."""
            return True

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            others = [kind for kind in types if kind not in plain]
            # Wrappers, such as those of quantized weights, take themselves apart first.
            if any(hasattr(kind, "__tensor_flatten__") for kind in others):
                return NotImplemented
            # The rest computes nothing (fake tensors), or is more than an operator (flex attention).
            if others or not isinstance(function, torch._ops.OpOverload):
                return function(*args, **kwargs)
            # Inference mode does not take compositions such as `linear` apart, autograd does.
            if not products.is_counted(function):
                if function is not torch.ops.prim.device.default:
                    with self:
                        result = function.decompose(*args, **kwargs)
                    if result is not NotImplemented:
                        return result
                return function(*args, **kwargs)
            result = function(*args, **kwargs)
            try:
                problem = products.describe(function, args, kwargs, result)
            except Exception as error:
                if fail is None:
                    raise
                # The program is not ours to stop.
                fail(f"{function}: {type(error).__name__}: {error}")
                return result
            if problem is not None:
                add(problem)
            return result

    # Its base has no types.
    made: Any = RecordingMode
    return made()
