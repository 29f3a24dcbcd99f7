"""Tuned configurations for the dense block-fp8 kernels of vLLM and SGLang: names, rows and the rule of the nearest row.

Their kernel is one tile a CTA, with pointer loads and no split of k; what needs more cannot be said in their files.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig

SCALE_BLOCK = 128
"""Elements of k with one scale; a loop trip must not reach over two scales, so BLOCK_SIZE_K divides it."""

_PLAIN: Mapping[str, int | str] = {"schedule": "tile", "split_k": 1, "load": "pointer", "epilogue_split": 1}
_NAMES = {"block_m": "BLOCK_SIZE_M", "block_n": "BLOCK_SIZE_N", "block_k": "BLOCK_SIZE_K", "group_m": "GROUP_SIZE_M"}
_LAUNCH = ("num_warps", "num_stages")
# How a list of block sizes is spelled in a file's name.
_COMMA = {"vllm": ",", "sglang": ", "}


def is_plain_kernel(config: KernelConfig) -> bool:
    """Tell whether a configuration is of the plain kernel: one tile a CTA, pointer loads, k in one piece."""
    return all(config[name] == value for name, value in _PLAIN.items())


def is_block_fp8_kernel(config: KernelConfig) -> bool:
    """Tell whether vLLM's and SGLang's dense block-fp8 kernel can run a configuration."""
    return is_plain_kernel(config) and SCALE_BLOCK % int(config["block_k"]) == 0


def kernel_arguments(config: KernelConfig) -> dict[str, int]:
    """Return the block and group sizes of a plain configuration, by the names of Triton's matmul."""
    return {name: int(config[field]) for field, name in _NAMES.items()}


def launch_options(config: KernelConfig) -> dict[str, int]:
    """Return warps and stages."""
    return {name: int(config[name]) for name in _LAUNCH}


def device_file_name(arch: ArchSpec) -> str:
    """Return the name that the driver has for a GPU, as it stands in names of files: no blanks, no slashes."""
    # The driver's name is the alias that is written like one: in words.
    driver = next((alias for alias in arch.aliases if " " in alias), arch.name)
    return sanitised(driver)


def sanitised(device: str) -> str:
    """Replace what a file name cannot hold."""
    return re.sub(r"[\s/]+", "_", device)


def dense_file_name(n: int, k: int, device: str, consumer: str) -> str:
    """Return the one name under which vLLM or SGLang look for a dense block-fp8 layer."""
    shape = _COMMA[consumer].join((str(SCALE_BLOCK), str(SCALE_BLOCK)))
    return f"N={n},K={k},device_name={device},dtype=fp8_w8a8,block_shape=[{shape}].json"


def body(rows: Mapping[int, KernelConfig]) -> str:
    """Return a file's text, token counts ascending. Dense files hold nothing else: every key must be a number."""
    document = {str(m): kernel_arguments(rows[m]) | launch_options(rows[m]) for m in sorted(rows)}
    return json.dumps(document, indent=4) + "\n"


def nearest_row(rows: Iterable[int], m: int) -> int:
    """Return the row that both consumers take for m tokens: the nearest, the first in the file where two are."""
    return min(sorted(rows), key=lambda row: abs(row - m))


@dataclass(frozen=True, slots=True)
class Bucketing:
    """What the rule of the nearest row costs on a workload, by predicted latency.

    Parameters
    ----------
    calls : int
        Calls that were replayed.
    replayed_us, best_us : float
        Latency of all of them with the row's configuration, and with the best that the kernel can run.
    free_us : float
        With the best of all configurations of the model, also those that the kernel cannot run.
    worst : float
        Largest regret of a call.
    worst_m : int
        Its tokens.
    """

    calls: int
    replayed_us: float
    best_us: float
    free_us: float
    worst: float
    worst_m: int

    @property
    def regret(self) -> float:
        """Regret of the bucketing, weighted by count: time over the best possible, minus 1."""
        return self.replayed_us / self.best_us - 1.0

    @property
    def kernel_cost(self) -> float:
        """What the plain kernel costs against all configurations, in the same measure."""
        return self.best_us / self.free_us - 1.0


def replay(
    row_of: Callable[[int], KernelConfig],
    calls: Sequence[tuple[int, int, Mapping[KernelConfig, float]]],
    is_possible: Callable[[KernelConfig], bool] = is_block_fp8_kernel,
) -> Bucketing:
    """Look every call up as the consumer does.

    Parameters
    ----------
    row_of : callable
        Returns the configuration that the consumer takes for a number of tokens.
    calls : sequence of (int, int, mapping)
        Tokens, count, and the latency of every configuration, microseconds.
    is_possible : callable
        Whether the consumer's kernel can run a configuration.
    """
    replayed_us = best_us = free_us = worst = 0.0
    worst_m = calls[0][0]
    for m, count, latencies in calls:
        # What is not legal for so many tokens costs whatever one likes.
        taken = latencies.get(row_of(m), math.inf)
        best = min(latency for config, latency in latencies.items() if is_possible(config))
        replayed_us += count * taken
        best_us += count * best
        free_us += count * min(latencies.values())
        if taken / best - 1.0 > worst:
            worst, worst_m = taken / best - 1.0, m
    return Bucketing(sum(count for _, count, _ in calls), replayed_us, best_us, free_us, worst, worst_m)
