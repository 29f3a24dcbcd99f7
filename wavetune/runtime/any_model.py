"""Read a model file of either schema, for whoever does not ask for one kernel: listing, verifying, ``--model``."""

from __future__ import annotations

import os
from pathlib import Path

from wavetune.core.arch import find_arch
from wavetune.core.config import ATTENTION, ATTENTION_DECODE, GROUPED_GEMM
from wavetune.errors import ModelFileError
from wavetune.runtime.codec import decode_model
from wavetune.runtime.family_file import FamilyFile, decode_family, family_file_name, is_family_data
from wavetune.runtime.json_document import read_bytes
from wavetune.runtime.locate import model_file_name
from wavetune.runtime.model_file import ModelFile
from wavetune.runtime.sources import check_triton

AnyModel = ModelFile | FamilyFile


def read_any_model(path: str | os.PathLike[str]) -> AnyModel:
    """Read and check a model file of either schema; opened once, so that it may be a pipe.

    Raises
    ------
    ModelFileError
        If it cannot be read, or is no whole model; names file and field.
    """
    data = read_bytes(path)
    return decode_family(data, os.fspath(path)) if is_family_data(data) else decode_model(data, os.fspath(path))


def read_found_model(path: Path) -> AnyModel:
    """Read a model file that lies in a searched folder, and refuse what no question would be answered from.

    Raises
    ------
    ModelFileError
        As `read_any_model`, and if it lies where it is not looked for, was measured with another major release of
        Triton, or, of a kernel of this package, was fitted with another mapping than the kernel has.
    """
    model = read_any_model(path)
    _check_place(model, path)
    check_triton(str(path), model.provenance)
    if isinstance(model, FamilyFile):
        _check_mapping(model)
    return model


def _check_place(model: AnyModel, path: Path) -> None:
    name_of = family_file_name if isinstance(model, FamilyFile) else model_file_name
    place = Path(model.arch, name_of(model.kernel, model.dtype, model.layout))
    if Path(*path.parts[-2:]) != place:
        raise ModelFileError(f"{path}: a model that is looked for as {place}; move it to {path.parent.parent / place}")


def _check_mapping(model: FamilyFile) -> None:
    """Refuse the model of a kernel of this package that was fitted with another mapping; a user's is not known here."""
    from wavetune.runtime.family_source import check_mapping

    if model.kernel == GROUPED_GEMM.name:
        from wavetune.mapping.grouped_shape import grouped_mapping

        check_mapping(model, grouped_mapping(model.dtype, model.layout, find_arch(model.arch)))
    elif model.kernel in (ATTENTION.name, ATTENTION_DECODE.name):
        from wavetune.mapping.attention_shape import attention_decode_mapping, attention_mapping

        mapping_of = attention_mapping if model.kernel == ATTENTION.name else attention_decode_mapping
        check_mapping(model, mapping_of(model.dtype, model.layout))
