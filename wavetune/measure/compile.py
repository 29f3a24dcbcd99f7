"""Compile configurations for an architecture in parallel, with or without its GPU, and read what they need.

Workers compile the very launches that the kernels describe, over placeholders, with a driver that only names the
target. So the files in Triton's cache are those that the timing process looks up, and it does not compile again
(a test counts the files).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.errors import InfeasibleConfigError
from wavetune.measure.isolation import CRASHED, TIMED_OUT, run_isolated
from wavetune.store.record import CompiledConfig, Status
from wavetune.waves.occupancy import ctas_per_sm

COMPILE_LIMIT_S = 60.0
"""Seconds one configuration may take. GEMM configurations take 0.1 to 1 s (Triton 3.6 and 3.9, one core)."""

_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")


@dataclass(frozen=True, slots=True)
class Rejected:
    """A configuration that cannot be used.

    Parameters
    ----------
    config : KernelConfig
        The configuration.
    status : Status
        What went wrong; never ``OK``.
    reason : str
        The message to store.
    """

    config: KernelConfig
    status: Status
    reason: str


def compile_configs(
    kernel: str,
    configs: Sequence[KernelConfig],
    arch: ArchSpec,
    *,
    dtype: str,
    layout: str,
    n_workers: int | None = None,
    time_limit_s: float = COMPILE_LIMIT_S,
    progress: Callable[[int, int], None] | None = None,
) -> list[CompiledConfig | Rejected]:
    """Compile configurations of one kernel family.

    Parameters
    ----------
    kernel : str
        Name of the kernel family.
    configs : sequence of KernelConfig
        Complete configurations.
    arch : ArchSpec
        The target; it need not be present.
    dtype, layout : str
        Of the operands, which are taken to be 16-byte aligned.
    n_workers : int, optional
        Processes; by default as many as this process may use cores.
    time_limit_s : float, default=60
        Seconds for one configuration.
    progress : callable, optional
        Called with (done, total).

    Returns
    -------
    list of CompiledConfig or Rejected
        In the order of ``configs``. A compiled one fits on an SM of ``arch``.
    """
    results: list[CompiledConfig | Rejected | None] = [None] * len(configs)
    outcomes = run_isolated(
        _compile_one,
        list(configs),
        setup=_set_up,
        setup_args=(kernel, arch, dtype, layout),
        n_workers=n_workers or len(os.sched_getaffinity(0)),
        time_limit_s=time_limit_s,
        preload=("wavetune.kernels.registry", "wavetune.measure.compile"),
    )
    for n_done, outcome in enumerate(outcomes, start=1):
        config = configs[outcome.index]
        if not outcome.failure:
            results[outcome.index] = outcome.value
        elif outcome.failure == TIMED_OUT:
            results[outcome.index] = Rejected(config, Status.COMPILE_TIMEOUT, f"compiling {outcome.detail}")
        else:
            what = "the compiler crashed: " if outcome.failure == CRASHED else ""
            results[outcome.index] = Rejected(config, Status.COMPILE_ERROR, what + outcome.detail)
        if progress is not None:
            progress(n_done, len(configs))
    return [result for result in results if result is not None]


_JOB: tuple[str, ArchSpec, str, str] | None = None


def _set_up(kernel: str, arch: ArchSpec, dtype: str, layout: str) -> None:
    global _JOB
    from wavetune.kernels.call import compile_offline

    compile_offline(arch)
    _JOB = (kernel, arch, dtype, layout)


def _compile_one(config: KernelConfig) -> CompiledConfig | Rejected:
    from wavetune.kernels.call import compile_call
    from wavetune.kernels.registry import find_family

    assert _JOB is not None
    kernel, arch, dtype, layout = _JOB
    calls = find_family(kernel).offline_calls(config, arch, dtype, layout)
    try:
        compiled = [compile_call(call) for call in calls]
    except Exception as error:
        return Rejected(config, Status.COMPILE_ERROR, _compiler_message(error))
    main = compiled[0]
    num_regs, num_spills = read_resources(main)
    smem_bytes = int(main.metadata.shared)
    try:
        ctas_per_sm(arch, num_warps=calls[0].variant.num_warps, num_regs=num_regs, smem_bytes=smem_bytes)
    except InfeasibleConfigError as error:
        return Rejected(config, Status.OUT_OF_RESOURCES, str(error))
    return CompiledConfig(config, num_regs, num_spills, smem_bytes)


def _compiler_message(error: Exception) -> str:
    # Triton wraps the cause once for every function that it was compiling, and quotes our source each time.
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    lines = [line.strip() for line in str(cause).splitlines() if line.strip(" ^")]
    return f"{type(error).__name__}: {lines[-1] if lines else type(cause).__name__}"[:500]


def read_resources(compiled: Any) -> tuple[int, int]:
    """Return registers and spilled registers of a thread of a compiled kernel.

    Parameters
    ----------
    compiled : triton.compiler.CompiledKernel
        For an NVIDIA or AMD target.

    Returns
    -------
    num_regs : int
        Registers of one thread.
    num_spills : int
        Local memory of one thread in registers, as the CUDA driver counts it.
    """
    if "cubin" in compiled.asm:
        return _read_cubin(compiled.asm["cubin"])
    text = compiled.asm["amdgcn"]
    found = [re.search(rf"\.{name}:\s+(\d+)", text) for name in ("vgpr_count", "vgpr_spill_count")]
    num_regs, num_spills = (int(match.group(1)) if match else 0 for match in found)
    return num_regs, num_spills


def _read_cubin(cubin: bytes) -> tuple[int, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [_cuobjdump(), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    match = _RESOURCES.search(text)
    if match is None:
        raise ValueError(f"cuobjdump gave no resource usage: {text[:200]!r}")
    registers, stack_bytes, local_bytes = (int(group) for group in match.groups())
    return registers, max(stack_bytes, local_bytes) // 4


def _cuobjdump() -> str:
    import triton

    bundled = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return str(bundled) if bundled.exists() else shutil.which("cuobjdump") or "cuobjdump"
