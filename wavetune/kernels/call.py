"""One kernel launch as a value: compile it, bind it to a stream, run it.

A `KernelVariant` is what Triton compiles: a kernel, its constants, its options. A `KernelCall` adds arguments and grid.
Compiling ahead of time, timing and serving all start from the same variants, so they cannot disagree about a
signature. The kernels of this package never let Triton specialize on the value of a size, so besides the variant
only the alignment of pointers tells two compiled kernels apart.
"""

from __future__ import annotations

import copy
import threading
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from triton import knobs
from triton.runtime import driver

from wavetune.core.arch import ArchSpec
from wavetune.waves.occupancy import ctas_per_sm

IS_INTERPRETED: bool = knobs.runtime.interpret
"""Whether kernels run in Triton's interpreter (TRITON_INTERPRET=1 when triton was imported)."""

Launch = Callable[[], None]
"""Launches bound work, with everything prepared."""


@dataclass(frozen=True, eq=False)
class KernelVariant:
    """What is compiled; compared by identity, so families keep and share their variants.

    Parameters
    ----------
    kernel : triton.JITFunction
        The kernel.
    constants : mapping of str to object
        Compile-time arguments, in signature order, after the run-time ones.
    num_warps, num_stages : int
        Compile options.
    arch : ArchSpec
        The GPU: its SMs size the grid of a persistent kernel.
    is_persistent : bool, default=False
        Whether the launch is capped at the CTAs that are resident at once.
    overlaps_previous : bool, default=False
        Whether the kernel may start before the previous one ends (programmatic dependent launch); it must wait itself.
    fuses_multiply_add : bool, default=True
        Whether the compiler may round a product and a sum at once. Where the parts of a tile are finished apart it does
        so in one and not in the other, and an element that two tiles compute depends on which stored it last.
    """

    kernel: Any
    constants: Mapping[str, object]
    num_warps: int
    num_stages: int
    arch: ArchSpec
    is_persistent: bool = False
    overlaps_previous: bool = False
    fuses_multiply_add: bool = True
    loaded: dict[tuple[object, ...], LoadedKernel] = field(default_factory=dict, repr=False)

    def options(self) -> dict[str, object]:
        """Return compile-time arguments and options as keywords of the kernel."""
        options = {**self.constants, "num_warps": self.num_warps, "num_stages": self.num_stages}
        # Always said, because the default changes in Triton 3.10 and results would with it.
        options["enable_fp_fusion"] = self.fuses_multiply_add
        if self.overlaps_previous:
            options["launch_pdl"] = True
        return options


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One launch.

    Parameters
    ----------
    variant : KernelVariant
        What is launched.
    args : tuple
        Run-time arguments in signature order: tensors, tensor descriptors, integers or None.
    grid_size : int
        CTAs; for a persistent kernel its tiles.
    """

    variant: KernelVariant
    args: tuple[Any, ...]
    grid_size: int


class LoadedKernel:
    """A compiled kernel on one device, with its launcher taken apart.

    Triton encodes descriptors and looks at every argument at each launch: 34 us of host time with three descriptors,
    25 us with pointers (H200 machine, Triton 3.6, 2026-11). Here that happens once, in `expand`; a launch then is one
    call of the C launcher, 5 us. If a release of Triton is built differently, its public launcher is used.

    Parameters
    ----------
    compiled : triton.compiler.CompiledKernel
        The kernel; its module is loaded here.
    variant : KernelVariant
        What was compiled.

    Raises
    ------
    InfeasibleConfigError
        If one CTA exceeds what an SM has.
    triton.runtime.errors.OutOfResources
        If the device refuses the kernel's shared memory or threads.
    """

    def __init__(self, compiled: Any, variant: KernelVariant) -> None:
        compiled._init_handles()  # loads the module; fills in n_regs
        per_sm = ctas_per_sm(
            variant.arch,
            num_warps=compiled.metadata.num_warps,
            num_regs=compiled.n_regs,
            smem_bytes=compiled.metadata.shared,
        )
        self.compiled = compiled
        self.slots = per_sm * variant.arch.num_sms
        self._constants = tuple(variant.constants.values())
        self._recorded: list[tuple[Any, ...]] = []
        self._lock = threading.Lock()
        try:
            self._launch, self._probe = self._take_apart(compiled.run)
        except (AttributeError, KeyError, TypeError, ValueError):
            self._launch, self._probe = None, None

    def _take_apart(self, launcher: Any) -> tuple[Any, Any]:
        def record(*args: Any) -> None:
            self._recorded.append(args)

        probe = copy.copy(launcher)
        launch = launcher.launch
        code = getattr(launch, "__code__", None)
        if code is None:
            probe.launch = record
            return launch, probe
        # With descriptors, `launch` is a Python closure that encodes them and calls `launcher`.
        cells = dict(zip(code.co_freevars, launch.__closure__, strict=True))
        c_launcher = cells["launcher"].cell_contents
        cells["launcher"] = types.CellType(record)
        probe.launch = types.FunctionType(code, launch.__globals__, None, None, tuple(cells.values()))
        return c_launcher, probe

    def expand(self, args: tuple[Any, ...], grid_size: int, stream: int) -> Launch:
        """Return the bound launch of ``args``; it keeps their memory alive."""
        compiled = self.compiled
        front = (grid_size, 1, 1, stream, compiled.function, compiled.packed_metadata, None, None, None)
        if self._probe is None:
            return partial(compiled.run, *front, *args, *self._constants)
        # Plain addresses spare the launcher a method call and a driver query for each pointer.
        plain = [arg.data_ptr() if hasattr(arg, "data_ptr") else arg for arg in args]
        with self._lock:
            self._probe(*front, *plain, *self._constants)
            expanded = self._recorded.pop()
        return BoundLaunch(self._launch, expanded, args)


class BoundLaunch:
    """A C launcher with its final arguments.

    Parameters
    ----------
    launch : callable
        The launcher that Triton compiled.
    args : tuple
        Its arguments.
    alive : tuple
        What must live as long as the addresses in ``args``.
    """

    __slots__ = ("alive", "args", "launch")

    def __init__(self, launch: Callable[..., object], args: tuple[Any, ...], alive: tuple[Any, ...]) -> None:
        self.launch = launch
        self.args = args
        self.alive = alive

    def __call__(self) -> None:
        """Launch."""
        self.launch(*self.args)


class LaunchSequence:
    """Several launches, one after another.

    Parameters
    ----------
    parts : tuple of callables
        The launches.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Launch, ...]) -> None:
        self.parts = parts

    def __call__(self) -> None:
        """Launch every part."""
        for part in self.parts:
            part()


