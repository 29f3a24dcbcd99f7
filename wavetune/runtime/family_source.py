"""Find the model of a kernel that brings its own mapping; what does not belong is passed over with one warning."""

from __future__ import annotations

from wavetune.errors import ModelFileError
from wavetune.mapping.kernel_mapping import KernelMapping
from wavetune.mapping.source_digest import mapping_digest
from wavetune.runtime.family_file import FamilyFile, family_file_name, read_family
from wavetune.runtime.sources import check_key, check_triton, found_files, warn_once


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
