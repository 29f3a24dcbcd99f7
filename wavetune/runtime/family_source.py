"""Find the model of a kernel that brings its own mapping; what does not belong is passed over with one warning."""

from __future__ import annotations

from collections.abc import Callable

from wavetune.errors import ModelFileError, NoModelError
from wavetune.mapping.kernel_mapping import KernelMapping
from wavetune.mapping.source_digest import mapping_digest
from wavetune.runtime.family_file import FamilyFile, family_file_name, read_family
from wavetune.runtime.sources import check_key, check_triton, found_files, warn_once

_SIBLINGS = {"bf16": "fp16", "fp16": "bf16"}
"""Element types of the same size and rate. On sweeps of attention and decode in fp16 with head dimension 128, 400
problems each, choices of bf16's model are worth 0.994 and 0.990, as those of a model of fp16 fitted to the same sweeps;
of grouped GEMM 0.980 where its own is worth 0.984 (one H200, 2026-11)."""


def stand_ins(dtype: str, layout: str) -> tuple[tuple[str, str], ...]:
    """Return the dtype and layout of every model that may answer for a family's problem, the best first.

    Without a model of its own, fp16 is answered by bf16's, and bf16 by fp16's; gated weights by that of plain ones.
    """
    dtypes = (dtype, _SIBLINGS[dtype]) if dtype in _SIBLINGS else (dtype,)
    layouts = (layout, "nk") if layout == "gated" else (layout,)
    return tuple((dtype, layout) for layout in layouts for dtype in dtypes)


def is_stand_in(model: FamilyFile, dtype: str, layout: str) -> bool:
    """Whether a model is of another dtype or layout than what it answers for."""
    return (model.dtype, model.layout) != (dtype, layout)


KnownModels = dict[tuple[str, str, str, str], FamilyFile | None]
"""Models by kernel, dtype, layout and GPU; None where there is none."""


def find_answering_model(
    kernel: str, mapping_of: Callable[[str, str], KernelMapping], dtype: str, layout: str, arch: str, known: KnownModels
) -> FamilyFile:
    """Return the first model there is of `stand_ins`.

    Parameters
    ----------
    kernel, dtype, layout, arch : str
        What is asked about.
    mapping_of : callable
        Takes a dtype and a layout.
    known : dict
        What was looked for before; added to.

    Raises
    ------
    NoModelError
        If there is none.
    """
    for stored in stand_ins(dtype, layout):
        key = (kernel, *stored, arch)
        if key not in known:
            known[key] = find_family_model(mapping_of(*stored), *stored, arch)
        model = known[key]
        if model is not None:
            return model
    raise NoModelError(
        f"no model of {kernel} for {dtype} and {layout} on {arch}; calibrate one, or let the launcher use its fixed "
        "rule"
    )


def find_family_model(mapping: KernelMapping, dtype: str, layout: str, arch: str) -> FamilyFile | None:
    """Return the first whole model file of a kernel that was fitted with this very mapping.

    Parameters
    ----------
    mapping : KernelMapping
        The kernel's mapping; its ``dims`` are the integers of the key.
    dtype, layout : str
        As in `wavetune.mapping.kernel_mapping.KernelProblem`.
    arch : str
        GPU.
    """
    for path in found_files(arch, family_file_name(mapping.name, dtype, layout)):
        try:
            model = read_family(path)
            check_key(model, (mapping.name, dtype, layout, arch))
            check_triton(str(path), model.provenance)
            check_mapping(model, mapping)
        except ModelFileError as error:
            warn_once(f"{error}; the next source answers")
        else:
            return model
    return None


def check_mapping(model: FamilyFile, mapping: KernelMapping) -> None:
    """Refuse a model that was fitted with another mapping than the kernel's.

    Raises
    ------
    ModelFileError
        If the integers of its keys, or the functions that map them, differ.
    """
    if model.dims != mapping.dims:
        raise ModelFileError(
            f"{model.path}: field dims: {list(model.dims)}, but the kernel's key has {list(mapping.dims)}; "
            "calibrate again"
        )
    if model.mapping_digest != mapping_digest(mapping):
        raise ModelFileError(
            f"{model.path}: field mapping_digest: grid_size, loop_trips or bytes_moved of {mapping.name} have changed "
            "since the model was fitted; calibrate again"
        )
