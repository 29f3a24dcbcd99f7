"""A latency model for Triton's own autotuner: ``prune_configs_by={"perf_model": wavetune.perf_model(), "top_k": 3}``.

Triton (3.6 to 3.9) calls ``perf_model(**arguments, **config.all_kwargs())`` for every configuration, ``arguments``
being those of the launch by name (``grid`` and ``warmup`` among them), sorts ascending and times the first ``top_k``:
an integer, or a float up to 1.0 as the share of the list. It never looks at the unit. This module needs neither torch
nor Triton.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from wavetune.core.config import GEMM, KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.errors import ConfigError, NoModelError
from wavetune.mapping.gemm import map_gemm
from wavetune.mapping.kernel_mapping import KernelMapping, LaunchShape, MappingFunction
from wavetune.runtime.device import resolve_device
from wavetune.runtime.form_transfer import FormTransfer, TileLaunch
from wavetune.runtime.locate import model_file_name
from wavetune.runtime.sources import find_model

Size = str | Callable[[Mapping[str, Any]], int]
"""Name of an argument of the kernel, or a function of all arguments by name."""

META_NAMES: Mapping[str, tuple[str, ...]] = {
    "block_m": ("BLOCK_M", "BLOCK_SIZE_M", "block_m"),
    "block_n": ("BLOCK_N", "BLOCK_SIZE_N", "block_n"),
    "block_k": ("BLOCK_K", "BLOCK_SIZE_K", "block_k"),
    "group_m": ("GROUP_M", "GROUP_SIZE_M", "group_m"),
    "split_k": ("SPLIT_K", "SPLITK", "split_k"),
}
"""What meta-parameters are called in Triton's tutorials and in kernels modelled on them; the first that is there."""

logger = logging.getLogger("wavetune")


def perf_model(
    kernel: str = "gemm",
    *,
    m: Size = "M",
    n: Size = "N",
    k: Size = "K",
    block_m: str | None = None,
    block_n: str | None = None,
    block_k: str | None = None,
    group_m: str | None = None,
    split_k: str | None = None,
    grid_size: MappingFunction | None = None,
    loop_trips: MappingFunction | None = None,
    bytes_moved: MappingFunction | None = None,
    dtype: str = "bf16",
    layout: str = "nk",
    load: str = "pointer",
    is_persistent: bool = False,
    arch: str | None = None,
    num_sms: int | None = None,
    missing: str = "error",
) -> PerfModel:
    """Return a performance model of GEMM-like kernels for ``prune_configs_by``.

    Configurations need not be among those of the model: what it knows of the nearest ones is carried over, and each is
    evaluated with its own tiles and waves (`wavetune.runtime.form_transfer`). Predictions rank; how near they are to
    the clock depends on how much your kernel is like the one that was measured.

    Parameters
    ----------
    kernel : {"gemm"}
        Kernel family whose model is asked.
    m, n, k : str or callable
        The arguments of your kernel that hold the sizes, or functions of all arguments by name.
    block_m, block_n, block_k, group_m, split_k : str, optional
        Names of your meta-parameters; the usual ones are recognized, see `META_NAMES`. Without a group the tiles are
        taken to run along n first, without split-k the loop to be whole.
    grid_size, loop_trips : callable, optional
        For kernels with a GEMM's main loop but another grid (batched, grouped, causal): functions of (arguments by
        name, configuration by name) that count the CTAs and the loop trips of each. Both or none; m, n and k are not
        used then.
    bytes_moved : callable, optional
        With them: bytes moved to and from DRAM at least.
    dtype : str, default="bf16"
        Of the operands.
    layout : {"nk", "kn"}, default="nk"
        Storage of B.
    load : {"pointer", "tma"}, default="pointer"
        How your kernel loads its operands.
    is_persistent : bool, default=False
        Whether it loops over tiles.
    arch : str, optional
        GPU; the current one if not given.
    num_sms : int, optional
        SMs that launches may use.
    missing : {"error", "listed"}
        On a GPU without a model: raise NoModelError when it is first asked, or keep the order of the list, with a line
        in the log.

    Returns
    -------
    PerfModel
        Callable; gives microseconds, infinity for what cannot be launched. Safe with threads.

    Raises
    ------
    ConfigError
        If an option is unknown, or only one of ``grid_size`` and ``loop_trips`` is given.

    Examples
    --------
    >>> import wavetune
    >>> model = wavetune.perf_model(arch="h200")
    >>> tile = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 8, "num_stages": 3}
    >>> small = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2}
    >>> model(M=4096, N=4096, K=4096, **tile) < model(M=4096, N=4096, K=4096, **small)
    True
    """
    if kernel != GEMM.name:
        raise ConfigError(f"perf_model speaks for kernel 'gemm', not {kernel!r}; for your own kernel use autotune")
    if (grid_size is None) != (loop_trips is None):
        raise ConfigError("give grid_size and loop_trips together: the model needs both")
    if missing not in ("error", "listed"):
        raise ConfigError(f"missing must be 'error' or 'listed', got {missing!r}")
    if load not in GEMM.words["load"]:
        raise ConfigError(f"load must be one of {GEMM.words['load']}, got {load!r}")
    mapping = None
    if grid_size is not None and loop_trips is not None:
        mapping = KernelMapping("perf_model", (), grid_size, loop_trips, bytes_moved)
    names = {"block_m": block_m, "block_n": block_n, "block_k": block_k, "group_m": group_m, "split_k": split_k}
    # The probe checks dtype and layout where they are given, not in the first launch.
    probe = GemmProblem(1, 1, 1, dtype, layout)
    return PerfModel(
        (m, n, k), names, mapping, probe, load=load, is_persistent=is_persistent, arch=arch, num_sms=num_sms,
        missing=missing,
    )  # fmt: skip