def forget_memory(launch: Launch) -> bool:
    """Let go of the tensors of a bound launch, for a caller that answers for their addresses.

    Returns
    -------
    bool
        Whether the launch holds no tensor any more.
    """
    parts = launch.parts if isinstance(launch, LaunchSequence) else (launch,)
    bound = [part for part in parts if isinstance(part, BoundLaunch)]
    for part in bound:
        part.alive = ()
    return len(bound) == len(parts)


def compile_call(call: KernelCall) -> Any:
    """Compile (or load from Triton's cache) without launching.

    Returns
    -------
    triton.compiler.CompiledKernel
        For the active driver's target, which need not be present.
    """
    return call.variant.kernel.warmup(*call.args, grid=(1,), **call.variant.options())


_LOADING = threading.Lock()
"""Triton's compiler is entered by one thread at a time; a kernel is compiled once however many threads ask."""


def find_loaded(call: KernelCall) -> LoadedKernel | None:
    """Return the kernel of ``call`` if it is loaded on the current device; compiles nothing."""
    return call.variant.loaded.get(_loaded_key(call))


def load_call(call: KernelCall) -> LoadedKernel:
    """Return the kernel of ``call`` on the current device, compiled at first use; raises as `LoadedKernel` does."""
    loaded = find_loaded(call)
    if loaded is None:
        with _LOADING:
            loaded = find_loaded(call)
            if loaded is None:
                loaded = call.variant.loaded[_loaded_key(call)] = LoadedKernel(compile_call(call), call.variant)
    return loaded


def _loaded_key(call: KernelCall) -> tuple[object, ...]:
    # Besides the variant, the device and the alignment of pointers tell compiled kernels apart.
    return (
        driver.active.get_current_device(),
        *[arg is None or arg.data_ptr() % 16 == 0 for arg in call.args if arg is None or hasattr(arg, "data_ptr")],
    )


def bind(call: KernelCall, stream: int) -> Launch:
    """Return a function of no arguments that launches ``call`` on ``stream``, allocating nothing.

    Parameters
    ----------
    call : KernelCall
        The launch.
    stream : int
        CUDA stream handle, such as ``torch.cuda.current_stream().cuda_stream``.
    """
    variant = call.variant
    if IS_INTERPRETED:
        grid_size = min(call.grid_size, variant.arch.num_sms) if variant.is_persistent else call.grid_size
        return partial(variant.kernel[(grid_size,)], *call.args, **variant.options())
    loaded = load_call(call)
    grid_size = min(call.grid_size, loaded.slots) if variant.is_persistent else call.grid_size
    return loaded.expand(call.args, grid_size, stream)


class OfflineDriver:
    """Stands in for a GPU driver, so that kernels compile for a target that is not present.

    Parameters
    ----------
    arch : ArchSpec
        Decides the target: ``sm_90`` is ("cuda", 90), ``gfx942`` is ("hip", "gfx942").
    """

    def __init__(self, arch: ArchSpec) -> None:
        from triton.backends.compiler import GPUTarget

        backend, name = ("cuda", int(arch.target[3:])) if arch.target.startswith("sm_") else ("hip", arch.target)
        self._target = GPUTarget(backend, name, arch.warp_size)

    def get_current_target(self) -> Any:
        """Return the target to compile for."""
        return self._target

    def get_current_device(self) -> int:
        """Return 0: kernels are cached by device."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """Return 0: nothing is launched."""
        return 0


def compile_offline(arch: ArchSpec) -> None:
    """Make this process compile for ``arch`` from now on; it can no longer launch anything."""
    driver.set_active(OfflineDriver(arch))
