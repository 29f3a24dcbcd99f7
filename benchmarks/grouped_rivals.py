"""What else chooses for grouped GEMM, judged on the sweep of `family_holdout`, and torch's own grouped products.

fp8 has ``torch._scaled_grouped_mm`` beside, with the same scales, and with ``use_fast_accum``, which does not promote.

One fixed configuration; a table keyed on the token total, tuned on balanced routings; the four-term form
``a + b g/SM + c g + d log(g + 1)``; vLLM's default rule, mapped to the nearest configuration of the space.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from live_timing import in_us
from moe_default import nearest_grouped_config, vllm_moe_config

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.core.dtype import find_dtype
from wavetune.core.grouped_problem import GroupedGemmProblem, spread_groups
from wavetune.kernels.grouped_gemm_operands import GroupedGemmOperands
from wavetune.mapping.grouped_gemm import map_grouped_gemm
from wavetune.plan.expert_layers import HOLDOUT_BLOCKS, expert_layers
from wavetune.plan.grouped_plan import could_win
from wavetune.report.metrics import geometric_mean
from wavetune.store.record import CompiledConfig
from wavetune.store.table import MeasurementTable

N_FOLDS = 5


class GroupedRivals:
    """Rival choices for some problems.

    Parameters
    ----------
    problems : sequence of GroupedGemmProblem
        What is judged on.
    arch : ArchSpec
        The GPU.
    """

    def __init__(self, problems: Sequence[Any], arch: ArchSpec) -> None:
        self.problems: list[GroupedGemmProblem] = list(problems)
        self.arch = arch
        self.twins = {problem: balanced(problem) for problem in self.problems}

    def points(self, compiled: Sequence[CompiledConfig]) -> Iterator[tuple[GroupedGemmProblem, KernelConfig]]:
        """Yield what must be measured beside the sweep: the balanced twin of every problem."""
        for twin in dict.fromkeys(self.twins.values()):
            if twin not in self.twins:
                yield from ((twin, entry.config) for entry in could_win(twin, compiled, self.arch))

    def policies(self, table: MeasurementTable, sweep: MeasurementTable) -> dict[str, list[KernelConfig]]:
        """Return each rival's choice for every problem.

        Parameters
        ----------
        table : MeasurementTable
            The sweep, and the twins.
        sweep : MeasurementTable
            The sweep alone.
        """
        keys, latency = table.latency_matrix()
        row_of = {tuple(key): latency[index] for index, key in enumerate(keys.tolist())}
        configs = [entry.config for entry in table.configs]
        fixed = configs[least_loss(sweep)]
        by_total = [configs[int(np.nanargmin(row_of[self.twins[problem].dims]))] for problem in self.problems]
        vllm = [
            nearest_grouped_config(vllm_moe_config(problem, experts_per_token(problem)), configs)
            for problem in self.problems
        ]
        return {
            "one fixed": [fixed] * len(self.problems), "token total": by_total, "vllm rule": vllm,
            "four terms": self._four_terms(sweep),
        }  # fmt: skip

    def _four_terms(self, sweep: MeasurementTable) -> list[KernelConfig]:
        """Choose by the four-term form, fitted to the other parts of the sweep.

        The form was made for one layer: it has no trips and no bytes. So it is fitted to latencies per trip here.
        """
        choices: dict[int, KernelConfig] = {}
        for fold in range(N_FOLDS):
            held_out = range(fold, len(self.problems), N_FOLDS)
            keys = {self.problems[index].dims for index in held_out}
            training = sweep.select(np.array([tuple(key) not in keys for key in sweep.dims.tolist()]))
            best: dict[int, tuple[float, KernelConfig]] = {}
            for column, entry in enumerate(training.configs):
                rows = training.select(training.config_index == column)
                if len(rows) < 8:
                    continue
                design, trips = self._design([tuple(key) for key in rows.dims.tolist()], entry.config, rows)
                coefficients, *_ = np.linalg.lstsq(design, rows.latency_us / trips, rcond=None)
                values, trips = self._design([self.problems[index].dims for index in held_out], entry.config, rows)
                for index, latency in zip(held_out, values @ coefficients * trips, strict=True):
                    if index not in best or latency < best[index][0]:
                        best[index] = (float(latency), entry.config)
            choices |= {index: config for index, (_, config) in best.items()}
        return [choices[index] for index in range(len(self.problems))]

    def _design(
        self, keys: Sequence[tuple[int, ...]], config: KernelConfig, table: MeasurementTable
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the design matrix of the four-term form, and the loop trips."""
        problems = (GroupedGemmProblem.from_dims(key, table.dtype, table.layout) for key in keys)
        mappings = [map_grouped_gemm(problem, config, self.arch) for problem in problems]
        grid = np.array([mapping.grid_size for mapping in mappings], dtype=float)
        trips = np.array([mapping.loop_trips for mapping in mappings], dtype=float)
        return np.stack([np.ones_like(grid), grid / self.arch.num_sms, grid, np.log(grid + 1.0)], axis=1), trips

    def time(self, problem: Any, config: Mapping[str, int | str], comparison: Any) -> dict[str, Any]:
        """Time torch, and the chosen configuration in a launch that does not know its histogram, as a captured one."""
        family, session, n_windows = comparison.family, comparison.session, comparison.n_windows(problem)
        chosen = KernelConfig(**config)
        operands = [family.carve_operands(problem, chosen, session.windows) for _ in range(n_windows)]
        stream = session.stream.cuda_stream
        launches = {
            "any histogram": [family.bind(o.for_any_histogram(), chosen, self.arch, stream) for o in operands]
        }  # fmt: skip
        if not problem.is_gated:
            for name, make in (SCALED_TORCH if find_dtype(problem.dtype).is_scaled else TORCH).items():
                entries = [make(o, o.groups.cumsum(0).int()) for o in operands]
                try:
                    entries[0]()
                except Exception as error:
                    print(f"{name} on {problem.dims}: {type(error).__name__}: {str(error)[:120]}")
                else:
                    launches[name] = entries
        mapping = map_grouped_gemm(problem, chosen, self.arch)
        us = dict(zip(launches, map(in_us, comparison.time_launches(list(launches.values()))), strict=True))
        return {**us, "surplus_ctas": mapping.launched_ctas - mapping.grid_size}

    def summary(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return torch's latency over that of the choice, and the time that a CTA beyond the last tile takes."""
        summary: dict[str, Any] = {"surplus_cta_us": self._surplus_cost(rows)}
        for name in (*TORCH, *SCALED_TORCH):
            ratio = [row[name] / row["chosen"] for row in rows if row.get(name)]
            if ratio:
                summary[name] = {
                    "problems": len(ratio), "geomean": round(geometric_mean(ratio), 3), "min": round(min(ratio), 3),
                }  # fmt: skip
        return summary

    def _surplus_cost(self, rows: Sequence[Mapping[str, Any]]) -> float | None:
        costs = [
            (row["any histogram"] - row["chosen"]) * self.arch.num_sms / row["surplus_ctas"]
            for row in rows
            if row["config"]["schedule"] == "tile"
            and row["surplus_ctas"] > 4 * self.arch.num_sms
            and row.get("any histogram")
        ]
        return round(statistics.median(costs), 3) if costs else None


def balanced(problem: GroupedGemmProblem) -> GroupedGemmProblem:
    """Return the problem of the same token total, spread evenly: what a policy by totals is tuned on."""
    active = min(problem.experts, problem.tokens)
    sizes = spread_groups(problem.experts, problem.tokens, active, -(-problem.tokens // active))
    return GroupedGemmProblem(sizes, problem.n, problem.k, problem.dtype, problem.layout)


def experts_per_token(problem: GroupedGemmProblem) -> int:
    """Return the experts on this GPU that a token goes to, from the held-out layer of these weights; at least 1."""
    for layer in expert_layers(HOLDOUT_BLOCKS):
        if (layer.experts, layer.n, layer.k) == (problem.experts, problem.n, problem.k):
            return max(round(layer.share), 1)
    return 1


def least_loss(sweep: MeasurementTable) -> int:
    """Return the column with the least mean regret over these very problems: a generous rival."""
    _, latency = sweep.latency_matrix()
    ratio = latency / np.nanmin(latency, axis=1, keepdims=True)
    # Not legal somewhere: counted as three times too slow there.
    return int(np.argmin(np.log(np.where(np.isnan(ratio), 3.0, ratio)).mean(axis=0)))


def torch_grouped(operands: GroupedGemmOperands, ends: Any) -> Callable[[], Any]:
    """Return a call of torch's own grouped GEMM."""
    import torch

    x, w = operands.x, operands.w.transpose(-2, -1)
    function = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
    return lambda: function(x, w, offs=ends)


def torch_loop(operands: GroupedGemmOperands, ends: Any) -> Callable[[], Any]:
    """Return a loop of torch.mm over the experts that have tokens."""
    import torch

    parts, start = [], 0
    for expert, size in enumerate(operands.problem.group_sizes):
        if size:
            rows = slice(start, start + size)
            parts.append((operands.x[rows], operands.w[expert].T, operands.out[rows]))
        start += size

    def launch() -> None:
        for a, b, c in parts:
            torch.mm(a, b, out=c)

    return launch


def torch_scaled(operands: GroupedGemmOperands, ends: Any, *, use_fast_accum: bool = False) -> Callable[[], Any]:
    """Return a call of torch's own grouped GEMM of fp8; it takes scales of tokens and of rows."""
    import torch

    args = (operands.x, operands.w.transpose(-2, -1), operands.scale_x, operands.scale_w)
    options = {"offs": ends, "out_dtype": torch.bfloat16, "use_fast_accum": use_fast_accum}
    return lambda: torch._scaled_grouped_mm(*args, **options)


TORCH = {"torch grouped": torch_grouped, "torch loop": torch_loop}
SCALED_TORCH = {"torch scaled": torch_scaled, "torch scaled fast": partial(torch_scaled, use_fast_accum=True)}