class PerfModel:
    """Predicts GEMM-like launches; made by `perf_model`.

    Parameters
    ----------
    sizes : tuple of str or callable
        Where m, n and k are.
    names : mapping of str to str or None
        Names of meta-parameters, by field; None for the usual ones.
    mapping : KernelMapping or None
        Grid and trips of a kernel that is not a plain GEMM.
    probe : GemmProblem
        Carries dtype and layout.
    load, is_persistent, arch, num_sms, missing
        As in `perf_model`.
    """

    def __init__(
        self,
        sizes: tuple[Size, Size, Size],
        names: Mapping[str, str | None],
        mapping: KernelMapping | None,
        probe: GemmProblem,
        *,
        load: str,
        is_persistent: bool,
        arch: str | None,
        num_sms: int | None,
        missing: str,
    ) -> None:
        self._sizes, self._mapping, self._probe = sizes, mapping, probe
        self._names = {field: (name,) if name is not None else META_NAMES[field] for field, name in names.items()}
        self._load, self._is_persistent = load, is_persistent
        self._arch, self._num_sms, self._missing = arch, num_sms, missing
        self._by_device: dict[tuple[str, int], FormTransfer | None] = {}

    def __call__(self, **arguments: Any) -> float:
        """Predict one launch; called as Triton does.

        Parameters
        ----------
        **arguments
            Arguments of the kernel, meta-parameters, ``num_warps`` and ``num_stages`` by name; others are ignored.

        Returns
        -------
        float
            Microseconds. Infinity for a configuration that needs more shared memory than the GPU gives, 0 for an empty
            problem or where there is no model and ``missing="listed"``.

        Raises
        ------
        NoModelError
            If there is no model for the GPU and ``missing="error"``.
        ConfigError, ProblemError, MappingError
            If an argument is missing or impossible.
        """
        transfer = self._transfer()
        if transfer is None:
            return 0.0
        config = self._config(arguments)
        if self._mapping is not None:
            shape = self._mapping.shape(arguments, arguments)
            return transfer.predict(config, _own_launch(shape, config))
        problem = self._problem(arguments)
        if problem.is_empty:
            return 0.0
        tiles = map_gemm(problem, config, transfer.arch)
        launch = TileLaunch(
            tiles.grid_size, tiles.loop_trips, tiles.compulsory_bytes, tiles.reread_bytes, tiles.workspace_bytes,
            tiles.flops,
        )  # fmt: skip
        return transfer.predict(config, launch, tuple((size - 1).bit_length() for size in problem.dims))

    def _config(self, arguments: Mapping[str, Any]) -> KernelConfig:
        split_k = self._meta("split_k", arguments, 1)
        schedule = "split_k" if split_k > 1 else "persistent" if self._is_persistent else "tile"
        return GEMM.config(
            {
                "block_m": self._meta("block_m", arguments),
                "block_n": self._meta("block_n", arguments),
                "block_k": self._meta("block_k", arguments),
                "split_k": split_k,
                "schedule": schedule,
                "group_m": self._meta("group_m", arguments, 1),
                "num_warps": int(arguments.get("num_warps", 4)),
                "num_stages": int(arguments.get("num_stages", 3)),
                "load": self._load,
            }
        )

    def _meta(self, field: str, arguments: Mapping[str, Any], default: int | None = None) -> int:
        for name in self._names[field]:
            if name in arguments:
                return int(arguments[name])
        if default is None:
            raise ConfigError(
                f"perf_model finds no meta-parameter {' or '.join(self._names[field])} among "
                f"{', '.join(arguments)}; say what it is called with {field}=..."
            )
        return default

    def _problem(self, arguments: Mapping[str, Any]) -> GemmProblem:
        sizes = []
        for dim, where in zip(GEMM.dims, self._sizes, strict=True):
            if callable(where):
                sizes.append(where(arguments))
            elif where in arguments:
                sizes.append(arguments[where])
            else:
                raise ConfigError(
                    f"perf_model finds no argument {where} among {', '.join(arguments)}; say where the size is with "
                    f"{dim}=..., a name or a function of the arguments"
                )
        m, n, k = sizes
        return GemmProblem(m, n, k, self._probe.dtype, self._probe.layout)

    def _transfer(self) -> FormTransfer | None:
        device = resolve_device(self._arch, self._num_sms)
        key = (device.arch.name, device.num_sms)
        if key not in self._by_device:
            dtype, layout = self._probe.dtype, self._probe.layout
            model, _ = find_model(GEMM.name, dtype, layout, device.arch.name)
            if model is not None:
                self._by_device[key] = FormTransfer(model, device.arch, device.num_sms)
            else:
                wanted = f"no model {device.arch.name}/{model_file_name(GEMM.name, dtype, layout)}"
                if self._missing == "error":
                    raise NoModelError(
                        f"{wanted} for perf_model: make one with `wavetune calibrate`, or pass missing='listed' to "
                        "keep the order of the list"
                    )
                logger.warning("%s: perf_model keeps the order of the list", wanted)
                self._by_device[key] = None
        return self._by_device[key]


def _own_launch(shape: LaunchShape, config: KernelConfig) -> TileLaunch:
    products = shape.total_trips * int(config["block_m"]) * int(config["block_n"]) * int(config["block_k"])
    return TileLaunch(shape.grid_size, shape.loop_trips, shape.moved_bytes, flops=2 * products)
