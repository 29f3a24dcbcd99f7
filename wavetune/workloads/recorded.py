"""What recorded processes left in a folder: counts of torch's products, and cuBLASLt's log of the same calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from wavetune.core.workload import Workload
from wavetune.core.workload_entry import WorkloadEntry
from wavetune.errors import WorkloadError
from wavetune.workloads.importing import import_files

CUBLASLT_LOG = "cublaslt-%i.log"
"""Name of a log in the folder; cuBLASLt puts the process in."""

_COUNTS = "*.jsonl"


@dataclass(frozen=True, slots=True)
class RecordedFolder:
    """Reads a folder.

    Parameters
    ----------
    path : Path
        The folder: files ``*.jsonl`` of counts, ``cublaslt-*.log``, and marks of processes by their state.
    """

    path: Path

    @property
    def python_processes(self) -> int:
        """Python processes that started."""
        return self._marks("python")

    @property
    def torch_processes(self) -> int:
        """Processes that loaded torch."""
        return self._marks("torch")

    @property
    def cublaslt_logs(self) -> list[Path]:
        """Logs that cuBLASLt began; one may be empty."""
        return sorted(self.path.glob(CUBLASLT_LOG.replace("%i", "*")))

    @property
    def files(self) -> list[Path]:
        """Everything in the folder that an import can read: torch's counts if there are any, else cuBLASLt's logs."""
        counts = sorted(self.path.glob(_COUNTS))
        return counts or [log for log in self.cublaslt_logs if log.stat().st_size]

    @property
    def failures(self) -> list[str]:
        """Why processes could not be recorded."""
        return sorted({path.read_text(encoding="utf-8", errors="replace") for path in self.path.glob("*.failed")})

    def torch_workload(self) -> Workload:
        """Return what torch ran; maybe nothing."""
        return self._workload(sorted(self.path.glob(_COUNTS)), "jsonl")

    def cublaslt_workload(self) -> Workload:
        """Return what cuBLASLt ran; maybe nothing."""
        workload = self._workload(self.cublaslt_logs, "cublaslt-log")
        prefix = f"{self.path}/"
        return Workload(tuple(_renamed(entry, prefix) for entry in workload.entries))

    def _marks(self, state: str) -> int:
        return sum(1 for _ in self.path.glob(f"*.{state}"))

    @staticmethod
    def _workload(paths: list[Path], format: str) -> Workload:
        files = [path for path in paths if path.stat().st_size]
        if not files:
            return Workload()
        try:
            with import_files(files, format=format) as imported:
                return imported.workload()
        except WorkloadError as error:
            if str(error).startswith("no problem found"):
                return Workload()
            raise


@dataclass(frozen=True, slots=True)
class Agreement:
    """Two recordings of the same plain and batched products.

    Parameters
    ----------
    calls : int
        Of the first recording.
    other_calls : int
        Of the second.
    same_calls : int
        That both have, by m, n, k, dtype and batch.
    different : tuple of str
        Problems whose counts differ, with both counts, by size of the difference.
    """

    calls: int
    other_calls: int
    same_calls: int
    different: tuple[str, ...]

    @classmethod
    def of(cls, first: Workload, second: Workload) -> Agreement:
        """Compare the products of two workloads."""
        mine, others = _products(first.entries), _products(second.entries)
        gaps = {key: mine[key] - others[key] for key in {*mine, *others} if mine[key] != others[key]}
        ordered = sorted(gaps, key=lambda key: (-abs(gaps[key]), key))
        return cls(
            mine.total(), others.total(), (mine & others).total(),
            tuple(f"{m} x {n} x {k} {dtype} batch {b}: {mine[m, n, k, dtype, b]} against {others[m, n, k, dtype, b]}"
                  for m, n, k, dtype, b in ordered),
        )  # fmt: skip


def _products(entries: Iterable[WorkloadEntry]) -> Counter[tuple[int, int, int, str, int]]:
    counts: Counter[tuple[int, int, int, str, int]] = Counter()
    for entry in entries:
        key = entry.key
        if key.operation in ("gemm", "batched_gemm"):
            counts[key.m, key.n, key.k, key.dtype, key.batch] += entry.count
    return counts


def _renamed(entry: WorkloadEntry, prefix: str) -> WorkloadEntry:
    """Name processes, not files of a folder that is gone."""
    sources = {
        f"cuBLASLt, process {name.removeprefix(prefix).removeprefix('cublaslt-').removesuffix('.log')}": count
        for name, count in entry.sources.items()
    }
    return WorkloadEntry(entry.key, entry.count, sources, entry.extra)
