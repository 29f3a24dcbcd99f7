"""``python -m wavetune.launch.compile_worker``: compiles kernels into Triton's cache, for `wavetune.launch.warmup`.

A program of its own, neither forked nor spawned: a fork of a process that holds a GPU breaks, and a spawned process
would run the caller's script once more. It reads JSON lines, the GPU first, then one job each, and answers every job
with a line that holds the failure, empty if there was none. No GPU is touched.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from typing import Any

from wavetune.core.arch import ArchSpec
from wavetune.core.config import GEMM, KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.kernels.call import KernelCall, compile_call, compile_offline
from wavetune.kernels.gemm import gemm_calls
from wavetune.kernels.placeholder import placeholder_operands


@dataclass(frozen=True, slots=True)
class CompileJob:
    """What one GEMM compiles under one configuration.

    Parameters
    ----------
    problem : GemmProblem
        Its dtype, layout and alignment class count, its sizes only in what they divide by.
    config : KernelConfig
        A legal configuration.
    has_bias : bool
        Whether a bias is added.
    activation : str
        Of the epilogue.
    """

    problem: GemmProblem
    config: KernelConfig
    has_bias: bool
    activation: str

    def calls(self, arch: ArchSpec) -> list[KernelCall]:
        """Return the launches over stand-ins for contiguous, aligned operands."""
        operands = placeholder_operands(self.problem, has_bias=self.has_bias, activation=self.activation)
        return gemm_calls(operands, self.config, arch)

    def to_json(self) -> str:
        """Return one line."""
        return json.dumps({**asdict(self), "config": dict(self.config)})

    @classmethod
    def from_json(cls, line: str) -> CompileJob:
        """Read one line."""
        fields = json.loads(line)
        return cls(
            GemmProblem(**fields["problem"]), GEMM.config(fields["config"]), fields["has_bias"], fields["activation"]
        )


def arch_to_json(arch: ArchSpec) -> str:
    """Return the GPU as one line."""
    return json.dumps(asdict(arch))


def arch_from_json(line: str) -> ArchSpec:
    """Read a GPU, which need not be a known one."""
    fields: dict[str, Any] = json.loads(line)
    return ArchSpec(**{**fields, "aliases": tuple(fields["aliases"])})


def main() -> None:
    """Serve until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    # Whatever compilers print must not look like an answer.
    os.dup2(2, 1)
    arch = arch_from_json(sys.stdin.readline())
    compile_offline(arch)
    for line in sys.stdin:
        failure = ""
        try:
            for call in CompileJob.from_json(line).calls(arch):
                compile_call(call)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"[:500]
        answers.write(json.dumps(failure) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
