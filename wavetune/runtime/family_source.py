"""Find the model of a kernel that brings its own mapping; what does not belong is passed over with one warning."""

from __future__ import annotations

from wavetune.errors import ModelFileError
from wavetune.mapping.kernel_mapping import KernelMapping
from wavetune.mapping.source_digest import mapping_digest
from wavetune.runtime.family_file import FamilyFile, family_file_name, read_family
from wavetune.runtime.locate import model_folders
from wavetune.runtime.sources import check_triton, warn_once


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
    name = family_file_name(mapping.name, dtype, layout)
    for folder in model_folders():
        path = folder / arch / name
        if not path.exists():
            continue
        try:
            model = read_family(path)
            _check(model, mapping, (mapping.name, dtype, layout, arch))
            check_triton(str(path), model.provenance)
        except ModelFileError as error:
            warn_once(f"{error}; the next source answers")
        else:
            return model
    return None


def _check(model: FamilyFile, mapping: KernelMapping, key: tuple[str, str, str, str]) -> None:
    found = (model.kernel, model.dtype, model.layout, model.arch)
    for field, value, expected in zip(("kernel", "dtype", "layout", "arch"), found, key, strict=True):
        if value != expected:
            raise ModelFileError(f"{model.path}: field {field}: {value!r}, but its place says {expected!r}; move it")
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
